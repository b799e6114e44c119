"""Translation with structured sparse attention (Niculae & Blondel 2017, §4.2 and C.3).

    python -m examples.structured_attention --smoke --out runs/smoke
    python -m examples.structured_attention --data multi30k --out runs/structured --seeds 0,1,2

A recurrent encoder–decoder translates French into English. Each configuration has one mapping in
the attention. All other settings are OpenNMT's defaults of that time, as in the paper. Data:
Multi30k, tokenized and in lower case (github.com/multi30k/dataset), files ``train.*.fr``,
``train.*.en``, ``val.*.fr`` and ``val.*.en``, or with ``.gz``. The last 1,000 training pairs are
held out to choose the epoch; ``val`` is the test set. Under torchrun the processes share every
batch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from torch import Tensor, nn

from regmax.plots import attentions

from .common import tables, toys
from .common.mappings import listed
from .common.processes import Process
from .common.programs import carry_out, conduct, publish
from .common.recurrent import Corpus, Recurrent
from .common.runs import parse, parser, results
from .common.seq2seq import Shape, uniform_
from .common.text import Pair, Vocabulary, parallel

LONGEST_TRAINED, LONGEST = 50, 100
"""The greatest length of a sentence in words, in training and in testing (C.3)."""
HELD_OUT = 1000
SHOWN = 6
"""The number of test sentences whose attention a run stores."""
SMOKE = {
    "attention": "softmax,fusedmax,oscarmax",
    "epochs": 6,
    "batch": 32,
    "hidden": 64,
    "layers": 1,
    "dropout": 0.0,
    "optimizer": "adam",
    "rate": 5e-3,
}


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of the program."""
    made = parser(__doc__)
    made.set_defaults(epochs=13)
    add = made.add_argument
    add("--source", default="fr", help="language to translate from (%(default)s)")
    add("--target", default="en", help="language to translate to (%(default)s)")
    add("--train", type=int, help="how many training pairs, the first ones (all)")
    add("--min-count", type=int, default=2, help="rarer words are unknown (%(default)s)")
    mappings = "softmax,sparsemax,fusedmax,oscarmax,pnormmax"
    add("--attention", type=listed, default=mappings, help="mappings (%(default)s)")
    add("--hidden", type=int, default=500, help="size of states, embeddings (%(default)s)")
    add("--layers", type=int, default=2, help="of LSTM, in encoder and decoder (%(default)s)")
    add("--gamma", type=float, default=1.0, help="γ of the attention (%(default)s)")
    add("--dropout", type=float, default=0.3, help="(%(default)s)")
    add("--optimizer", choices=("sgd", "adam"), default="sgd", help="(%(default)s)")
    add("--rate", type=float, help="initial learning rate (1 for sgd, 0.001 for adam)")
    add("--constant", type=int, default=8, help="epochs before the rate halves every epoch (8)")
    add("--beam", type=int, default=5, help="hypotheses in the beam (%(default)s)")
    return parse(made, argv, SMOKE)


def load(args: argparse.Namespace) -> Corpus:
    """The data that the options name."""
    if args.smoke:
        pairs, test, held = toys.translations(1200, seed=0), toys.translations(60, seed=1), 60
    else:
        pairs = parallel(args.data, "train", args.source, args.target)
        test = parallel(args.data, "val", args.source, args.target)
        held = HELD_OUT
    short = [pair for pair in pairs[:-held] if max(map(len, pair)) <= LONGEST_TRAINED]
    trained = short[: args.train]
    return Corpus(
        trained,
        pairs[-held:],
        test,
        Vocabulary((source for source, _ in trained), args.min_count),
        Vocabulary((target for _, target in trained), args.min_count),
    )


