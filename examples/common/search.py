"""Beam search that says when its answer is the best of all sequences.

Where the output mapping gives exact zeros, few hypotheses may have a probability other than 0, and
a beam can hold them all (Peters et al. 2019, §4.1). Two certificates, in rising strength of what
they tell of:

- *covered*: no hypothesis of nonzero probability, finished or not, ever fell off the beam; what it
  holds in the end is the whole distribution over sequences, with its probabilities.
- *optimal*: nothing that fell off, or that was cut at the length limit, has more probability than
  the answer. A sequence is never more probable than its beginning, so the answer is the mode.

*covered* implies *optimal*. Both are up to rounding of the probabilities, which are summed as
logarithms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from .text import BOS, EOS, PAD


class Rows(Protocol):
    """A decoder's state with a row for each hypothesis."""

    def select(self, rows: Tensor) -> Self:
        """The state of the hypotheses ``rows``, (m,) of int64."""


F64 = torch.float64
State = TypeVar("State", bound=Rows)


@dataclass(frozen=True)
class Found:
    """The hypotheses of one sentence, the finished ones only, the most probable first.

    Without a finished one: the most probable beginning, and neither certificate.
    """

    hypotheses: list[tuple[list[int], float]]
    """Words without BOS and EOS, and the logarithm of the probability."""
    covered: bool
    optimal: bool

    @property
    def best(self) -> list[int]:
        """The words of the most probable hypothesis."""
        return self.hypotheses[0][0]


def beam_search(
    step: Callable[[Tensor, State], tuple[Tensor, State]],
    state: State,
    sentences: int,
    beam: int,
    longest: int,
    device: torch.device,
) -> list[Found]:
    """The ``beam`` most probable hypotheses after each word, finished ones among them.

    ``step``: last words (m,) and the state of m hypotheses to probabilities (m, words) of the next
    word and the state after it. ``state``: that of the ``sentences`` before the first word. A
    sentence is left when its beam holds finished hypotheses alone, when *covered* is lost and the
    best finished hypothesis is more probable than every other, or after ``longest`` words.
    """
    search = _Beam(sentences, beam, device)
    for _ in range(longest):
        rows = search.live.flatten().nonzero().squeeze(1)
        if not len(rows):
            break
        probability, state = step(search.words[..., -1].flatten()[rows], state)
        state = state.select(search.advance(rows, probability))
    return search.found()


class _Beam:
    """Of each sentence ``beam`` slots: words (n, beam, t), log-probabilities (n, beam), −inf for
    an empty slot, and whether EOS was said."""

    def __init__(self, sentences: int, beam: int, device: torch.device) -> None:
        self.words = torch.full((sentences, beam, 1), BOS, device=device)
        self.logp = torch.full((sentences, beam), -torch.inf, dtype=F64, device=device)
        self.logp[:, 0] = 0.0
        self.done = torch.zeros(sentences, beam, dtype=torch.bool, device=device)
        self.lost = torch.full((sentences,), -torch.inf, dtype=F64, device=device)
        """The most that ever fell off."""
        self.stopped = torch.zeros(sentences, dtype=torch.bool, device=device)

    @property
    def open(self) -> Tensor:
        """Where a beginning stands, (n, beam)."""
        return (self.logp > -torch.inf) & ~self.done

    @property
    def live(self) -> Tensor:
        """Where a beginning stands that is still continued, (n, beam)."""
        return self.open & ~self.stopped[:, None]

    def advance(self, rows: Tensor, probability: Tensor) -> Tensor:
        """Continue the hypotheses ``rows`` = live; which of their states the live ones take up."""
        n, beam = self.logp.shape
        top = probability.topk(min(beam + 1, probability.shape[-1]))
        logp = torch.full((n * beam, beam + 1), -torch.inf, dtype=F64, device=rows.device)
        word = torch.full((n * beam, beam + 1), PAD, device=rows.device)
        logp[:, 0] = self.logp.flatten()  # what is not live stays as it is
        logp[rows, : top.values.shape[1]] = (
            self.logp.flatten()[rows, None] + top.values.to(F64).log()
        )
        word[rows, : top.values.shape[1]] = top.indices

        best = logp.view(n, -1).topk(beam + 1)
        self.lost = self.lost.maximum(best.values[:, beam])
        chosen = best.indices[:, :beam]
        parent, said = chosen // (beam + 1), word.view(n, -1).gather(1, chosen)
        self.logp = best.values[:, :beam]
        self.done = self.done.gather(1, parent) | (said == EOS)
        before = self.words.gather(1, parent[..., None].expand(-1, -1, self.words.shape[-1]))
        self.words = torch.cat((before, said[..., None]), -1)
        self.stopped |= (self.lost > -torch.inf) & (self._most(self.done) >= self._most(self.open))

        number = torch.zeros(n * beam, dtype=torch.int64, device=rows.device)
        number[rows] = torch.arange(len(rows), device=rows.device)
        origin = parent + beam * torch.arange(n, device=rows.device)[:, None]
        return number[origin[self.live]]

    def found(self) -> list[Found]:
        """What the beams hold."""
        lost = self.lost.maximum(self._most(self.open))
        held = zip(
            self.words.tolist(), self.logp.tolist(), self.done.tolist(), lost.tolist(), strict=True
        )
        return [_found(*one) for one in held]

    def _most(self, which: Tensor) -> Tensor:
        return torch.where(which, self.logp, -torch.inf).amax(1)


def _found(words: list[list[int]], logp: list[float], done: list[bool], lost: float) -> Found:
    """The slots of one sentence, in falling order of probability."""
    slots = list(zip(words, logp, done, strict=True))
    finished = [(w[1 : w.index(EOS)], p) for w, p, d in slots if d and p > -torch.inf]
    if not finished:
        return Found([(words[0][1:], logp[0])], covered=False, optimal=False)
    return Found(finished, covered=lost == -torch.inf, optimal=finished[0][1] >= lost)
