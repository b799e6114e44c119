"""Beam search beside the enumeration of all sequences."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from regmax import functional
from regmax.nn import beam_search

EOS, LONGEST, WORDS, SENTENCES = 0, 3, 6, 3


class State(NamedTuple):
    sentences: torch.Tensor
    steps: int

    def select(self, rows):
        return State(self.sentences[rows], self.steps)


def chain(mapping, seed, sharp):
    """The next word depends on the last one, the position and the sentence; the larger ``sharp``,
    the sparser."""
    torch.manual_seed(seed)
    scores = sharp * torch.randn(SENTENCES, LONGEST, WORDS, WORDS, dtype=torch.float64)
    scores[..., EOS] += sharp / 2  # some sentences do end

    def step(words, state):
        found = scores[state.sentences, state.steps, words]
        return mapping(found), State(state.sentences, state.steps + 1)

    return step


def enumerated(step, state):
    """All finished sequences of nonzero probability up to LONGEST, and the beginnings cut there."""
    finished, cut = {}, {}
    stack = [((), 0.0, state)]
    while stack:
        words, logp, state = stack.pop()
        if len(words) == LONGEST:
            cut[words] = logp
            continue
        probability, after = step(torch.tensor([words[-1] if words else 1]), state)
        for word, p in enumerate(probability[0].tolist()):
            if p > 0:
                total = logp + torch.tensor(p, dtype=torch.float64).log().item()
                if word == EOS:
                    finished[words] = total
                else:
                    stack.append(((*words, word), total, after))
    return finished, cut


def searched(step, sentences, beam):
    state = State(torch.tensor(sentences), 0)
    return beam_search(step, state, torch.ones(len(sentences)).long(), EOS, beam, LONGEST)


@pytest.mark.parametrize("output", ["softmax", "entmax15", "sparsemax"])
def test_certificates_against_enumeration(output):
    seen = {"covered": set(), "optimal": set()}
    for seed in range(8):
        step = chain(getattr(functional, output), seed, 0.5 + seed / 2)
        for k, one in enumerate(searched(step, range(SENTENCES), 3)):
            finished, cut = enumerated(step, State(torch.tensor([k]), 0))
            seen["covered"].add(one.covered)
            seen["optimal"].add(one.optimal)
            if one.covered:
                assert not cut
                assert len(finished) <= 3
                held = {tuple(words): logp for words, logp in one.hypotheses}
                assert held == pytest.approx(finished, abs=1e-9)
                assert one.optimal
            if one.optimal:
                best = max({**finished, **cut}.values())
                assert finished[tuple(one.best)] == pytest.approx(best, abs=1e-9)
            if len(finished) <= 3 and not cut:  # no beginning was dropped
                assert one.covered
    assert seen["optimal"] == {True, False}
    assert seen["covered"] == ({False} if output == "softmax" else {True, False})


def test_sentences_are_independent():
    step = chain(functional.softmax, 0, 1.0)
    for k, one in enumerate(searched(step, range(SENTENCES), 4)):
        alone = searched(step, [k], 4)[0]
        assert (one.best, one.optimal) == (alone.best, alone.optimal)


def test_a_search_ends_where_no_beginning_can_become_better():
    steps = []

    def step(words, state):
        steps.append(len(words))
        return torch.tensor([[0.9, 0.06, 0.04]], dtype=torch.float64), state

    assert searched(step, [0], 2)[0].optimal
    assert steps == [1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beam": 0}, "beam must be an int >= 1; got 0"),
        ({"longest": 3.0}, r"longest must be an int >= 0; got 3\.0"),
        ({"first": [0]}, r"first must be a tensor of shape \(n,\) and int64; got \[0\]"),
        ({"first": torch.zeros(1)}, r"first must be .* int64; got tensor\(\[0\.0\]\)"),
    ],
)
def test_wrong_arguments(change, message):
    given = {"first": torch.zeros(1, dtype=torch.int64), "eos": 0, "beam": 2, "longest": 3}
    with pytest.raises(ValueError, match=message):
        beam_search(chain(functional.softmax, 0, 1.0), None, **{**given, **change})


@pytest.mark.parametrize("of", [lambda x: x, lambda x: x.log_softmax(-1), lambda x: x / 0])
def test_scores_in_the_place_of_probabilities_are_refused(of):
    with pytest.raises(ValueError, match=r"step must return probabilities, in \[0, 1\]; got"):
        searched(chain(of, 0, 1.0), [0, 1], 2)