class Translator(Recurrent):
    """A model with softmax as the output mapping and any mapping in the attention."""

    def __init__(
        self, args: argparse.Namespace, corpus: Corpus, process: Process, attention: str, seed: int
    ) -> None:
        shape = Shape(
            *corpus.sizes(),
            args.hidden,
            args.hidden,
            args.layers,
            args.dropout,
            bidirectional=False,
            gamma=args.gamma,
        )
        super().__init__(corpus, shape, "softmax", attention, args.batch, seed, process)
        uniform_(self.model, 0.1)
        kinds = {"sgd": (torch.optim.SGD, 1.0), "adam": (torch.optim.Adam, 1e-3)}
        kind, rate = kinds[args.optimizer]
        self.optimizer = kind(self.model.parameters(), lr=args.rate or rate)
        self.clip = 5.0
        self.args, self.name = args, attention

    def loss(self, model: nn.Module, batch: list[int]) -> tuple[Tensor, int]:
        total, _ = super().loss(model, batch)
        return total, len(batch)  # OpenNMT's learning rate is for the mean per sentence

    def validate(self, epoch: int) -> dict[str, float]:
        held, group = self.held(), self.optimizer.param_groups[0]
        measures = {"held": held["loss"], "score": 100 * held["right"], "rate": group["lr"]}
        if epoch + 1 >= self.args.constant:
            group["lr"] /= 2
        return measures

    def evaluate(self) -> dict[str, Any]:
        test = self.corpus.test
        found = self.search(test, self.args.beam, LONGEST)
        answers = [self.corpus.target.decode(one.best) for one in found]
        references = [" ".join(target) for _, target in test]
        bleu = sacrebleu.BLEU(tokenize="none", force=True)
        score = bleu.corpus_score([" ".join(answer) for answer in answers], [references])
        shown = _some(test)
        return {
            "attention": self.name,
            "bleu": score.score,
            "signature": str(bleu.get_signature()),
            "held_right": 100 * self.held()["right"],
            **self.nonzeros(test),
            "shown": [self.attention(test[k][0], answers[k]) for k in shown],
        }


def _some(test: Sequence[Pair]) -> list[int]:
    """Test sentences of 8 to 14 words, spread over the test set."""
    fit = [k for k, (source, _) in enumerate(test) if 8 <= len(source) <= 14] or [0]
    return fit[:: max(1, len(fit) // SHOWN)][:SHOWN]


def report(out: Path) -> None:
    """Write and print ``structured_attention.md``, and draw the figures of the runs in ``out``."""
    runs = tables.by_name(results(out))
    publish(out, "structured_attention", [_table(runs)] if runs else [])
    _draw_attention(runs, out)


def _table(runs: dict[str, list[tables.Run]]) -> str:
    def row(name: str, seeds: list[tables.Run]) -> list[str]:
        def over(key: str, digits: int) -> str:
            return tables.mean_sd([run["result"][key] for run in seeds], digits)

        seconds = tables.mean_sd([tables.seconds(run) for run in seeds], 1)
        return [
            name,
            over("bleu", 2),
            over("held_right", 2),
            over("attention_nonzeros", 2),
            over("attention_groups", 2),
            seconds,
            str(len(seeds)),
        ]

    head = ("attention", "BLEU", "words right, %", "weights > 0", "groups", "s per epoch", "seeds")
    return tables.markdown(head, (row(name, seeds) for name, seeds in runs.items()))


def _draw_attention(runs: dict[str, list[tables.Run]], out: Path) -> None:
    """Draw ``attention-1.png`` and so on: one sentence with each mapping and its translation."""
    first = {name: seeds[0]["result"]["shown"] for name, seeds in runs.items()}
    for k, shown in enumerate(zip(*first.values(), strict=True)):
        of = dict(zip(first, shown, strict=True))
        figure = attentions(
            {name: torch.tensor(one["weights"], dtype=torch.float64) for name, one in of.items()},
            shown[0]["source"],
            {name: one["target"] for name, one in of.items()},
            clusters=[name for name in of if name.startswith("oscar")],
        )
        figure.savefig(out / f"attention-{k + 1}.png", dpi=150)


def main(argv: Sequence[str] | None = None) -> None:
    """Train the unfinished runs, and write tables and figures of all finished ones."""
    conduct(options(argv), _train, report)


def _train(args: argparse.Namespace, here: Process) -> None:
    corpus = load(args)
    makes = {name: partial(Translator, args, corpus, here, name) for name in args.attention}
    carry_out(args, makes, ("attention",), here)


if __name__ == "__main__":
    main()
