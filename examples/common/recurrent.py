"""Train and evaluate a recurrent encoder–decoder on pairs of symbol sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import regmax
from regmax.analysis import group_count
from regmax.nn import Found, beam_search

from .mappings import omega
from .processes import Process
from .runs import Trainee, generator
from .seq2seq import Seq2Seq, Shape, State, summed_loss
from .text import BOS, EOS, PAD, Pair, Vocabulary, bucketed, pad, shifted

T = TypeVar("T")


@dataclass(frozen=True)
class Corpus:
    """Training pairs, held-out pairs to choose the epoch, test pairs, and both vocabularies."""

    train: list[Pair]
    held: list[Pair]
    test: list[Pair]
    source: Vocabulary
    target: Vocabulary

    def sizes(self) -> tuple[int, int]:
        """Numbers of source symbols and of target symbols."""
        return len(self.source), len(self.target)


class Recurrent(Trainee):
    """A :class:`Seq2Seq` with mappings by name. Programs add optimizer, schedule and metrics."""

    def __init__(
        self,
        corpus: Corpus,
        shape: Shape,
        output: str,
        attention: str,
        batch: int,
        seed: int,
        process: Process,
    ) -> None:
        self.corpus, self.batch, self.seed, self.process = corpus, batch, seed, process
        self.seq2seq = Seq2Seq(shape, omega(attention)).to(process.device)
        self.model = self.seq2seq
        self.criterion = regmax.FenchelYoungLoss(omega(output), ignore_index=PAD, reduction="sum")

    def batches(self, epoch: int) -> list[list[int]]:
        lengths = [len(source) for source, _ in self.corpus.train]
        return bucketed(lengths, self.batch, generator(self.seed, epoch))

    def loss(self, model: nn.Module, batch: list[int]) -> tuple[Tensor, int]:
        source, given, wanted = self.tensors([self.corpus.train[k] for k in batch])
        scores, _ = model(source, given)
        return summed_loss(self.criterion, scores, wanted)

    def tensors(self, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor, Tensor]:
        """The source, the decoder's inputs and its targets, each (n, longest)."""
        source = pad([self.corpus.source.encode(s) for s, _ in pairs], self.process.device)
        targets = [self.corpus.target.encode(t) for _, t in pairs]
        return source, *shifted(targets, self.process.device)

    def held(self) -> dict[str, float]:
        """Metrics on the held-out pairs, with correct previous symbols: the mean loss per symbol,
        the share of symbols that are the most probable, and the share of sequences in which all are
        (greedy search finds these)."""
        total = dict.fromkeys(("loss", "symbols", "right", "exact"), 0.0)
        for pairs in self._mine(self.corpus.held):
            source, given, wanted = self.tensors(pairs)
            scores, _ = self.seq2seq(source, given)
            loss, count = summed_loss(self.criterion, scores, wanted)
            there = wanted != PAD
            right = scores.argmax(-1) == wanted
            total["loss"] += float(loss)
            total["symbols"] += count
            total["right"] += float((right & there).sum())
            total["exact"] += float((right | ~there).all(1).sum())
        total = self.process.sum(total)
        return {
            "loss": total["loss"] / total["symbols"],
            "right": total["right"] / total["symbols"],
            "exact": total["exact"] / len(self.corpus.held),
        }

    def search(self, pairs: Sequence[Pair], beam: int, longest: int) -> list[Found]:
        """The result of beam search for each source."""

        def found(part: list[Pair]) -> list[Found]:
            source, *_ = self.tensors(part)
            start, first = self.seq2seq.start(source), torch.full_like(source[:, 0], BOS)
            return beam_search(self._next, start, first, EOS, beam, longest)

        return self._over(pairs, found)

    def nonzeros(self, pairs: Sequence[Pair]) -> dict[str, float]:
        """Means over all steps, with correct previous symbols: the number of symbols with nonzero
        probability, of source symbols with nonzero weight, and of groups among these."""
        keys = ("output_nonzeros", "attention_nonzeros", "attention_groups")
        total = dict.fromkeys((*keys, "steps"), 0.0)
        for part in self._mine(pairs):
            source, given, wanted = self.tensors(part)
            scores, weights = self.seq2seq(source, given)
            steps = wanted != PAD
            total["output_nonzeros"] += float((self.criterion.mapping(scores[steps]) > 0).sum())
            total["attention_nonzeros"] += float((weights[steps] > 0).sum())
            groups = group_count(weights[steps], self.seq2seq.mapping.omega)
            total["attention_groups"] += float(groups.sum())
            total["steps"] += float(steps.sum())
        total = self.process.sum(total)
        return {key: total[key] / total["steps"] for key in keys}

    def attention(self, source: Sequence[str], target: Sequence[str]) -> dict[str, Any]:
        """The attention weights of each target symbol, and of </s>, over the source."""
        numbers, given, _ = self.tensors([(list(source), list(target))])
        _, weights = self.seq2seq(numbers, given)
        return {
            "source": list(source),
            "target": [*target, "</s>"],
            "weights": weights[0].tolist(),
        }

    def _next(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        scores, _, state = self.seq2seq.step(words, state)
        return self.criterion.mapping(scores), state

    def _mine(self, pairs: Sequence[Pair]) -> list[list[Pair]]:
        """This process's share of the pairs, in batches."""
        batches = bucketed([len(source) for source, _ in pairs], 2 * self.batch)
        return [[pairs[k] for k in batch] for batch in self.process.share(batches)]

    def _over(self, pairs: Sequence[Pair], what: Callable[[list[Pair]], list[T]]) -> list[T]:
        """The results of ``what`` for all pairs, in order. The processes share the batches."""
        batches = bucketed([len(source) for source, _ in pairs], 2 * self.batch)
        parts = self.process.gather([what(part) for part in self._mine(pairs)])
        made = {
            k: one
            for batch, part in zip(batches, parts, strict=True)
            for k, one in zip(batch, part, strict=True)
        }
        return [made[k] for k in range(len(pairs))]
