"""The demo's model and data: attention pooling over the 64 pixels of a handwritten digit.

Each pixel is a token, made of its ink and a learned embedding of its position, with two small
convolutions for context. One learned query scores the tokens. A mapping turns the scores into
weights over the pixels. A linear classifier gets only the weighted mean of the tokens' values.
Scores are cosines, so they have the same range [−1, 1] for every mapping.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..analysis import groups
from ..nn.layer import RegularizedMax
from ..regularizers.penalty import Penalized
from ..regularizers.regularizer import Regularizer
from .common import needs

SIDE = 8
PIXELS = SIDE * SIDE
CLASSES = 10
WIDTH = 32
BATCH = 32
GAMMA = 1.5
TEST_SHARE = 0.25


@dataclass(frozen=True)
class Digits:
    """Ink in [0, 1], (n, 64), and the digit that each image shows, (n,)."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def digits() -> Digits:
    """scikit-learn's 1,797 handwritten digits, with a fixed split."""
    with needs("demo", "the demo"):
        from sklearn.datasets import load_digits
    ink, labels = load_digits(return_X_y=True)
    x, y = (
        torch.tensor(ink, dtype=torch.float32, device="cpu") / 16,
        torch.tensor(labels, device="cpu"),
    )
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0), device="cpu")
    test, train = order.split([round(TEST_SHARE * len(x)), len(x) - round(TEST_SHARE * len(x))])
    return Digits(x[train], y[train], x[test], y[test])


class AttentionPooling(nn.Module):
    """Pixels -> weights over the pixels -> class scores."""

    def __init__(self, omega: Regularizer) -> None:
        super().__init__()
        self.position = nn.Parameter(0.3 * torch.randn(WIDTH, SIDE, SIDE, device="cpu"))
        self.ink = nn.Parameter(torch.randn(WIDTH, 1, 1, device="cpu"))
        self.context = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.query = nn.Parameter(torch.randn(WIDTH, device="cpu"))
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.classify = nn.Linear(WIDTH, CLASSES)
        self.mapping = RegularizedMax(omega, gamma=GAMMA)

    def tokens(self, x: Tensor) -> Tensor:
        """(n, 64) -> (n, 64, width)."""
        h = self.position + self.ink * x.reshape(-1, 1, SIDE, SIDE)
        for layer in self.context:
            h = h + F.gelu(layer(h))
        tokens: Tensor = self.norm(h.flatten(2).transpose(1, 2))
        return tokens

    def weights(self, tokens: Tensor) -> Tensor:
        """The mapping of the scores cos(query, key): (n, 64, width) -> (n, 64)."""
        scores = F.normalize(self.key(tokens), dim=-1) @ F.normalize(self.query, dim=0)
        weights: Tensor = self.mapping(scores)
        return weights

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Class scores (n, 10) and weights (n, 64)."""
        tokens = self.tokens(x)
        weights = self.weights(tokens)
        pooled = (weights.unsqueeze(-2) @ self.value(tokens)).squeeze(-2)
        return self.classify(pooled), weights


@dataclass(frozen=True)
class Trained:
    """A trained model on the test images: weights (n, 64), groups (n, 64), predictions (n,).

    ``fused``: whether Ω has a penalty, which fuses pixels into groups.
    """

    mapping: str
    weights: Tensor
    groups: Tensor
    fused: bool
    predicted: Tensor
    correct: Tensor

    @property
    def accuracy(self) -> float:
        """Share of the test images that are classified correctly."""
        return float(self.correct.double().mean())

    @property
    def support(self) -> float:
        """Mean number of pixels with non-zero weight."""
        return float((self.weights > 0).sum(-1).double().mean())

    @property
    def group_count(self) -> float:
        """Mean number of groups among the pixels with non-zero weight."""
        return float((self.groups.amax(-1) + 1).double().mean())


def train(mapping: str, omega: Regularizer, data: Digits, epochs: int, seed: int) -> Trained:
    """Train with AdamW, with the same initial weights for every mapping, and run the test set."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the model is too small for more
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AttentionPooling(omega)
            fit(model, data, epochs)
        model.eval()
        with torch.no_grad():
            scores, weights = model(data.test_x)
    finally:
        torch.set_num_threads(threads)
    predicted = scores.argmax(-1)
    return Trained(
        mapping,
        weights,
        groups(weights, omega),
        isinstance(omega, Penalized),
        predicted,
        predicted == data.test_y,
    )


def fit(model: AttentionPooling, data: Digits, epochs: int) -> None:
    """Minimise the cross-entropy for ``epochs`` passes; the learning rate rises, then falls."""
    steps = -(-len(data.train_x) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=3e-3, total_steps=epochs * steps
    )
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(data.train_x), device="cpu").split(BATCH):
            optimizer.zero_grad()
            scores, _ = model(data.train_x[batch])
            F.cross_entropy(scores, data.train_y[batch]).backward()
            optimizer.step()
            schedule.step()
