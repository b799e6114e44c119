"""``regmax demo``: cross-check, train on real digits with each mapping, draw the attention maps."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import plots
from ..analysis import group_count, groups, support_size
from ..nn.layer import RegularizedMax
from ..plots.heatmaps import ZERO, cells, colours
from ..regularizers.penalty import Penalized
from ..regularizers.regularizer import Regularizer
from . import validate
from .common import UsageError, needs, working
from .listing import quiet_registry
from .names import named
from .scores import builtin

MAPPINGS = ("softmax", "sparsemax", "entmax15", "pnormmax", "fusedmax", "oscarmax")
SIDE, CLASSES, WIDTH, BATCH, GAMMA = 8, 10, 32, 32, 1.5


def add_to(commands: Any) -> None:
    """Add this command to the parser's subcommands."""
    parser = commands.add_parser(
        "demo",
        help="cross-check the built-in regularizers, train on real digits, draw attention maps",
        description="Cross-checks the six mappings, trains an attention-pooling "
        "classifier of handwritten digits with each mapping, and draws their attention maps. "
        "Takes one to two minutes. Exit status 1 if a cross-check fails.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("regmax-demo"),
        metavar="DIR",
        help="folder for the picture (default: %(default)s)",
    )
    parser.add_argument("--epochs", type=int, default=15, metavar="N", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: %(default)s")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo. The status is that of the cross-checks."""
    if arguments.epochs < 1:
        raise UsageError(f"--epochs must be at least 1; got {arguments.epochs}")
    if not 0 <= arguments.seed < 2**63:
        raise UsageError(f"--seed must be in [0, 2^63); got {arguments.seed}")
    with needs("demo", "the demo"):
        import matplotlib.figure  # noqa: F401
    data = digits()
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {arguments.out}: {error.strerror or error}") from error
    start = time.perf_counter()

    print("1. Cross-check of each mapping with independent methods\n", flush=True)
    omegas = dict(map(named, MAPPINGS))
    against = validate.backends(quiet_registry(), None)
    outcomes = validate.check(list(omegas.items()), lambda _: builtin(d=8), against, gamma=1.0)
    status = validate.summarize(outcomes)

    images = len(data.train_x) + len(data.test_x)
    print(
        f"\n2. An attention-pooling classifier of {images:,} handwritten digits, "
        f"{arguments.epochs} epochs with each mapping\n"
    )
    columns = ("mapping", "test accuracy", "pixels used of 64", "groups among them")
    print("  ".join(columns), flush=True)
    results = []
    for mapping, omega in omegas.items():
        with working(f"training with {mapping}"):
            result = train(mapping, omega, data, arguments.epochs, arguments.seed)
        results.append(result)
        line = [f"{mapping:9}", f"{100 * result.accuracy:.1f} %"]
        line += [f"{result.support:.1f}", f"{result.group_count:.1f}"]
        padded = (cell.ljust(len(head)) for cell, head in zip(line, columns, strict=True))
        print("  ".join(padded).rstrip(), flush=True)

    picture = arguments.out / "attention-maps.png"
    plots.save(attention_maps(results, data), picture)
    print(f"\n3. Attention maps of each mapping: {picture}")
    print(f"\n{time.perf_counter() - start:.0f} seconds")
    return status


# -- the model -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Digits:
    """Ink in [0, 1], (n, 64), and the digit that each image shows, (n,)."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def digits() -> Digits:
    """scikit-learn's 1,797 handwritten digits; every run tests on the same quarter."""
    with needs("demo", "the demo"):
        from sklearn.datasets import load_digits
    ink, labels = load_digits(return_X_y=True)
    x = torch.tensor(ink, dtype=torch.float32, device="cpu") / 16
    y = torch.tensor(labels, device="cpu")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0), device="cpu")
    test, train = order.tensor_split([round(len(x) / 4)])
    return Digits(x[train], y[train], x[test], y[test])


