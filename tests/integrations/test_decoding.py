"""Sampling and beam search of tiny Hugging Face models with sparse outputs."""

from __future__ import annotations

import pytest
import torch

from regmax.functional import sparsemax
from regmax.integrations.transformers import beam_search, logits_processor

pytest.importorskip("transformers")

import tiny_models


@pytest.fixture(scope="module")
def model():
    made = tiny_models.llama().double()
    made.lm_head.weight.data *= 20
    return made


def test_the_processor_gives_the_mapping():
    x = torch.randn(3, 40)
    x[0, 5] = -torch.inf
    for gamma in (1.0, 0.3):
        processor = logits_processor("sparsemax", gamma)
        found = processor(None, x)
        torch.testing.assert_close(found.softmax(-1), sparsemax(x, gamma=gamma))
        torch.testing.assert_close(
            found, logits_processor("sparsemax", gamma)(None, x.log_softmax(-1))
        )
    assert torch.equal(found == -torch.inf, sparsemax(x, gamma=0.3) == 0)


def test_samples_lie_in_the_support(model):
    torch.manual_seed(0)
    ids = torch.randint(3, 50, (8, 4))
    out = model.generate(
        ids,
        do_sample=True,
        top_k=0,
        max_new_tokens=6,
        eos_token_id=None,
        logits_processor=[logits_processor("sparsemax")],
    )
    with torch.no_grad():
        y = sparsemax(model(out).logits[:, 3:-1].float())
    assert (y == 0).float().mean() > 0.5
    assert (y.gather(-1, out[:, 4:, None]) > 0).all()


def test_beam_search_is_that_of_the_whole_sequences(model):
    ids = torch.randint(3, 50, (3, 4), generator=torch.Generator().manual_seed(1))
    for k, one in enumerate(beam_search(model, ids, "sparsemax", 4, 5, gamma=2.0, eos=7)):
        for words, logp in one.hypotheses:
            end = [7] if one.covered or one.optimal else []
            whole = torch.cat([ids[k], torch.tensor([*words, *end])])
            with torch.no_grad():
                y = sparsemax(model(whole[None]).logits[0, 3:-1].float(), gamma=2.0)
            own = y.gather(-1, whole[4:, None]).double().log().sum().item()
            assert own == pytest.approx(logp, abs=1e-4)


def test_wrong_arguments(model):
    ids = torch.ones(1, 2).long()
    with pytest.raises(ValueError, match="model must be decoder-only; got T5"):
        beam_search(tiny_models.t5(), ids, "sparsemax", 2, 2)
    with pytest.raises(ValueError, match="eos must be the number"):
        beam_search(model, ids, "sparsemax", 2, 2, eos=[1, 2])
