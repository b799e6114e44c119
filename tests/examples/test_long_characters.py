"""A language model on long sequences: chunks change nothing but time and memory."""

import pytest

from examples import long_characters


def test_chunks_give_the_same_losses():
    text = "the quick brown fox jumps over the lazy dog. " * 4
    own, _ = long_characters.train(text, "entmax15", 48, 4, chunk=7)
    whole, _ = long_characters.train(text, "entmax15", 48, 4, chunk=48)
    assert own == pytest.approx(whole, rel=1e-5)
    assert whole[-1] < whole[0]
