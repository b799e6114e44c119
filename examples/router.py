"""A mixture of experts whose router chooses k of them, softly, sparsely, and in balance.

    python -m examples.router [--seeds 5] [--epochs 30]

Each image of scikit-learn's digits is a token. A router gives it weights over 16 small networks,
which sum to k = 2; an expert computes no more tokens of a batch than its capacity, those of its
largest weights. Compared: softmax over the largest scores; mappings on ``Simplex(k, upper=1)``; and
plans, ``Transport(rows=k)``, which fix the sum of each expert's weights in a batch too. Prints a
table over seeds: each draws a split of the data, a model and batches.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regmax
from regmax import Simplex, Transport

from .common.tables import markdown, mean_sd

EXPERTS, K, CAPACITY, HIDDEN = 16, 2, 1.25, 4
Weights = Callable[[Tensor, int], Tensor]
"""The weights of scores, with sum k."""


def top(n: int) -> Weights:
    """Softmax over the n largest scores, times k."""

    def weights(scores: Tensor, k: int) -> Tensor:
        largest, where = scores.topk(n, -1)
        return torch.zeros_like(scores).scatter(-1, where, k * largest.softmax(-1))

    return weights


def chosen(name: str, balanced: bool = False) -> Weights:
    """Π of a mapping on k-subsets, or on plans of tokens × experts."""
    mapping = getattr(regmax.functional, name)

    def weights(scores: Tensor, k: int) -> Tensor:
        domain = Transport(rows=float(k)) if balanced else Simplex(float(k), upper=1.0)
        y: Tensor = mapping(scores, domain=domain)
        return y

    return weights


ROUTERS: dict[str, tuple[Weights, float]] = {
    "softmax of the top 2": (top(2), 0.0),
    "top 2, auxiliary loss": (top(2), 0.01),
    "top 4, auxiliary loss": (top(4), 0.01),
    "sparsemax, 2-subsets": (chosen("sparsemax"), 0.0),
    "1.5-entmax, 2-subsets": (chosen("entmax15"), 0.0),
    "sparsemax, 2-subsets, auxiliary loss": (chosen("sparsemax"), 0.01),
    "sparsemax, plan": (chosen("sparsemax", balanced=True), 0.0),
    "1.5-entmax, plan": (chosen("entmax15", balanced=True), 0.0),
}
"""The weights, and the factor of the auxiliary loss."""


class Router(nn.Module):
    """Scores of n tokens (n, d), their weights (n, experts) with sum k, and those that are kept: of
    each expert the ⌈capacity · k n / experts⌉ largest."""

    def __init__(self, d: int, experts: int, k: int, capacity: float, weights: Weights) -> None:
        super().__init__()
        self.scores = nn.Linear(d, experts)
        self.experts, self.k, self.capacity, self.weights = experts, k, capacity, weights

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = self.scores(tokens)
        y = self.weights(scores, self.k)
        most = math.ceil(self.capacity * self.k * len(y) / self.experts)
        kept, where = y.topk(min(most, len(y)), 0)
        return scores, y, torch.zeros_like(y).scatter(0, where, kept)

    def unbalance(self, scores: Tensor, y: Tensor) -> Tensor:
        """Experts × Σ share of the tokens × mean probability (Switch Transformer, eq. 4)."""
        share = (y > 0).sum(0) / (y > 0).sum()
        return self.experts * (share * scores.softmax(-1).mean(0)).sum()


class Mixture(nn.Module):
    """Logits of tokens: the sum of what the experts say, by the router's weights."""

    def __init__(self, router: Router, d: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.router, e = router, router.experts
        self.inner = nn.Parameter(torch.randn(e, d, hidden) * d**-0.5)
        self.outer = nn.Parameter(torch.randn(e, hidden, classes) * hidden**-0.5)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        scores, y, kept = self.router(tokens)
        h = torch.einsum("nd,edh->neh", tokens, self.inner).relu()
        return torch.einsum("ne,neh,ehc->nc", kept / self.router.k, h, self.outer), scores, y, kept


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """1,347 training images and their classes, and 450 of the test."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.as_tensor(data.data, dtype=torch.float32) / 8 - 1
    classes = torch.as_tensor(data.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    train, test = order[450:], order[:450]
    return images[train], classes[train], images[test], classes[test]


def run(name: str, seed: int, epochs: int) -> dict[str, float]:
    """Train one model, and measure it on the test images as one batch."""
    images, classes, held, truth = digits(seed)
    (weights, factor), d = ROUTERS[name], images.shape[-1]
    torch.manual_seed(seed)
    model = Mixture(Router(d, EXPERTS, K, CAPACITY, weights), d, HIDDEN, 10)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(128):
            logits, scores, y, _ = model(images[batch])
            loss = F.cross_entropy(logits, classes[batch])
            if factor:
                loss = loss + factor * model.router.unbalance(scores, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        logits, _, y, kept = model(held)
    load, computed = (y > 0).sum(0).double(), (kept > 0).sum(-1).double()
    return {
        "accuracy, %": 100 * (logits.argmax(-1) == truth).double().mean().item(),
        "experts chosen": load.sum().item() / len(held),
        "computed": computed.mean().item(),
        "load, max/mean": (load.max() / load.mean()).item(),
        f"experts used, of {EXPERTS}": (load > 0).sum().item(),
        "weight dropped, %": 100 * (1 - (kept.sum() / y.sum()).item()),
        "tokens dropped, %": 100 * (computed == 0).double().mean().item(),
    }


def main(argv: Sequence[str] | None = None) -> None:
    made = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    made.add_argument("--seeds", type=int, default=5, help="how many (%(default)s)")
    made.add_argument("--epochs", type=int, default=30, help="of training (%(default)s)")
    args = made.parse_args(argv)
    found = {}
    for name in ROUTERS:
        print(f"training with {name}", file=sys.stderr, flush=True)
        found[name] = [run(name, i, args.epochs) for i in range(args.seeds)]
    head = list(next(iter(found.values()))[0])
    rows = ([n, *(mean_sd([one[k] for one in ones], 1) for k in head)] for n, ones in found.items())
    print(markdown(["router", *head], rows))


if __name__ == "__main__":
    main()
