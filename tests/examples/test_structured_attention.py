"""Translation with structured attention, end to end on a language of our own."""

import json

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sacrebleu")
pytest.importorskip("tqdm")

import torch

from examples import structured_attention
from examples.common.processes import Process


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


def test_rate_of_sgd(tmp_path):
    """1 up to the 8th epoch, then half of the last in each (Niculae & Blondel 2017, C.3)."""
    args = structured_attention.options(
        ["--smoke", "--out", str(tmp_path), "--optimizer", "sgd", "--rate", "1"]
    )
    corpus = structured_attention.load(args)
    here = Process(torch.device("cpu"))
    trainee = structured_attention.Translator(args, corpus, here, "softmax", 0)
    with torch.no_grad():
        rates = [trainee.validate(epoch)["rate"] for epoch in range(10)]
    assert rates == [1.0] * 8 + [0.5, 0.25]
    assert all(float(p.detach().abs().max()) <= 0.1 for p in trainee.model.parameters())
