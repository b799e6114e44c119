"""Morphological inflection with sparse attention and sparse outputs (Peters et al. 2019, §4.1).

    python -m examples.inflection --smoke --out runs/smoke
    python -m examples.inflection --data sigmorphon2018.tar.xz --out runs/inflection \\
        --languages 20 --seeds 0,1,2 --output softmax,entmax15,sparsemax

One model for all languages reads the language, the tags and the lemma's characters, and writes the
form's characters. The attention and the output can use any mapping; the loss is the Fenchel–Young
loss of the output mapping. Data: CoNLL–SIGMORPHON 2018 task 1 (github.com/sigmorphon/conll2018),
files ``LANGUAGE-train-medium``, ``LANGUAGE-train-high`` and ``LANGUAGE-dev`` in a folder or a tar
archive. One in twenty training examples is held out to set the learning rate and to choose the
epoch; ``dev`` is the test set. Under torchrun the processes share every batch.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from regmax.nn import Found
from regmax.plots import attentions

from .common import tables, toys, trees
from .common.mappings import listed
from .common.processes import Process
from .common.programs import carry_out, conduct, publish
from .common.recurrent import Corpus, Recurrent
from .common.runs import generator, parse, parser, results
from .common.seq2seq import Shape
from .common.text import Inflection, Pair, Vocabulary, inflections

LONGEST = 60
"""The greatest length of a form in characters."""
SHOWN = 4
"""The number of test examples whose attention a run stores, and of search trees."""
SMOKE = {
    "output": "softmax,entmax15",
    "attention": "softmax,sparsemax",
    "epochs": 5,
    "batch": 32,
    "hidden": 48,
    "embedding": 32,
    "dropout": 0.0,
    "rate": 1e-2,
}


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of the program."""
    made = parser(__doc__)
    add = made.add_argument
    add("--setting", choices=("medium", "high"), default="medium", help="size of training data")
    add("--languages", default="all", help="all, names with commas, or a number to draw (all)")
    add("--output", type=listed, default="softmax,entmax15,sparsemax", help="mappings")
    add("--attention", type=listed, default="softmax,entmax15,sparsemax", help="mappings")
    add("--embedding", type=int, default=300, help="size of an embedding (%(default)s)")
    add("--hidden", type=int, default=300, help="size of a state (%(default)s)")
    add("--layers", type=int, default=2, help="of LSTM, in encoder and decoder (%(default)s)")
    add("--dropout", type=float, default=0.3, help="(%(default)s)")
    add("--rate", type=float, default=1e-3, help="initial learning rate of Adam (%(default)s)")
    add("--beam", type=int, default=5, help="hypotheses in the beam (%(default)s)")
    return parse(made, argv, SMOKE)


def load(args: argparse.Namespace) -> tuple[Corpus, list[Inflection]]:
    """The data that the options name; the test examples are those of ``corpus.test``."""
    if args.smoke:
        known, dev = toys.inflections(400, seed=0), toys.inflections(40, seed=1)
    else:
        known = inflections(args.data, f"train-{args.setting}")
        dev = inflections(args.data, "dev")
    chosen = languages(args.languages, sorted(known.keys() & dev.keys()))
    examples = [_pair(example) for name in chosen for example in known[name]]
    order = torch.randperm(len(examples), generator=generator(0)).tolist()
    shuffled = [examples[k] for k in order]
    held = len(examples) // 20
    test = [example for name in chosen for example in dev[name]]
    corpus = Corpus(
        shuffled[held:],
        shuffled[:held],
        [_pair(example) for example in test],
        Vocabulary(source for source, _ in examples),
        Vocabulary(target for _, target in examples),
    )
    return corpus, test


