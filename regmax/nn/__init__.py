"""Layers: Π_Ω as a module, and PyTorch's attention with any Ω, with its signatures and state dicts.

This chapter imports ``regmax.mapping`` and the chapters below it.

    RegularizedMax(omega)                       a mapping and its smooth maximum
    attention(q, k, v, omega, ...)              scaled_dot_product_attention
    explain_attention(q, k, v, omega, ...)      which way a call takes, and why
    MultiheadAttention(512, 8, omega=omega)     nn.MultiheadAttention
    AdaptiveEntmax(8)                           entmax with a learned α per head
    beam_search(step, state, ...)               with certificates for sparse outputs
"""

from .attention import attention, attention_weights, explain_attention
from .beam import Found, beam_search
from .layer import RegularizedMax
from .layer_jacobian import Jacobian
from .learnable import AdaptiveEntmax, Between, Learnable, LengthScaled, Positive
from .multihead import MultiheadAttention

__all__ = [
    "AdaptiveEntmax",
    "Between",
    "Found",
    "Jacobian",
    "Learnable",
    "LengthScaled",
    "MultiheadAttention",
    "Positive",
    "RegularizedMax",
    "attention",
    "attention_weights",
    "beam_search",
    "explain_attention",
]
