"""Translation with a Transformer whose heads learn how sparse they are (Correia et al. 2019).

    python -m examples.adaptive_transformer --data multi30k --out runs/adaptive \\
        --attention softmax,entmax15,adaptive --seeds 0,1,2

trains one model for each kind of attention and seed on Multi30k, German to English, and draws the
paper's figures 2 to 6 from these runs. ``--data`` is a folder with ``train.lc.norm.tok.de`` and so
on (README.md of this folder says where from); the last 1,000 training pairs choose the epoch, and
``val`` is the test set. ``--attention`` takes names of regmax's mappings (``sparsemax``,
``entmax:alpha=1.3``), and ``adaptive``: entmax with α = 1 + sigmoid(a), eq. 10, with one learned a
for each head of encoder, context and decoder attention. The loss is cross-entropy with label
smoothing, the optimizer Adam with a linear warm-up, then the inverse square root of the step.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import sacrebleu
import torch
from torch import Tensor, nn

from .adaptive_figures import report
from .adaptive_statistics import example, statistics
from .common import toys
from .common.mappings import omega
from .common.processes import Process, process
from .common.runs import (
    Trainee,
    generator,
    parse,
    parser,
    progress,
    settings,
    train,
    write_json,
)
from .common.search import beam_search
from .common.text import PAD, Pair, Vocabulary, bucketed, pad, parallel, shifted
from .common.timing import interleaved
from .common.transformer import ADAPTIVE, Transformer

HELD_OUT = 1000
"""Training pairs that choose the epoch."""
LONGEST = 60
"""Words at most in a translation."""
SMOKE = {
    "epochs": 3,
    "width": 32,
    "layers": 2,
    "heads": 2,
    "train": 400,
    "batch": 40,
    "warmup": 20,
    "rate": 5e-3,
    "min_count": 1,
    "beam": 2,
    "attention": ["softmax", "entmax15", ADAPTIVE],
}


def main(argv: Sequence[str] | None = None) -> None:
    """Train what is not trained yet; then the table and the figures of all that is in ``--out``."""
    args = parse(_parser(), argv, SMOKE)
    with process(args.device) as one:
        if not args.report_only:
            _run(args, one)
        if one.main:
            report(args.out)


def _parser() -> argparse.ArgumentParser:
    made = parser(__doc__)
    add = made.add_argument
    everything = ["softmax", "entmax15", ADAPTIVE]
    add(
        "--attention", type=_attentions, default=everything, help="kinds of attention, a comma list"
    )
    add("--width", type=int, default=256, help="size of the model's vectors (%(default)s)")
    add("--layers", type=int, default=3, help="of encoder and decoder each (%(default)s)")
    add("--heads", type=int, default=8, help="attention heads of a layer (%(default)s)")
    add("--dropout", type=float, default=0.1, help="after each block (%(default)s)")
    add("--rate", type=float, default=1e-3, help="the highest learning rate (%(default)s)")
    add("--warmup", type=int, default=800, help="steps until then (%(default)s)")
    add("--train", type=int, help="take the first so many training pairs only")
    add("--min-count", type=int, default=3, help="rarer words are unknown (%(default)s)")
    add("--beam", type=int, default=5, help="hypotheses that translation follows (%(default)s)")
    return made


def _attentions(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name != ADAPTIVE:
            omega(name)  # says now what is wrong with a name
    return names


def _run(args: argparse.Namespace, one: Process) -> None:
    data = Data.read(args)
    makes = {name: partial(Translation, args, name, data, one) for name in args.attention}
    if args.timing:
        timing = interleaved(makes, args.timing, one)
        if one.main:
            args.out.mkdir(parents=True, exist_ok=True)
            write_json(args.out / "timing.json", timing)
        return
    described = settings(args, ["attention"])
    for seed, name in itertools.product(args.seeds, args.attention):
        train(makes[name], name, seed, args.epochs, args.out, one, described)


@dataclass(frozen=True)
class Data:
    """Sentence pairs and the vocabularies of the training part, source and target."""

    train: list[Pair]
    held_out: list[Pair]
    test: list[Pair]
    vocabularies: tuple[Vocabulary, Vocabulary]

    @classmethod
    def read(cls, args: argparse.Namespace) -> Data:
        if args.smoke:
            pairs, test = toys.translations(args.train + 40), toys.translations(40, seed=1)
            held_out = 40
        else:
            pairs, test = (parallel(args.data, part, "de", "en") for part in ("train", "val"))
            held_out = HELD_OUT
        train = pairs[:-held_out][: args.train]
        source, target = (Vocabulary((p[k] for p in train), args.min_count) for k in (0, 1))
        return cls(train, pairs[-held_out:], test, (source, target))

    def encode(self, pairs: Sequence[Pair]) -> list[tuple[list[int], list[int]]]:
        """The numbers of the words."""
        source, target = self.vocabularies
        return [(source.encode(s), target.encode(t)) for s, t in pairs]


class Hypotheses(NamedTuple):
    """What the decoder needs of hypotheses, a row each."""

    said: Tensor
    memory: Tensor
    source: Tensor

    def select(self, rows: Tensor) -> Self:
        """Those of ``rows``."""
        return self._replace(**{key: item[rows] for key, item in self._asdict().items()})


class Translation(Trainee):
    """A Transformer on its way from one language to another."""

    model: Transformer
    clip = 1.0

    def __init__(self, args: argparse.Namespace, attention: str, data: Data, one: Process) -> None:
        self.args, self.data, self.process = args, data, one
        self.train, self.held_out, self.test = map(
            data.encode, (data.train, data.held_out, data.test)
        )
        words = (len(data.vocabularies[0]), len(data.vocabularies[1]))
        self.model = Transformer(
            words, args.width, args.layers, args.heads, attention, args.dropout
        ).to(one.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), betas=(0.9, 0.98), eps=1e-9)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1, reduction="sum")
        self.steps = 0
        self.trajectory: list[tuple[int, dict[str, list[list[float]]]]] = []
        self.every = max(1, len(self.train) * args.epochs // args.batch // 200)

    def batches(self, epoch: int) -> list[list[int]]:
        lengths = [len(target) for _, target in self.train]
        return bucketed(lengths, self.args.batch, generator(epoch))

    def loss(self, model: nn.Module, batch: list[int]) -> tuple[Tensor, int]:
        if self.steps % self.every == 0:
            self.trajectory.append((self.steps, self.model.alphas()))
        self.steps += 1
        warm = self.steps / self.args.warmup
        for group in self.optimizer.param_groups:
            group["lr"] = self.args.rate * min(warm, warm**-0.5)
        source, given, wanted = self._tensors([self.train[k] for k in batch])
        real = wanted != PAD
        logits = model(source, given)[real]
        return self.criterion(logits, wanted[real]), int(real.sum())

    def validate(self, epoch: int) -> dict[str, float]:
        total = {"right": 0.0, "nats": 0.0, "words": 0.0}
        pairs = self.process.share(self.held_out)
        for part in bucketed([len(s) for s, _ in pairs], self.args.batch):
            source, given, wanted = self._tensors([pairs[k] for k in part])
            real = wanted != PAD
            logits = self.model(source, given)[real]
            total["right"] += float((logits.argmax(-1) == wanted[real]).sum())
            total["nats"] += float(
                nn.functional.cross_entropy(logits, wanted[real], reduction="sum")
            )
            total["words"] += float(real.sum())
        total = self.process.sum(total)
        return {"score": total["right"] / total["words"], "nats": total["nats"] / total["words"]}

    def evaluate(self) -> dict[str, Any]:
        mine = self.process.share(self.test)
        said = self.process.gather(self._translate([source for source, _ in mine]))
        references = [" ".join(target) for _, target in self.data.test]
        bleu = sacrebleu.corpus_bleu(said, [references], tokenize="none", force=True)
        tensors = (
            self._tensors([self.test[k] for k in part])[:2]
            for part in bucketed([len(s) for s, _ in self.test], self.args.batch)
        )
        return {
            "bleu": bleu.score,
            "translations": said,
            "alpha": self.model.alphas(),
            "trajectory": self.trajectory,
            **statistics(self.model, tensors),
            "example": self._example(),
        }

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps, "trajectory": self.trajectory}

    def load_state(self, state: dict[str, Any]) -> None:
        self.steps, self.trajectory = state["steps"], state["trajectory"]

    def _example(self) -> dict[str, Any]:
        """A sentence of the test set, and how some heads look at it."""
        k = next(k for k, (s, t) in enumerate(self.test) if 8 <= len(s) <= 12 and len(t) >= 8)
        words = self.data.test[k]
        source, given, _ = self._tensors([self.test[k]])
        heads = example(self.model, source, given)
        return {"source": words[0], "target": ["<s>", *words[1]], "heads": heads}

    def _tensors(
        self, pairs: Sequence[tuple[list[int], list[int]]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Source (B, S), and what the decoder is given and should say, (B, T) both."""
        device = self.process.device
        source = pad([source for source, _ in pairs], device)
        return source, *shifted([target for _, target in pairs], device)

    def _translate(self, sources: Sequence[list[int]]) -> list[str]:
        """The most probable sentence that the beam finds for each source."""
        said = [""] * len(sources)
        parts = bucketed([len(source) for source in sources], self.args.batch)
        for part in progress(parts, "translation", self.process):
            source = pad([sources[k] for k in part], self.process.device)
            start = torch.empty(len(part), 0, dtype=torch.int64, device=source.device)
            state = Hypotheses(start, self.model.encode(source), source)
            found = beam_search(
                self._next, state, len(part), self.args.beam, LONGEST, source.device
            )
            for k, one in zip(part, found, strict=True):
                said[k] = " ".join(self.data.vocabularies[1].decode(one.best))
        return said

    def _next(self, last: Tensor, state: Hypotheses) -> tuple[Tensor, Hypotheses]:
        """Probabilities of the next word."""
        said = torch.cat([state.said, last[:, None]], 1)
        x = self.model.decode(state.memory, state.source, said)[:, -1]
        return self.model.logits(x).softmax(-1), state._replace(said=said)


if __name__ == "__main__":
    main(sys.argv[1:])
