"""A classifier whose classes lie on several processes: a column-parallel layer and an entmax loss.

    torchrun --nproc-per-node 2 examples/sharded_output.py

Each process has 1/n of the weights of the output layer, of the logits and of the probabilities.
Prints the loss, the learned α and the collectives of a step. One process trains the same model.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections import Counter
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    parallelize_module,
)

import regmax
from regmax.nn import Between, Learnable

CLASSES, FEATURES, ROWS = 1000, 32, 64


def step(model: nn.Module, omega: Learnable, x: torch.Tensor, target: torch.Tensor) -> Any:
    """The loss of a batch; the gradients are in the parameters."""
    loss = regmax.FenchelYoungLoss(omega())(model(x), target)
    loss.backward()
    return loss.detach()


def train(mesh: DeviceMesh, steps: int = 20) -> tuple[list[float], float, Counter[str]]:
    """The losses, the learned α, and the collectives of the last step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES))
    omega = Learnable(regmax.regularizer("tsallis"), alpha=Between(1, 2))
    plan: dict[str, ParallelStyle] = {
        "1": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    }
    parallelize_module(model, mesh, plan)
    optimizers = [torch.optim.Adam(m.parameters(), 1e-2) for m in (model, omega)]
    x, target = torch.randn(ROWS, FEATURES), torch.randint(CLASSES, (ROWS,))
    losses: list[float] = []
    communication = CommDebugMode()
    for i in range(steps):
        with warnings.catch_warnings(), communication if i == steps - 1 else nullcontext():
            warnings.simplefilter("ignore")  # of the hooks of CommDebugMode
            loss = step(model, omega, x, target)
        losses.append(loss.full_tensor().item())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    counts: Counter[str] = Counter()
    for operation, n in communication.get_comm_counts().items():
        counts[str(operation).rsplit(".", 1)[-1]] += n
    return losses, omega.learned["alpha"]().item(), counts


def main() -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:  # not under torchrun
        place = f"file://{tempfile.mkdtemp()}/rendezvous"
        dist.init_process_group("gloo", init_method=place, rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    losses, alpha, counts = train(mesh)
    if dist.get_rank() == 0:
        print(f"loss {losses[0]:.4f} to {losses[-1]:.4f}, alpha {alpha:.4f}, {dict(counts)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
