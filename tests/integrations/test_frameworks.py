"""Two steps of training on the CPU in frameworks: a sparse attention, a Fenchel–Young loss, an Ω
that learns; and Hugging Face's ``device_map``."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import regmax
from regmax.nn import AdaptiveEntmax, MultiheadAttention

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks'
ROWS = torch.randint(3, 50, (8, 6), generator=torch.Generator().manual_seed(0))


class Classifier(nn.Module):
    """Attention with an α for each head over a few words, and a class by entmax."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(50, 8)
        self.attention = MultiheadAttention(8, 2, omega=AdaptiveEntmax(2), batch_first=True)
        self.classes = nn.Linear(8, 3)
        self.loss = regmax.losses.EntmaxLoss(1.5)

    def forward(self, ids):
        h = self.embed(ids)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        return self.classes(h.mean(1))


def batches():
    data = torch.utils.data.TensorDataset(ROWS, ROWS[:, 0] % 3)
    return torch.utils.data.DataLoader(data, batch_size=4)


def values(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def learnt(model, before):
    """Every parameter has moved, and is finite."""
    after = values(model)
    assert all(t.isfinite().all() for t in after.values())
    names = {name for name in before if torch.equal(after[name], before[name])}
    assert not names


def plain_steps(model):
    """Two steps in PyTorch."""
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for ids, target in batches():
        optimizer.zero_grad()
        model.loss(model(ids), target).backward()
        optimizer.step()
    return values(model)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate(precision):
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    model = Classifier()
    before = values(model)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    own, optimizer, loader = accelerator.prepare(model, optimizer, batches())
    for ids, target in loader:
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = model.loss(own(ids), target)
        assert loss.dtype == torch.float32
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(own.parameters(), 10.0)
        optimizer.step()
    learnt(accelerator.unwrap_model(own), before)
    if precision == "no":
        for name, t in plain_steps(Classifier()).items():
            torch.testing.assert_close(values(model)[name], t)


def test_lightning(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", torch.compile)  # which the import replaces for good
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Classifier()

        def training_step(self, batch, index):
            ids, target = batch
            return self.model.loss(self.model(ids), target)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.5)

    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(module, batches())
    assert trainer.global_step == 2
    for name, t in plain_steps(Classifier()).items():
        torch.testing.assert_close(values(module.model)[name], t)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    again = Module.load_from_checkpoint(tmp_path / "last.ckpt")
    for name, t in values(module.model).items():
        assert torch.equal(values(again.model)[name], t)


def llama():
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from tiny_models import HEADS, llama

    from regmax.integrations.transformers import attach

    return transformers, attach(llama(), AdaptiveEntmax(HEADS), per_layer=True)


def test_trainer_of_transformers(tmp_path):
    transformers, model = llama()
    before, loss = values(model), regmax.losses.SparsemaxLoss()

    def compute_loss(outputs, labels, num_items_in_batch=None):
        return loss(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=4,
        learning_rate=0.1,
        lr_scheduler_type="constant",
        optim="sgd",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="steps",
        save_steps=2,
    )
    data = [{"input_ids": row, "labels": row} for row in ROWS]
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=data, compute_loss_func=compute_loss
    )
    result = trainer.train()
    assert result.global_step == 2
    learnt(model, before)
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "checkpoint-2")
    for name, t in values(model).items():
        assert torch.equal(values(again)[name], t)


def test_device_map_with_layers_on_disk(tmp_path):
    """Hooks bring Ω of a layer with its other weights."""
    transformers, model = llama()
    model.save_pretrained(tmp_path / "model")
    parts = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu"}
    parts |= {"lm_head": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk"}
    again = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path / "model", device_map=parts, offload_folder=str(tmp_path / "disk")
    )
    assert again.model.layers[1].self_attn.regmax.a.is_meta
    torch.testing.assert_close(again(ROWS).logits, model(ROWS).logits, rtol=0, atol=0)