def languages(wanted: str, known: Sequence[str]) -> list[str]:
    """ "all", names with commas, or a number of random ones; a smaller number gives a subset."""
    if wanted == "all":
        return list(known)
    if wanted.isdigit():
        return sorted(random.Random("languages").sample(known, len(known))[: int(wanted)])
    unknown = [name for name in wanted.split(",") if name not in known]
    if unknown:
        raise ValueError(f"languages: no data of {unknown}; accepted: {', '.join(known)}")
    return wanted.split(",")


def _pair(example: Inflection) -> Pair:
    return example.source, example.target


def _drawable(example: Inflection) -> bool:
    """Whether matplotlib's font has the letters: Latin, Greek, Cyrillic and Armenian ones."""
    return all(ord(letter) < 0x590 for letter in example.lemma + example.form)


class Inflector(Recurrent):
    """A model with one mapping for the output and one for the attention."""

    def __init__(
        self,
        args: argparse.Namespace,
        corpus: Corpus,
        test: list[Inflection],
        process: Process,
        names: tuple[str, str],
        seed: int,
    ) -> None:
        sizes = (args.embedding, args.hidden, args.layers, args.dropout)
        super().__init__(corpus, Shape(*corpus.sizes(), *sizes), *names, args.batch, seed, process)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.rate)
        self.names, self.beam, self.test = names, args.beam, test
        self.previous = float("inf")

    def validate(self, epoch: int) -> dict[str, float]:
        held, group = self.held(), self.optimizer.param_groups[0]
        measures = {"held": held["loss"], "score": 100 * held["exact"], "rate": group["lr"]}
        if held["loss"] > self.previous:
            group["lr"] /= 2
        self.previous = held["loss"]
        return measures

    def state(self) -> dict[str, Any]:
        return {"previous": self.previous}

    def load_state(self, state: dict[str, Any]) -> None:
        self.previous = state["previous"]

    def evaluate(self) -> dict[str, Any]:
        found = self.search(self.corpus.test, self.beam, LONGEST)
        answers = list(zip(self.test, found, strict=True))
        by_language = {
            name: self._shares([pair for pair in answers if pair[0].language == name])
            for name in sorted({example.language for example in self.test})
        }
        drawn = [_pair(example) for example in self.test if _drawable(example)]
        shown = drawn[:: max(1, len(drawn) // SHOWN)][:SHOWN]
        return {
            "names": list(self.names),
            "accuracy": sum(one["accuracy"] for one in by_language.values()) / len(by_language),
            "all": self._shares(answers),
            "languages": by_language,
            **self.nonzeros(self.corpus.test),
            "attention": [self.attention(*pair) for pair in shown],
            "trees": self._trees(answers),
        }

    def _shares(self, answers: list[tuple[Inflection, Found]]) -> dict[str, float]:
        """Percentages of answers that are correct, certified, or the only hypothesis."""
        shares = {
            "accuracy": [self._form(found.best) == example.form for example, found in answers],
            "covered": [found.covered for _, found in answers],
            "optimal": [found.optimal for _, found in answers],
            "alone": [found.covered and len(found.hypotheses) == 1 for _, found in answers],
        }
        return {key: 100 * sum(which) / len(which) for key, which in shares.items()}

    def _trees(self, answers: list[tuple[Inflection, Found]]) -> list[dict[str, Any]]:
        """All hypotheses of some words with three or more: those with the likeliest second."""
        several = [
            (example, found.hypotheses)
            for example, found in answers
            if found.covered and len(found.hypotheses) > 2 and _drawable(example)
        ]
        several.sort(key=lambda item: -item[1][1][1])
        return [
            {
                "language": example.language,
                "lemma": example.lemma,
                "tags": list(example.tags),
                "form": example.form,
                "hypotheses": [
                    [self.corpus.target.decode(numbers), logp] for numbers, logp in hypotheses
                ],
            }
            for example, hypotheses in several[:SHOWN]
        ]

    def _form(self, numbers: list[int]) -> str:
        return "".join(self.corpus.target.decode(numbers))


def report(out: Path) -> None:
    """Write and print ``inflection.md``, and draw the figures of the runs in ``out``."""
    runs = tables.by_name(results(out))
    publish(out, "inflection", [_table(runs), _languages(runs)] if runs else [])
    _draw_trees(runs, out / "trees.png")
    _draw_attention(runs, out)


def _table(runs: dict[str, list[tables.Run]]) -> str:
    def row(seeds: list[tables.Run]) -> list[str]:
        def over(value: Callable[[dict[str, Any]], float], digits: int = 1) -> str:
            return tables.mean_sd([value(run["result"]) for run in seeds], digits)

        return [
            *seeds[0]["result"]["names"],
            over(lambda r: r["accuracy"], 2),
            over(lambda r: r["all"]["covered"]),
            over(lambda r: r["all"]["optimal"]),
            over(lambda r: r["all"]["alone"]),
            over(lambda r: r["output_nonzeros"], 2),
            over(lambda r: r["attention_nonzeros"], 2),
            tables.mean_sd([tables.seconds(run) for run in seeds], 1),
            str(len(seeds)),
        ]

    head = (
        "output",
        "attention",
        "accuracy, %",
        "beam holds all, %",
        "proven best, %",
        "one hypothesis, %",
        "symbols > 0",
        "weights > 0",
        "s per epoch",
        "seeds",
    )
    return tables.markdown(head, map(row, runs.values()))


def _languages(runs: dict[str, list[tables.Run]]) -> str:
    """Accuracy by language."""

    def accuracy(seeds: list[tables.Run], language: str) -> str:
        return tables.mean_sd([r["result"]["languages"][language]["accuracy"] for r in seeds], 1)

    first = next(iter(runs.values()))[0]["result"]["languages"]
    rows = ([name, *(accuracy(seeds, name) for seeds in runs.values())] for name in first)
    return tables.markdown(["accuracy, %", *runs], rows)


def _draw_trees(runs: dict[str, list[tables.Run]], path: Path) -> None:
    """Draw all hypotheses of a few words, from the most accurate configuration with such words."""
    able = [seeds[0]["result"] for seeds in runs.values() if seeds[0]["result"]["trees"]]
    if not able:
        return
    best = max(able, key=lambda result: result["accuracy"])
    titled = []
    for one in best["trees"]:
        title = f"{one['language']}: {one['lemma']}, {';'.join(one['tags'])} → {one['form']}"
        titled.append((title, trees.tree([(form, logp) for form, logp in one["hypotheses"]])))
    trees.draw(titled).savefig(path)


def _draw_attention(runs: dict[str, list[tables.Run]], out: Path) -> None:
    """Draw ``attention-1.png`` and so on: one word with each attention mapping and one output."""
    of: dict[str, list[dict[str, Any]]] = {}
    for seeds in runs.values():
        output, attention = seeds[0]["result"]["names"]
        of.setdefault(output, []).append({"name": attention, **seeds[0]["result"]})
    if not of:
        return
    output, shown = max(of.items(), key=lambda item: max(one["accuracy"] for one in item[1]))
    for k, word in enumerate(shown[0]["attention"]):
        weights = {
            f"{one['name']}, {output} output": torch.tensor(one["attention"][k]["weights"])
            for one in shown
        }
        figure = attentions(weights, word["source"], word["target"])
        figure.savefig(out / f"attention-{k + 1}.png", dpi=150)


def main(argv: Sequence[str] | None = None) -> None:
    """Train the unfinished runs, and write tables and figures of all finished ones."""
    conduct(options(argv), _train, report)


def _train(args: argparse.Namespace, here: Process) -> None:
    corpus, test = load(args)
    pairs = {f"{pair[0]}+{pair[1]}": pair for pair in product(args.output, args.attention)}
    makes = {name: partial(Inflector, args, corpus, test, here, p) for name, p in pairs.items()}
    carry_out(args, makes, ("output", "attention"), here)


if __name__ == "__main__":
    main()
