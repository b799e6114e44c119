"""Translation with a Transformer with adaptively sparse heads (Correia et al. 2019).

    python -m examples.adaptive_transformer --smoke --out runs/smoke
    python -m examples.adaptive_transformer --data multi30k --out runs/adaptive --seeds 0,1,2

A Transformer translates German into English. Each configuration replaces softmax by one mapping in
encoder self-attention, context attention and decoder self-attention. ``adaptive`` is entmax with α
= 1 + sigmoid(a), eq. 10: each head learns its a. α starts at 1.5 (in the paper, at random) and
learns after ``--alpha-start`` steps: in the first ones all heads push it towards 1. Training uses
cross-entropy with label smoothing and Adam; the learning rate has a linear warm-up and then decays
with the inverse square root of the step. Data: Multi30k, tokenized and in lower case
(github.com/multi30k/dataset), files ``train.*.de``, ``train.*.en``, ``val.*.de`` and ``val.*.en``,
or with ``.gz``. The last 1,000 training pairs are held out to choose the epoch with the highest
share of correct most probable words. ``val`` is the test set. Under torchrun the processes share
every batch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import sacrebleu
import torch
from torch import Tensor, nn

import regmax
from regmax.analysis import Trajectories
from regmax.nn import beam_search

from .adaptive_report import report
from .adaptive_statistics import alphas, example, statistics
from .common import toys
from .common.mappings import listed
from .common.processes import Process
from .common.programs import carry_out, conduct
from .common.recurrent import Corpus
from .common.runs import Trainee, generator, parse, parser
from .common.text import BOS, EOS, PAD, Pair, Vocabulary, bucketed, pad, parallel, shifted
from .common.transformer import ADAPTIVE, Transformer

HELD_OUT = 1000
LONGEST = 60
"""The greatest length of a translation in words."""
POINTS = 200
"""The approximate number of points of a trajectory of α."""
SMOKE = {
    "epochs": 3,
    "batch": 40,
    "width": 32,
    "layers": 2,
    "heads": 2,
    "train": 400,
    "min_count": 1,
    "warmup": 20,
    "alpha_start": 10,
    "rate": 5e-3,
    "beam": 2,
}


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of the program."""
    made = parser(__doc__)
    add = made.add_argument
    add("--source", default="de", help="language to translate from (%(default)s)")
    add("--target", default="en", help="language to translate to (%(default)s)")
    add("--train", type=int, help="how many training pairs, the first ones (all)")
    add("--min-count", type=int, default=3, help="rarer words are unknown (%(default)s)")
    mappings = f"softmax,entmax15,{ADAPTIVE}"
    add("--attention", type=_attentions, default=mappings, help="mappings (%(default)s)")
    add("--width", type=int, default=256, help="size of states, embeddings (%(default)s)")
    add("--layers", type=int, default=3, help="in encoder and decoder (%(default)s)")
    add("--heads", type=int, default=8, help="of each attention block (%(default)s)")
    add("--dropout", type=float, default=0.1, help="(%(default)s)")
    add("--rate", type=float, default=2e-3, help="highest learning rate (%(default)s)")
    add("--alpha-rate", type=float, default=10.0, help="how much faster α learns (%(default)s)")
    add("--alpha-start", type=int, default=1400, help="steps before α learns (%(default)s)")
    add("--warmup", type=int, default=400, help="steps before the highest rate (%(default)s)")
    add("--beam", type=int, default=5, help="hypotheses in the beam (%(default)s)")
    return parse(made, argv, SMOKE)


def _attentions(text: str) -> list[str]:
    names = text.split(",")
    listed(",".join(name for name in names if name != ADAPTIVE) or "softmax")
    return names


def load(args: argparse.Namespace) -> Corpus:
    """The data that the options name."""
    if args.smoke:
        pairs, test, held = toys.translations(args.train + 40), toys.translations(40, seed=1), 40
    else:
        pairs = parallel(args.data, "train", args.source, args.target)
        test = parallel(args.data, "val", args.source, args.target)
        held = HELD_OUT
    trained = pairs[:-held][: args.train]
    source, target = (Vocabulary((pair[k] for pair in trained), args.min_count) for k in (0, 1))
    return Corpus(trained, pairs[-held:], test, source, target)


class Hypotheses(NamedTuple):
    """The decoder's state, one row per hypothesis."""

    words: Tensor
    memory: Tensor
    source: Tensor

    def select(self, rows: Tensor) -> Hypotheses:
        """The state of the hypotheses ``rows``; an index may occur several times."""
        return Hypotheses(*(item[rows] for item in self))