class AttentionPooling(nn.Module):
    """Attention over the 64 pixels of a digit: pixels -> class scores and weights over the pixels.

    Each pixel is a token, made of its ink and a learned embedding of its position, with two small
    convolutions for context. One learned query scores the tokens by cosines, so the scores have the
    same range for every mapping, which makes weights of them. A linear classifier gets only the
    weighted mean of the tokens' values.
    """

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

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Class scores (n, 10) and weights (n, 64) of images (n, 64)."""
        h = self.position + self.ink * x.reshape(-1, 1, SIDE, SIDE)
        for layer in self.context:
            h = h + F.gelu(layer(h))
        tokens = self.norm(h.flatten(2).transpose(1, 2))
        scores = F.normalize(self.key(tokens), dim=-1) @ F.normalize(self.query, dim=0)
        weights = self.mapping(scores)
        pooled = (weights.unsqueeze(-2) @ self.value(tokens)).squeeze(-2)
        return self.classify(pooled), weights


@dataclass(frozen=True)
class Trained:
    """What a trained model makes of the test images: weights (n, 64), predicted digits (n,)."""

    mapping: str
    omega: Regularizer
    weights: Tensor
    predicted: Tensor
    accuracy: float

    @property
    def support(self) -> float:
        """Mean number of pixels with non-zero weight."""
        return float(support_size(self.weights).double().mean())

    @property
    def group_count(self) -> float:
        """Mean number of groups among the pixels with non-zero weight."""
        return float(group_count(self.weights, self.omega).double().mean())


def train(mapping: str, omega: Regularizer, data: Digits, epochs: int, seed: int) -> Trained:
    """Train with AdamW, with the same initial weights for every mapping; the learning rate rises,
    then falls."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the model is too small for more
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AttentionPooling(omega)
            optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
            steps = epochs * -(-len(data.train_x) // BATCH)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
            for _ in range(epochs):
                for batch in torch.randperm(len(data.train_x), device="cpu").split(BATCH):
                    optimizer.zero_grad()
                    scores, _ = model(data.train_x[batch])
                    F.cross_entropy(scores, data.train_y[batch]).backward()
                    optimizer.step()
                    schedule.step()
        with torch.no_grad():
            scores, weights = model(data.test_x)
    finally:
        torch.set_num_threads(threads)
    predicted = scores.argmax(-1)
    accuracy = float((predicted == data.test_y).double().mean())
    return Trained(mapping, omega, weights, predicted, accuracy)


# -- the picture -----------------------------------------------------------------------------------


def attention_maps(results: Sequence[Trained], data: Digits) -> Any:
    """A figure with a row for each mapping and a column for each digit.

    Colours show the weight relative to the largest of the map; exact zeros are grey. Pixels of a
    fused group have no line between them. The outline of the digit is on top.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    shown = examples(results, data)
    rows, columns = len(results) + 1, len(shown)
    cell, left, right, top, bottom = 1.12, 2.15, 0.15, 0.8, 1.0  # inches
    width, height = columns * cell + left + right, rows * cell + top + bottom
    figure = Figure(figsize=(width, height), dpi=150)
    figure.subplots_adjust(
        left / width, bottom / height, 1 - right / width, 1 - top / height, 0.09, 0.09
    )
    axes = figure.subplots(rows, columns, squeeze=False)
    details = ["8 × 8 pixels"] + [
        f"{100 * result.accuracy:.1f} % right\n{result.support:.1f} of {SIDE**2} pixels"
        + f"\nin {result.group_count:.1f} groups" * isinstance(result.omega, Penalized)
        for result in results
    ]
    names = ["the image", *(result.mapping for result in results)]
    beside: dict[str, Any] = {"x": -0.12, "ha": "right"}
    for axis, name, detail in zip(axes[:, 0], names, details, strict=True):
        place = beside | {"transform": axis.transAxes}
        axis.text(y=0.66, s=name, va="bottom", fontsize=13, fontweight="bold", **place)
        axis.text(y=0.6, s=detail, va="top", fontsize=10, color="#333333", **place)
    for column, index in enumerate(shown):
        image, digit = data.test_x[index].reshape(SIDE, SIDE), int(data.test_y[index])
        axes[0, column].imshow(image.numpy(), cmap="Greys", vmin=0, vmax=1.15)
        axes[0, column].set_title(f"a {digit}", fontsize=12, pad=4)
        for axis, result in zip(axes[1:, column], results, strict=True):
            _map(axis, result, index, image)
            if (read := int(result.predicted[index])) != digit:
                box = {"boxstyle": "square,pad=0.2", "facecolor": "white", "edgecolor": "none"}
                place = {"transform": axis.transAxes, "fontsize": 8, "bbox": box}
                axis.text(0.03, 0.03, f"read as {read}", **place)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    heading = "Where a digit classifier looks: attention over pixels, by mapping"
    figure.suptitle(heading, fontsize=16, y=1 - 0.15 / height, va="top")
    bar = figure.add_axes((left / width, 0.62 / height, 3 * cell / width, 0.14 / height))
    label = "weight / largest of the map"
    figure.colorbar(ScalarMappable(cmap=colours()), bar, orientation="horizontal", label=label)
    key = [
        Patch(facecolor=ZERO, label="weight exactly 0"),
        Patch(facecolor=colours()(0.5), label="no line between pixels: one fused group"),
        Patch(facecolor="none", edgecolor="black", label="outline of the digit"),
    ]
    place = {"loc": "lower right", "bbox_to_anchor": (1 - right / width, 0.22 / height)}
    figure.legend(handles=key, ncols=3, frameon=False, fontsize=10.5, columnspacing=1.5, **place)
    return figure


def examples(results: Sequence[Trained], data: Digits) -> list[int]:
    """One test image of each digit, which most mappings classify correctly."""
    right = torch.stack([result.predicted == data.test_y for result in results]).sum(0)
    of_each = [(data.test_y == digit).nonzero().flatten() for digit in range(CLASSES)]
    return [int(some[right[some].argmax()]) for some in of_each if len(some)]


def _map(axis: Any, result: Trained, index: int, image: Tensor) -> None:
    """The weights as cells, and the contour of the digit at half ink, closed at the edge of the
    image."""
    y = result.weights[index]
    ids = groups(y, result.omega).reshape(SIDE, SIDE)
    cells(axis, (y / y.max()).reshape(SIDE, SIDE), ids, top=1)
    padded = F.pad(image, (1, 1, 1, 1))[None, None]
    fine = F.interpolate(padded, scale_factor=8, mode="bicubic", align_corners=False)[0, 0]
    at = ((torch.arange(len(fine), device="cpu") + 0.5) / 8 - 1.5).numpy()
    axis.contour(at, at, fine.numpy(), levels=[0.5], colors="black", linewidths=1.0)
    axis.set(xlim=(-0.55, SIDE - 0.45), ylim=(SIDE - 0.45, -0.55))
