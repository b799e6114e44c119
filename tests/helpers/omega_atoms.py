"""Convex atoms of a random Ω: in torch its value alone, in numpy its slope and its Hessian.

The numpy half is the truth: it shares no code with regmax and works in whatever precision y has.
Rows along the last dimension; ``slope`` (n, d) -> (n, d), ``bend`` (n, d) -> (n, d, d) in float64.
"""

import numpy as np
import torch

from regmax import Regularizer

TINY = 1e-290


def diagonal(h):
    out = np.zeros((*h.shape, h.shape[-1]))
    np.einsum("nii->ni", out)[:] = np.minimum(h.astype(np.float64), 1e290)
    return out


class Atom(Regularizer):
    """w · (what the class says); ``strict``: strictly convex on Δ; ``smooth``: twice
    differentiable; ``apart``: a sum of functions of one entry each; ``steep``: slope infinite
    at 0."""

    strict, smooth, apart, steep = True, True, True, False

    def __init__(self, weight, **tensors):
        self.weight = torch.tensor(weight, dtype=torch.float64)
        for name, item in tensors.items():
            setattr(self, name, torch.as_tensor(item, dtype=torch.float64))

    def numbers(self, name):
        return getattr(self, name).numpy()

    @property
    def w(self):
        return float(self.weight)


class Power(Atom):
    """Σ c y^a, a > 1."""

    def value(self, y):
        return self.weight * (self.c * y.pow(self.a)).sum(-1)

    def slope(self, y):
        a = float(self.a)
        return self.w * self.numbers("c") * a * y ** (a - 1)

    def bend(self, y):
        a = float(self.a)
        y = np.maximum(y, TINY) if a < 2 else y
        return diagonal(self.w * self.numbers("c") * a * (a - 1) * y ** (a - 2))


class Root(Power):
    """−Σ c y^a, 0 < a < 1."""

    steep = True

    def value(self, y):
        return -super().value(y)

    def slope(self, y):
        return -super().slope(y)

    def bend(self, y):
        return -super().bend(y)


class Entropy(Atom):
    """Σ c y log(y/q)."""

    steep = True

    def value(self, y):
        return self.weight * (self.c * (torch.xlogy(y, y) - y * self.q.log())).sum(-1)

    def slope(self, y):
        return self.w * self.numbers("c") * (np.log(y) - np.log(self.numbers("q")) + 1)

    def bend(self, y):
        return diagonal(self.w * self.numbers("c") / np.maximum(y, TINY))


class BinaryEntropy(Atom):
    """Σ y log y + (1 − y) log(1 − y): the slope is infinite at 0 and at 1."""

    steep = True

    def value(self, y):
        return self.weight * (torch.xlogy(y, y) + torch.xlogy(1 - y, 1 - y)).sum(-1)

    def slope(self, y):
        return self.w * (np.log(y) - np.log(np.maximum(1 - y, 1e-19)))

    def bend(self, y):
        y = y.astype(np.float64)
        return diagonal(self.w / np.maximum(y, TINY) + self.w / np.maximum(1 - y, 1e-19))


class Barrier(Atom):
    """−Σ log(y + e)."""

    def value(self, y):
        return -self.weight * (y + self.e).log().sum(-1)

    def slope(self, y):
        return -self.w / (y + float(self.e))

    def bend(self, y):
        return diagonal(self.w / (y + float(self.e)) ** 2)


class Exponential(Atom):
    """Σ exp(s y)."""

    def value(self, y):
        return self.weight * (self.s * y).exp().sum(-1)

    def slope(self, y):
        s = self.numbers("s")
        return self.w * s * np.exp(s * y)

    def bend(self, y):
        s = self.numbers("s")
        return diagonal(self.w * s * s * np.exp(s * y))


class Quadratic(Atom):
    """½ yᵀQy, Q = BᵀB; not strict where B has too few rows."""

    apart = False

    def __init__(self, weight, b, strict):
        super().__init__(weight, q=b.T @ b)
        self.q = (self.q + self.q.T) / 2
        self.strict = strict

    def value(self, y):
        return self.weight * ((y @ self.q) * y).sum(-1) / 2

    def slope(self, y):
        return self.w * (y @ self.numbers("q").astype(y.dtype))

    def bend(self, y):
        return np.broadcast_to(self.w * self.numbers("q"), (*y.shape, y.shape[-1]))


