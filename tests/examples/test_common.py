"""What the experiments share: text, runs that resume, processes, search with certificates."""

import gzip
import itertools
import json

import pytest
import torch
from torch import nn

pytest.importorskip("tqdm")

from examples.common import runs
from examples.common.mappings import omega
from examples.common.processes import Process
from examples.common.seq2seq import Seq2Seq, Shape
from examples.common.text import bucketed, inflections, pad, parallel

HERE = Process(torch.device("cpu"))


# -- text ----------------------------------------------------------------------------------------


@pytest.fixture
def tables(tmp_path):
    folder = tmp_path / "task1"
    folder.mkdir()
    (folder / "latin-train-medium").write_text("amo\tamat\tV;3;SG\nsum\test\tV;3;SG\n", "utf-8")
    (folder / "old-irish-train-medium").write_text("céol\tcíuil\tN;GEN\n", "utf-8")
    (folder / "latin-dev").write_text("do\tdat\tV;3;SG\n", "utf-8")
    return folder


def test_inflections(tables):
    found = inflections(tables, "train-medium")
    assert list(found) == ["latin", "old-irish"]
    assert found["latin"][1].source == ["<latin>", "<V>", "<3>", "<SG>", "s", "u", "m"]
    assert found["old-irish"][0].target == list("cíuil")
    assert [e.form for e in inflections(tables, "dev")["latin"]] == ["dat"]


def test_inflections_that_are_not_there(tables):
    with pytest.raises(ValueError, match="data: no files LANGUAGE-train-high"):
        inflections(tables, "train-high")


def test_parallel(tmp_path):
    # a separator of Unicode does not end a line; a pair with an empty side is no pair
    french, english = "un chat\u2028noir\n\ndeux\n", "a black cat\nnothing\ntwo\n"
    (tmp_path / "train.lc.norm.tok.fr.gz").write_bytes(gzip.compress(french.encode()))
    (tmp_path / "train.lc.norm.tok.en").write_text(english, "utf-8")
    found = parallel(tmp_path, "train", "fr", "en")
    assert found == [(["un", "chat", "noir"], ["a", "black", "cat"]), (["deux"], ["two"])]


def test_parallel_of_different_lengths(tmp_path):
    (tmp_path / "val.fr").write_text("un\ndeux\n", "utf-8")
    (tmp_path / "val.en").write_text("one\n", "utf-8")
    with pytest.raises(ValueError, match="data: val has 2 lines in fr, 1 in en"):
        parallel(tmp_path, "val", "fr", "en")
    with pytest.raises(ValueError, match=r"data: no file train\*\.fr"):
        parallel(tmp_path, "train", "fr", "en")


def test_buckets():
    lengths = torch.randint(1, 30, (500,), generator=torch.Generator().manual_seed(0)).tolist()
    batches = bucketed(lengths, 8, runs.generator(0, 1))
    assert sorted(itertools.chain(*batches)) == list(range(500))
    spread = [max(lengths[k] for k in b) - min(lengths[k] for k in b) for b in batches]
    assert sum(spread) / len(spread) < 3
    assert batches == bucketed(lengths, 8, runs.generator(0, 1))
    assert batches != bucketed(lengths, 8, runs.generator(0, 2))
    assert lengths[bucketed(lengths, 8)[0][0]] == max(lengths)


# -- mappings, tables, trees ---------------------------------------------------------------------


def test_steps_are_the_forward_pass():
    torch.manual_seed(0)
    model = Seq2Seq(Shape(9, 6, 5, 6, 1, 0.0), omega("entmax15")).double().eval()
    source, given = pad([[4, 5, 6, 7], [5, 8]]), torch.tensor([[1, 4, 5], [1, 5, 4]])
    scores, weights = model(source, given)
    state = model.start(source)
    for t in range(3):
        s, w, state = model.step(given[:, t], state)
        assert torch.allclose(s, scores[:, t])
        assert torch.allclose(w, weights[:, t])
    assert (weights[1, :, 2:] == 0).all()


# -- runs ----------------------------------------------------------------------------------------


class Line(runs.Trainee):
    """A line through 24 points, with dropout so that generators matter."""

    def __init__(self, stop=None):
        self.model = nn.Sequential(nn.Dropout(0.2), nn.Linear(3, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.x = torch.randn(24, 3, generator=torch.Generator().manual_seed(5))
        self.stop, self.calls = stop, 0

    def batches(self, epoch):
        return bucketed([1] * 24, 8, runs.generator(0, epoch))

    def loss(self, model, batch):
        x = self.x[batch]
        return (model(x).squeeze(-1) - x.sum(-1)).square().sum(), len(batch)

    def validate(self, epoch):
        if epoch == self.stop:
            raise KeyboardInterrupt
        self.calls += 1
        return {"score": -float((self.model(self.x).squeeze(-1) - self.x.sum(-1)).square().mean())}

    def evaluate(self):
        return {"weight": self.model[1].weight.tolist(), "calls": self.calls}

    def state(self):
        return {"calls": self.calls}

    def load_state(self, state):
        self.calls = state["calls"]


def run(out, make=Line, epochs=5, **described):
    return runs.train(make, "line:a=1", 3, epochs, out, HERE, described)


def untimed(result):
    return [{k: v for k, v in epoch.items() if k != "seconds"} for epoch in result["history"]]


def test_interrupted_and_resumed_is_uninterrupted(tmp_path):
    whole = run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", lambda: Line(stop=3))
    folder = runs.folder_of(tmp_path / "parts", "line:a=1", 3)
    assert sorted(path.name for path in folder.iterdir()) == ["best.pt", "last.pt"]
    torch.rand(7)  # another state of the generator
    parts = run(tmp_path / "parts")
    assert untimed(parts) == untimed(whole)
    assert parts["result"] == whole["result"]
    assert parts["result"]["calls"] == 5
    assert len({epoch["loss"] for epoch in whole["history"]}) == 5


def test_a_finished_run_is_not_run_again(tmp_path):
    first = run(tmp_path, rate=0.1)
    assert run(tmp_path, make=None, rate=0.1) == first
    assert runs.results(tmp_path) == [json.loads(json.dumps(first))]
    assert first["best"] == max(range(5), key=lambda k: first["history"][k]["score"])
    assert {path.name for path in (tmp_path / "line-a=1-3").iterdir()} == {"best.pt", "result.json"}
    with pytest.raises(ValueError, match=r"out: .* holds a run with rate 0.1, not 0.2"):
        run(tmp_path, rate=0.2)
