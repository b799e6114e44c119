"""Layers: Π_Ω as a module, and PyTorch's attention, signatures and state dicts, with any Ω.

It imports ``regmax.mapping`` and what is below.

RegularizedMax(omega)                       Π_Ω and max_Ω
attention(q, k, v, omega, ...)              scaled_dot_product_attention
MultiheadAttention(512, 8, omega=omega)     nn.MultiheadAttention
AdaptiveEntmax(8)                           entmax that learns α, one for each head
"""

from .attention import attention, attention_weights
from .layer import RegularizedMax
from .learnable import AdaptiveEntmax, Between, Learnable, Positive
from .multihead import MultiheadAttention

__all__ = [
    "AdaptiveEntmax",
    "Between",
    "Learnable",
    "MultiheadAttention",
    "Positive",
    "RegularizedMax",
    "attention",
    "attention_weights",
]
