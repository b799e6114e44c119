"""Translation with structured attention, end to end on a language of our own."""

import json

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sacrebleu")
pytest.importorskip("tqdm")

import torch

from examples import structured_attention


@pytest.mark.slow
def test_smoke(tmp_path, capsys):
    argv = ["--smoke", "--out", str(tmp_path), "--attention", "softmax,fusedmax"]
    structured_attention.main(argv)
    softmax, fusedmax = (
        json.loads((tmp_path / f"{name}-0" / "result.json").read_text())
        for name in ("softmax", "fusedmax")
    )
    assert softmax["settings"]["optimizer"] == "adam"
    assert softmax["result"]["bleu"] > 1
    assert "tok:none" in softmax["result"]["signature"]
    assert fusedmax["result"]["attention_nonzeros"] < softmax["result"]["attention_nonzeros"]
    assert fusedmax["result"]["attention_groups"] <= fusedmax["result"]["attention_nonzeros"]
    for one in fusedmax["result"]["shown"]:
        weights = torch.tensor(one["weights"])
        assert weights.shape == (len(one["target"]), len(one["source"]))
        assert torch.allclose(weights.sum(-1), torch.ones(len(weights)))
    assert "| fusedmax |" in capsys.readouterr().out
    assert (tmp_path / "attention-1.png").stat().st_size > 10_000
