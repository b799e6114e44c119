"""The Transformer with learned sparsity, and its experiment from end to end on a toy language."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("sacrebleu", reason="the experiment measures BLEU")
pytest.importorskip("matplotlib", reason="the experiment draws")
pytest.importorskip("tqdm", reason="the experiment shows its progress")

from examples import adaptive_report, adaptive_transformer
from examples.common.runs import results
from examples.common.text import PAD
from examples.common.transformer import BLOCKS, Transformer

MAPPINGS = ("softmax", "entmax15", "entmax:alpha=1.3", "adaptive")


def made(mapping, **changes):
    torch.manual_seed(0)
    sizes = {"width": 16, "layers": 2, "heads": 4, "dropout": 0.0, **changes}
    return Transformer((9, 11), mapping=mapping, **sizes).double().eval()


def sentences(n, length, words, seed=0):
    """(n, length) of words that are not special."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, words, (n, length), generator=generator)


@pytest.mark.parametrize("mapping", MAPPINGS)
class TestModel:
    def test_the_future_never_leaks(self, mapping):
        model, source, target = made(mapping), sentences(2, 5, 9), sentences(2, 6, 11)
        with torch.no_grad():
            before = model(source, target)
            changed = target.clone()
            changed[:, 3:] = sentences(2, 3, 11, seed=1)
            after = model(source, changed)
        torch.testing.assert_close(after[:, :3], before[:, :3], rtol=0, atol=1e-12)
        assert not torch.allclose(after[:, 3:], before[:, 3:])

    def test_padding_never_counts(self, mapping):
        model, source, target = made(mapping), sentences(2, 5, 9), sentences(2, 6, 11)
        fill = torch.full((2, 3), PAD)
        with torch.no_grad():
            alone = model(source, target)
            padded = model(torch.cat([source, fill], 1), torch.cat([target, fill], 1))
        torch.testing.assert_close(padded[:, :6], alone, rtol=0, atol=1e-12)


class TestLearnedAlpha:
    def test_every_head_has_its_own_gradient(self):
        model, source, target = made("adaptive"), sentences(3, 5, 9), sentences(3, 6, 11)
        model(source, target).square().sum().backward()
        for block in BLOCKS:
            for module in model.attention(block):
                gradient = module.omega.a.grad.flatten()
                assert gradient.shape == (4,)
                assert bool((gradient != 0).all())
                assert len(gradient.unique()) == 4


def test_the_width_must_fit():
    with pytest.raises(ValueError, match="width must be even and a multiple of heads = 4; got 18"):
        made("softmax", width=18)


# -- the program ---------------------------------------------------------------------------------


FIGURES = {
    "trajectories",
    "alphas",
    "densities",
    "head-densities",
    "diversity",
    *(f"heads-{block}" for block in BLOCKS),
}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    out = tmp_path_factory.mktemp("smoke")
    adaptive_transformer.main(["--smoke", "--out", str(out)])
    return out


@pytest.mark.slow
class TestProgram:
    def test_smoke(self, smoke):
        runs = {run["name"]: run for run in results(smoke)}
        assert set(runs) == {"softmax", "entmax15", "adaptive"}
        for run in runs.values():
            losses = [epoch["loss"] for epoch in run["history"]]
            assert losses[-1] < losses[0] - 0.5
        assert runs["softmax"]["result"]["density"]["encoder"] == [[1.0] * 2] * 2
        assert max(map(max, runs["entmax15"]["result"]["density"]["encoder"])) < 1
        adaptive = runs["adaptive"]["result"]
        assert [len(adaptive["trajectories"][b]) for b in BLOCKS] == [len(adaptive["steps"])] * 3
        start = adaptive["steps"].index(adaptive_transformer.SMOKE["alpha_start"])
        for block in BLOCKS:
            first, *later = adaptive["trajectories"][block]
            assert all(values == first for values in later[:start])
            assert len(torch.tensor(later[start]).unique()) > 1

    def test_tables_and_figures(self, smoke):
        text = (smoke / "adaptive_transformer.md").read_text()
        assert text.count("\n| adaptive") == 4  # its row, and its alphas in three blocks
        for name in FIGURES:
            for kind in ("svg", "png"):
                assert (smoke / f"{name}.{kind}").stat().st_size > 2000, name

    def test_a_run_that_stopped_goes_on_the_same(self, smoke, tmp_path, monkeypatch):
        whole = json.loads((smoke / "adaptive-0" / "result.json").read_text())
        checkpoint = adaptive_transformer.Translator.validate

        def stop(self, epoch):
            if epoch == 2:
                raise KeyboardInterrupt
            return checkpoint(self, epoch)

        command = ["--smoke", "--attention", "adaptive", "--out", str(tmp_path)]
        with monkeypatch.context() as patched:
            patched.setattr(adaptive_transformer.Translator, "validate", stop)
            with pytest.raises(KeyboardInterrupt):
                adaptive_transformer.main(command)
        monkeypatch.setattr(adaptive_transformer, "report", lambda out: None)
        adaptive_transformer.main(command)
        resumed = json.loads((tmp_path / "adaptive-0" / "result.json").read_text())
        for run in (whole, resumed):
            for epoch in run["history"]:
                del epoch["seconds"]
        assert resumed == whole

    def test_timing_and_report_only(self, tmp_path, capsys):
        out = ["--out", str(tmp_path)]
        attention = ["--attention", "softmax,adaptive"]
        adaptive_transformer.main(["--smoke", "--timing", "2", *attention, *out])
        assert "| adaptive |" in capsys.readouterr().out
        adaptive_transformer.main(["--report-only", *out])
        assert "| adaptive |" in capsys.readouterr().out

    def test_a_wrong_mapping_is_refused(self, tmp_path, capsys):
        with pytest.raises(SystemExit):
            adaptive_transformer.main(["--smoke", "--attention", "sofmax", "--out", str(tmp_path)])
        said = capsys.readouterr().err
        assert "--attention" in said
        assert "sofmax" in said


def test_no_runs_no_figures():
    assert list(adaptive_report.figures({})) == []
