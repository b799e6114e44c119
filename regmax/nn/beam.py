"""Beam search with certificates that its answer is the most probable sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from ..regularizers.printing import brief


class Rows(Protocol):
    """A decoder's state with a row for each hypothesis."""

    def select(self, rows: Tensor) -> Self:
        """The state of the hypotheses ``rows``, (m,) of int64."""


F64 = torch.float64
State = TypeVar("State", bound=Rows)


@dataclass(frozen=True)
class Found:
    """The finished hypotheses of one sentence, the most probable first.

    Without finished hypotheses: the most probable prefix, and neither certificate.
    """

    hypotheses: list[tuple[list[int], float]]
    """Words without the first and the last one, and the logarithm of the probability."""
    covered: bool
    """Whether the beam never dropped a hypothesis of nonzero probability."""
    optimal: bool
    """Whether no sequence is more probable than the best one found."""

    @property
    def best(self) -> list[int]:
        """The words of the most probable hypothesis."""
        return self.hypotheses[0][0]


def beam_search(
    step: Callable[[Tensor, State], tuple[Tensor, State]],
    state: State,
    first: Tensor,
    eos: int,
    beam: int,
    longest: int,
) -> list[Found]:
    """The ``beam`` most probable hypotheses after each word, with certificates.

    If the mapping of the output gives exact zeros, few hypotheses have a nonzero probability, and a
    beam can hold them all (Peters, Niculae & Martins 2019, §4.1): then it is the whole
    distribution over sequences, ``covered``. A sequence is at most as probable as its prefix:
    ``optimal`` tells that no hypothesis that was dropped, or cut after ``longest`` words, is more
    probable than the answer, which is then the mode. Covered implies optimal. Both hold up to
    rounding of the log-probabilities.

    Parameters
    ----------
    step: maps the last words (m,) and the state of m hypotheses to the probabilities (m, words) of
        the next word, such as Π_Ω of its scores, and the next state.
    state: the state of the n sentences before their first word. ``state.select(rows)`` is the state
        of the hypotheses ``rows``, (m,) of int64, in which an index may occur several times.
    first: the first word of each sentence, (n,) of int64.
    eos: the last word of a finished sentence.
    beam: how many hypotheses are held for a sentence.
    longest: the largest number of words. A search ends earlier when all its hypotheses are
        finished, or when it is not covered and the best finished one beats the others.
    """
    for name, number, least in (("beam", beam, 1), ("longest", longest, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ValueError(f"{name} must be an int >= {least}; got {brief(number)}")
    if not isinstance(first, Tensor) or first.ndim != 1 or first.dtype != torch.int64:
        raise ValueError(f"first must be a tensor of shape (n,) and int64; got {brief(first)}")
    search = _Beam(first, eos, beam)
    for _ in range(longest):
        rows = search.live.flatten().nonzero().squeeze(1)
        if not len(rows):
            break
        probability, state = step(search.words[..., -1].flatten()[rows], state)
        state = state.select(search.advance(rows, probability))
    return search.found()


class _Beam:
    """``beam`` slots per sentence: words (n, beam, t), log-probabilities (n, beam), −inf for an
    empty slot, and whether a hypothesis is finished."""

    def __init__(self, first: Tensor, eos: int, beam: int) -> None:
        sentences, device, self.eos = len(first), first.device, eos
        self.words = first[:, None, None].expand(-1, beam, 1)
        self.logp = torch.full((sentences, beam), -torch.inf, dtype=F64, device=device)
        self.logp[:, 0] = 0.0
        self.done = torch.zeros(sentences, beam, dtype=torch.bool, device=device)
        self.lost = torch.full((sentences,), -torch.inf, dtype=F64, device=device)
        """The greatest log-probability of a dropped hypothesis."""
        self.stopped = torch.zeros(sentences, dtype=torch.bool, device=device)

    @property
    def open(self) -> Tensor:
        """The slots with an unfinished hypothesis, (n, beam)."""
        return (self.logp > -torch.inf) & ~self.done

    @property
    def live(self) -> Tensor:
        """The open slots of sentences whose search goes on, (n, beam)."""
        return self.open & ~self.stopped[:, None]

    def advance(self, rows: Tensor, probability: Tensor) -> Tensor:
        """Extend the live hypotheses ``rows``; return the index of each new live one's state."""
        n, beam = self.logp.shape
        low, high = (end.item() for end in probability.aminmax())
        if not 0 <= low <= high <= 1 + 1e-3:  # then a prefix may be less probable than a sequence
            raise ValueError(
                f"step must return probabilities, in [0, 1]; got entries in [{low:g}, {high:g}]"
            )
        top = probability.topk(min(beam + 1, probability.shape[-1]))
        logp = torch.full((n * beam, beam + 1), -torch.inf, dtype=F64, device=rows.device)
        word = torch.full((n * beam, beam + 1), -1, device=rows.device)
        logp[:, 0] = self.logp.flatten()  # the others stay unchanged
        logp[rows, : top.values.shape[1]] = (
            self.logp.flatten()[rows, None] + top.values.to(F64).log()
        )
        word[rows, : top.values.shape[1]] = top.indices

        best = logp.view(n, -1).topk(beam + 1)
        self.lost = self.lost.maximum(best.values[:, beam])
        chosen = best.indices[:, :beam]
        parent, next_word = chosen // (beam + 1), word.view(n, -1).gather(1, chosen)
        self.logp = best.values[:, :beam]
        self.done = self.done.gather(1, parent) | (next_word == self.eos)
        before = self.words.gather(1, parent[..., None].expand(-1, -1, self.words.shape[-1]))
        self.words = torch.cat((before, next_word[..., None]), -1)
        self.stopped |= (self.lost > -torch.inf) & (self._most(self.done) >= self._most(self.open))

        number = torch.zeros(n * beam, dtype=torch.int64, device=rows.device)
        number[rows] = torch.arange(len(rows), device=rows.device)
        origin = parent + beam * torch.arange(n, device=rows.device)[:, None]
        return number[origin[self.live]]

    def found(self) -> list[Found]:
        """The result for each sentence."""
        lost = self.lost.maximum(self._most(self.open))
        held = (t.tolist() for t in (self.words, self.logp, self.done, lost))
        return [self._found(*one) for one in zip(*held, strict=True)]

    def _found(
        self, words: list[list[int]], logp: list[float], done: list[bool], lost: float
    ) -> Found:
        """That of one sentence, whose slots are in falling order of probability."""
        slots = zip(words, logp, done, strict=True)
        finished = [(w[1 : w.index(self.eos, 1)], p) for w, p, d in slots if d and p > -torch.inf]
        if not finished:
            return Found([(words[0][1:], logp[0])], covered=False, optimal=False)
        return Found(finished, covered=lost == -torch.inf, optimal=finished[0][1] >= lost)

    def _most(self, which: Tensor) -> Tensor:
        return torch.where(which, self.logp, -torch.inf).amax(1)
