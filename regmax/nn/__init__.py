"""Attention with any Ω: PyTorch's functions and layers, signatures and state dicts.

attention(q, k, v, omega, ...)              scaled_dot_product_attention
MultiheadAttention(512, 8, omega=omega)     nn.MultiheadAttention
AdaptiveEntmax(8)                           entmax that learns α, one for each head
"""

from .attention import attention, attention_weights
from .learnable import AdaptiveEntmax, Between, Learnable, Positive
from .multihead import MultiheadAttention

__all__ = [
    "AdaptiveEntmax",
    "Between",
    "Learnable",
    "MultiheadAttention",
    "Positive",
    "attention",
    "attention_weights",
]
