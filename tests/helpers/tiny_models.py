"""Hugging Face models, tiny and random, with weights that make attention sparse."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

HEADS = 4
SIZES = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 32}


def made(cls: Any, config: Any, attention: str | None = None) -> Any:
    """A model in inference mode; without ``attention`` with that of its config."""
    if attention is not None:
        config._attn_implementation = attention
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = cls(config).eval()
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and "embed" not in name:
                nn.init.normal_(weight, std=0.4)
    return model


def llama(attention: str = "sdpa", **more: Any) -> Any:
    more = {"num_hidden_layers": 2, **more}
    config = transformers.LlamaConfig(
        **SIZES, num_attention_heads=HEADS, num_key_value_heads=2, pad_token_id=0, **more
    )
    return made(transformers.LlamaForCausalLM, config, attention)


def bert(attention: str = "sdpa") -> Any:
    config = transformers.BertConfig(**SIZES, num_hidden_layers=2, num_attention_heads=HEADS)
    return made(transformers.BertForMaskedLM, config, attention)


def bart(attention: str = "sdpa") -> Any:
    config = transformers.BartConfig(
        vocab_size=50,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
    )
    return made(transformers.BartForConditionalGeneration, config, attention)


def t5(attention: str = "sdpa") -> Any:
    config = transformers.T5Config(
        vocab_size=50, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=HEADS
    )
    return made(transformers.T5ForConditionalGeneration, config, attention)