class Ridge(Atom):
    """½ Σ c (y − m)²."""

    def value(self, y):
        return self.weight * (self.c * (y - self.m).square()).sum(-1) / 2

    def slope(self, y):
        return self.w * self.numbers("c") * (y - self.numbers("m"))

    def bend(self, y):
        return diagonal(np.broadcast_to(self.w * self.numbers("c"), y.shape))


class OfMaps(Atom):
    """g(Ay + b), A of shape (m, d)."""

    strict = apart = False

    def maps(self, y):
        return y @ self.a.T + self.b

    def u(self, y):
        return y @ self.numbers("a").T.astype(y.dtype) + self.numbers("b")

    def pulled(self, h):
        """Aᵀ diag(h) A."""
        a = self.numbers("a")
        return np.einsum("nm,mi,mj->nij", h.astype(np.float64), a, a, optimize=True)


class LogSumExp(OfMaps):
    """log Σ exp(Ay + b)."""

    def value(self, y):
        return self.weight * self.maps(y).logsumexp(-1)

    def parts(self, y):
        u = self.u(y)
        e = np.exp(u - u.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def slope(self, y):
        return self.w * (self.parts(y) @ self.numbers("a").astype(y.dtype))

    def bend(self, y):
        p = self.parts(y).astype(np.float64)
        mean = p @ self.numbers("a")
        return self.w * (self.pulled(p) - mean[:, :, None] * mean[:, None, :])


class Softplus(OfMaps):
    """Σ log(1 + exp(Ay + b))."""

    def value(self, y):
        u = self.maps(y)
        return self.weight * torch.logaddexp(u, torch.zeros_like(u)).sum(-1)

    def slope(self, y):
        return self.w * ((1 / (1 + np.exp(-self.u(y)))) @ self.numbers("a").astype(y.dtype))

    def bend(self, y):
        u = np.abs(self.u(y))
        return self.w * self.pulled(np.exp(-u) / (1 + np.exp(-u)) ** 2)


class Huber(OfMaps):
    """Σ huber_k(Ay + b): quadratic within k of 0, linear beyond; once differentiable."""

    smooth = False

    def value(self, y):
        u = self.maps(y).abs()
        inside = u.clamp(max=self.k)
        return self.weight * (inside * (u - inside / 2)).sum(-1)

    def slope(self, y):
        k = float(self.k)
        return self.w * (np.clip(self.u(y), -k, k) @ self.numbers("a").astype(y.dtype))

    def bend(self, y):
        return self.w * self.pulled(np.abs(self.u(y)) < float(self.k) * (1 - 1e-12))


class EvenPower(OfMaps):
    """Σ (Ay + b)^n / n, n = 4 or 6."""

    def value(self, y):
        return self.weight * self.maps(y).pow(self.n).sum(-1) / self.n

    def slope(self, y):
        return self.w * (self.u(y) ** (int(self.n) - 1) @ self.numbers("a").astype(y.dtype))

    def bend(self, y):
        n = int(self.n)
        return self.w * (n - 1) * self.pulled(self.u(y) ** (n - 2))


class SquaredNorm(Atom):
    """½‖y‖_p²."""

    apart = False

    def value(self, y):
        return self.weight * y.pow(self.p).sum(-1).pow(2 / self.p) / 2

    def slope(self, y):
        p = float(self.p)
        size = (y**p).sum(-1, keepdims=True) ** (y.dtype.type(1) / y.dtype.type(p))
        return self.w * size ** (2 - p) * y ** (p - 1)

    def bend(self, y):
        p, y = float(self.p), np.maximum(y, TINY).astype(np.float64)
        size = (y**p).sum(-1, keepdims=True) ** (1 / p)
        u = y ** (p - 1)
        h = diagonal((p - 1) * size ** (2 - p) * y ** (p - 2))
        cross = (2 - p) * size[..., None] ** (2 - 2 * p) * u[:, :, None] * u[:, None, :]
        return self.w * (h + cross)


class Sum(Regularizer):
    """The sum of its atoms."""

    def __init__(self, atoms):
        self.atoms = torch.nn.ModuleList(atoms)

    def value(self, y):
        return sum(atom.value(y) for atom in self.atoms)
