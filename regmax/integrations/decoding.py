"""Decoding with Hugging Face models whose next-word probabilities are Π_Ω of the logits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..nn.beam import Found
from ..nn.beam import beam_search as search
from ..nn.omega import Omega, mapped, resolved


@dataclass(frozen=True)
class MappedLogits:
    """A ``LogitsProcessor`` of transformers. See :func:`logits_processor`."""

    omega: Omega
    gamma: float
    supports_continuous_batching = True

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return mapped(self.omega, scores.float(), self.gamma, None).log()


def logits_processor(omega: Omega, gamma: float = 1.0) -> MappedLogits:
    """log Π_Ω of the logits, −inf where a word has probability 0, for ``model.generate``:

        own = [logits_processor("entmax15")]
        model.generate(ids, do_sample=True, top_k=0, logits_processor=own)

    Then words are sampled from Π_Ω, so from its support alone. γ is the temperature: the softmax
    that generate applies to the result gives Π_Ω back. ``top_k=0`` because generate keeps 50 words
    by default. A word that an earlier processor excludes, −inf, stays excluded. In beam search,
    where generate gives log-softmax, the result is the same, as Π_Ω(x + c) = Π_Ω(x).

    ``omega``: a :class:`regmax.Regularizer`, a :class:`regmax.nn.Learnable`, or a mapping's name.
    """
    return MappedLogits(resolved(omega), gamma)


@dataclass(frozen=True)
class _Cached:
    """The keys and values of the hypotheses' words."""

    cache: Any

    def select(self, rows: Tensor) -> _Cached:
        self.cache.reorder_cache(rows)
        return self


def cache_argument(function: Callable[..., Any]) -> str:
    """The argument of a function of transformers that takes a cache: its name until 5.23, or that
    of later versions."""
    return "cache" if "cache" in inspect.signature(function).parameters else "past_key_values"


@torch.no_grad()
def beam_search(
    model: Any,
    input_ids: Tensor,
    omega: Omega,
    beam: int,
    longest: int,
    gamma: float = 1.0,
    eos: int | None = None,
) -> list[Found]:
    """:func:`regmax.nn.beam_search` for a decoder-only model: continuations of the prompts
    ``input_ids`` (n, L), without padding, of up to ``longest`` words, with the certificates.

    The probabilities of the next word are Π_Ω(logits/γ). ``eos``: the last word of a sentence, by
    default that of the model.
    """
    from transformers import DynamicCache

    if model.config.is_encoder_decoder:
        raise ValueError(f"model must be decoder-only; got {type(model).__name__}")
    end = model.generation_config.eos_token_id if eos is None else eos
    if isinstance(end, bool) or not isinstance(end, int):
        raise ValueError(f"eos must be the number of the word that ends a sentence; got {end!r}")
    omega = resolved(omega)

    name = cache_argument(model.forward)

    def step(words: Tensor, state: _Cached) -> tuple[Tensor, _Cached]:
        logits = model(words[:, None], use_cache=True, **{name: state.cache}).logits
        return mapped(omega, logits[:, -1].float(), gamma, None), state

    start = _Cached(DynamicCache(config=model.config))
    if input_ids.shape[1] > 1:
        model(input_ids[:, :-1], use_cache=True, **{name: start.cache})
    return search(step, start, input_ids[:, -1], end, beam, longest)
