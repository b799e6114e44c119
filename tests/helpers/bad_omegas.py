"""Ω that break their contract, each by one defect; their maxima, by looking everywhere."""

import torch


def square(y):
    return y.square().sum(-1) / 2


def entropy(y):
    return torch.xlogy(y, y).sum(-1)


NOT_CONVEX = {
    "concave": lambda y: -square(y),
    "indefinite": lambda y: square(y) - 3 * y[..., 0] * y[..., 1],
    "entropy with the wrong sign": lambda y: -entropy(y),
    "concave near the vertices": lambda y: (
        (y - 1 / 3).square().sum(-1) - 1.5 * (y - 1 / 3).pow(4).sum(-1)
    ),
    "two wells": lambda y: 4 * ((y[..., 0] - 0.3).square() - 0.04).square() + square(y) / 50,
    "a bump away from the start": lambda y: (
        square(y) + 0.3 * (-((y[..., 0] - 0.75) ** 2) * 50).exp()
    ),
    "a dent away from the start": lambda y: (
        square(y) - 0.3 * (-((y[..., 0] - 0.75) ** 2) * 50).exp()
    ),
    "wave": lambda y: square(y) + (20 * y).sin().sum(-1) / 50,
    "norm, p = 1/2": lambda y: y.sqrt().sum(-1).square() / 2,
    "linear": lambda y: (y * torch.arange(3.0, dtype=y.dtype)).sum(-1),
    "constant on the simplex": lambda y: y.sum(-1).square(),
}
NOT_SMOOTH = {
    "|y − c|": lambda y: square(y) + 0.3 * (y - 0.3).abs().sum(-1),
    "max y": lambda y: square(y) + 0.4 * y.amax(-1),
    "total variation": lambda y: square(y) + 0.3 * y.diff(dim=-1).abs().sum(-1),
    "norm, not squared": lambda y: (y - 0.3).square().sum(-1).sqrt() + square(y) / 10,
    "largest two": lambda y: square(y) + 0.4 * y.topk(2, -1).values.sum(-1),
    "kink in the entropy": lambda y: entropy(y) + (y - 0.35).abs().sum(-1) / 2,
    "only a kink": lambda y: (y - 0.3).abs().sum(-1),
}
NOT_FINITE = {
    "log(y − 0.1)": lambda y: -(y - 0.1).log().sum(-1),
    "1/y": lambda y: (1 / y).sum(-1) / 100,
    "1/(y − 0.5)": lambda y: (1 / (y - 0.5)).sum(-1) / 10 + 5 * square(y),
    "NaN beyond 0.8": lambda y: square(y) + torch.where(y > 0.8, torch.nan, 0.0).sum(-1),
    "infinite below 0.01": lambda y: square(y) + torch.where(y < 0.01, torch.inf, 0.0).sum(-1),
    "NaN in the gradient": lambda y: square(y) + (y - y).square().sum(-1).sqrt(),
}


def everywhere(omega, x, levels=11, n=60):
    """The largest ⟨y, x⟩ − Ω(y) on the triangle for one row of three scores, and where: a grid
    over all of it, then finer ones around its best points."""
    t = torch.linspace(0, 1, 4 * n + 1, dtype=torch.float64)
    a, b = torch.meshgrid(t, t, indexing="ij")
    keep = a + b <= 1 + 1e-12
    points = torch.stack([a[keep], b[keep]], -1)

    def value(p):
        y = torch.cat([p, (1 - p.sum(-1, keepdim=True)).clamp_min(0)], -1).clamp_min(1e-31)
        v = (y * x).sum(-1) - omega.value(y)
        return torch.where(torch.isfinite(v), v, -torch.inf)

    h = 1 / (4 * n)
    found = value(points)
    best = points[found.topk(60).indices]
    for _ in range(levels):
        steps = torch.linspace(-1, 1, 9, dtype=torch.float64) * h
        da, db = torch.meshgrid(steps, steps, indexing="ij")
        moves = torch.stack([da.flatten(), db.flatten()], -1)
        near = (best.unsqueeze(1) + moves).flatten(0, 1).clamp(0, 1)
        near = near[near.sum(-1) <= 1]
        found = value(near)
        best, h = near[found.topk(20).indices], h / 3
    y = torch.cat([best[0], 1 - best[0].sum(-1, keepdim=True)])
    return value(best[:1]).item(), y