class Translator(Trainee):
    """A Transformer with a mapping as its attention."""

    clip = 1.0

    def __init__(
        self, args: argparse.Namespace, corpus: Corpus, process: Process, attention: str, seed: int
    ) -> None:
        self.args, self.corpus, self.seed, self.process = args, corpus, seed, process
        shape = (args.width, args.layers, args.heads)
        self.transformer = Transformer(corpus.sizes(), *shape, attention, args.dropout)
        self.model = self.transformer.to(process.device)
        self.optimizer = torch.optim.Adam(self._groups(), betas=(0.9, 0.98), eps=1e-9)
        self.criterion = regmax.FenchelYoungLoss(
            regmax.regularizer("entropy"), label_smoothing=0.1, reduction="sum"
        )
        self.steps = 0
        self.every = max(1, len(corpus.train) * args.epochs // args.batch // POINTS)
        self.record = Trajectories(self.model)

    def _groups(self) -> list[dict[str, Any]]:
        """Parameter groups: the weights, and α with its factor of the rate and its first step."""
        named = list(self.model.named_parameters())
        alphas = [t for name, t in named if ".omega." in name]
        weights = [t for name, t in named if ".omega." not in name]
        own = {"params": alphas, "faster": self.args.alpha_rate, "start": self.args.alpha_start}
        return [{"params": weights, "faster": 1.0, "start": 0}] + [own] * bool(alphas)

    def batches(self, epoch: int) -> list[list[int]]:
        lengths = [len(source) + len(target) for source, target in self.corpus.train]
        return bucketed(lengths, self.args.batch, generator(self.seed, epoch))

    def loss(self, model: nn.Module, batch: list[int]) -> tuple[Tensor, int]:
        if self.steps % self.every == 0:
            self.record.step(self.steps)
        self.steps += 1
        warm = self.steps / self.args.warmup
        for group in self.optimizer.param_groups:
            rate = self.args.rate * group["faster"] * (self.steps > group["start"])
            group["lr"] = rate * min(warm, warm**-0.5)
        source, given, wanted = self._tensors([self.corpus.train[k] for k in batch])
        real = wanted != PAD
        return self.criterion(model(source, given)[real], wanted[real]), int(real.sum())

    def validate(self, epoch: int) -> dict[str, float]:
        held, total = self.corpus.held, dict.fromkeys(("right", "nats", "words"), 0.0)
        for part in self.process.share(self._parts(held)):
            source, given, wanted = self._tensors([held[k] for k in part])
            real = wanted != PAD
            logits, words = self.model(source, given)[real], wanted[real]
            total["right"] += float((logits.argmax(-1) == words).sum())
            total["nats"] += float(nn.functional.cross_entropy(logits, words, reduction="sum"))
            total["words"] += len(words)
        total = self.process.sum(total)
        right, nats = (total[key] / total["words"] for key in ("right", "nats"))
        return {"score": 100 * right, "nats": nats}

    def evaluate(self) -> dict[str, Any]:
        test, translations = self.corpus.test, self._translations()
        bleu = sacrebleu.BLEU(tokenize="none", force=True)
        score = bleu.corpus_score(translations, [[" ".join(target) for _, target in test]])
        given = (self._tensors([test[k] for k in part])[:2] for part in self._parts(test))
        words = next((s, t) for s, t in test if 8 <= len(s) <= 12 and 8 <= len(t) <= 12)
        return {
            "bleu": score.score,
            "signature": str(bleu.get_signature()),
            "translations": translations,
            **alphas(self.transformer, self.record),
            **statistics(self.transformer, given),
            "source": [*words[0]],
            "target": ["<s>", *words[1]],
            "heads": example(self.transformer, *self._tensors([words])[:2]),
        }

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps, "record": self.record.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.record.load_state_dict(state["record"])

    def _tensors(self, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor, Tensor]:
        """The source, the decoder's inputs and its targets, each (n, longest)."""
        device = self.process.device
        source = pad([self.corpus.source.encode(s) for s, _ in pairs], device)
        return source, *shifted([self.corpus.target.encode(t) for _, t in pairs], device)

    def _parts(self, pairs: Sequence[Pair]) -> list[list[int]]:
        """Batches of all pairs, as indices."""
        return bucketed([len(source) for source, _ in pairs], self.args.batch)

    def _translations(self) -> list[str]:
        """The best translation that beam search finds for each source of the test set."""
        test, parts = self.corpus.test, self._parts(self.corpus.test)
        mine = [self._translated([test[k] for k in part]) for part in self.process.share(parts)]
        translations = [""] * len(test)
        for part, sentences in zip(parts, self.process.gather(mine), strict=True):
            for k, sentence in zip(part, sentences, strict=True):
                translations[k] = sentence
        return translations

    def _translated(self, pairs: Sequence[Pair]) -> list[str]:
        source, device = self._tensors(pairs)[0], self.process.device
        nothing = torch.empty(len(pairs), 0, dtype=torch.int64, device=device)
        start = Hypotheses(nothing, self.transformer.encode(source), source)
        first = torch.full_like(source[:, 0], BOS)
        found = beam_search(self._next, start, first, EOS, self.args.beam, LONGEST)
        return [" ".join(self.corpus.target.decode(one.best)) for one in found]

    def _next(self, last: Tensor, state: Hypotheses) -> tuple[Tensor, Hypotheses]:
        """Probabilities of the next word."""
        state = state._replace(words=torch.cat([state.words, last[:, None]], 1))
        x = self.transformer.decode(state.memory, state.source, state.words)[:, -1]
        return self.transformer.logits(x).softmax(-1), state


def main(argv: Sequence[str] | None = None) -> None:
    """Train the unfinished runs, and write tables and figures of all finished ones."""
    conduct(options(argv), _train, report)


def _train(args: argparse.Namespace, here: Process) -> None:
    corpus = load(args)
    makes = {name: partial(Translator, args, corpus, here, name) for name in args.attention}
    carry_out(args, makes, ("attention",), here)


if __name__ == "__main__":
    main()
