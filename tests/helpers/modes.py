"""The modes of the grid: the ways in which PyTorch runs a function, each against reverse mode in
eager mode, which itself is held against differences."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from points import OMEGAS, Point, mapping, module
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import regmax
from regmax import RegularizedMax
from regmax.testing.backends.generic import definition


def close(got: Any, expected: Any, atol: float = 1e-10) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=atol)


def leaves(p: Point) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for t in p.inputs]


def gradients(p: Point, f: Callable[..., Tensor] | None = None) -> tuple[Tensor, ...]:
    given = leaves(p)
    return torch.autograd.grad((f or p.loss)(*given), given)


@functools.cache
def truth(p: Point) -> Any:
    """The Jacobian, by reverse mode, in each of the inputs; none is 0 but for what is not used."""
    found = torch.autograd.functional.jacobian(p.f, p.inputs)
    assert all(bool((j != 0).any()) for j in found[:2]), "the check is about zeros"
    return found


def derivatives(p: Point, f: Callable[..., Tensor] | None = None) -> list[Tensor]:
    """y, its first derivatives against a vector, and theirs against the same numbers."""
    given = leaves(p)
    y = (f or p.f)(*given)
    first = torch.autograd.grad(y, given, p.v, create_graph=True)
    total = sum((g * g.detach().cos()).sum() for g in first)
    second = torch.autograd.grad(total, given, materialize_grads=True)
    return [y.detach(), *(g.detach() for g in first), *second]


# -- derivatives ----------------------------------------------------------------------------------


def differences(p: Point) -> None:
    """First derivatives of reverse and forward mode, and second ones."""
    given = leaves(p)
    more = {"fast_mode": True, "nondet_tol": 1e-14}
    assert gradcheck(p.f, given, atol=1e-6, check_forward_ad=True, **more)
    assert gradgradcheck(p.f, given, atol=1e-4, **more)


def first(p: Point) -> None:
    """First derivatives of reverse mode alone."""
    assert gradcheck(p.f, leaves(p), eps=1e-5, atol=1e-4, fast_mode=True)


def batched(p: Point) -> None:
    """Many vectors in one backward."""
    given = leaves(p)
    y = p.f(*given)
    many = torch.stack([p.v, p.v.cos(), p.v.roll(1)])
    found = torch.autograd.grad(y, given, many, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(y, given, v, retain_graph=True) for v in many]
    close(found, tuple(torch.stack(g) for g in zip(*each, strict=True)))


def jacobians(p: Point) -> None:
    """By torch.func: reverse, forward, vector products, with all inputs or one that moves."""
    every = tuple(range(len(p.inputs)))
    for transform in (jacrev, jacfwd):
        close(transform(p.f, every)(*p.inputs), truth(p))
    ways = [torch.ones_like(t).cumsum(-1 if t.ndim else 0).cos() for t in p.inputs]
    parts = []
    for one, (j, way) in enumerate(zip(truth(p), ways, strict=True)):
        only = tuple(w if i == one else torch.zeros_like(w) for i, w in enumerate(ways))
        parts.append((j.reshape(p.y.numel(), -1) @ way.reshape(-1)).view_as(p.y))
        close(jvp(p.f, p.inputs, only)[1], parts[-1])
    y, pushed = jvp(p.f, p.inputs, tuple(ways))
    close(y, p.y, atol=1e-14)
    close(pushed, sum(parts))
    _, pull = vjp(p.f, *p.inputs)
    close(pull(p.v), torch.autograd.grad(p.f(*(given := leaves(p))), given, p.v))


def hessians(p: Point) -> None:
    every = tuple(range(len(p.inputs)))
    expected = torch.autograd.functional.hessian(p.loss, p.inputs)
    for second in (hessian, lambda f, at: jacfwd(jacfwd(f, at), at)):
        close(second(p.loss, every)(*p.inputs), expected, atol=1e-8)


def mapped(p: Point) -> None:
    """vmap over each of the inputs, over all of them, nested, and of gradients."""
    factors = torch.tensor([0.97, 1.0, 1.02], dtype=torch.float64)
    many = [torch.stack([k * t for k in factors]) for t in p.inputs]
    some = [*range(len(many)), slice(None)] if len(many) > 1 else [slice(None)]
    for at in some:
        axes = [None] * len(many) if isinstance(at, int) else [0] * len(many)
        if isinstance(at, int):
            axes[at] = 0
        given = [m if a == 0 else t for m, t, a in zip(many, p.inputs, axes, strict=True)]
        each = [[t[i] if a == 0 else t for t, a in zip(given, axes, strict=True)] for i in range(3)]
        expected = torch.stack([p.f(*row) for row in each])
        close(vmap(p.f, tuple(axes))(*given), expected, atol=1e-13)
    twice = vmap(vmap(p.f))(*(t.expand(2, *t.shape) for t in many))
    close(twice[1], expected, atol=1e-13)
    every = tuple(range(len(many)))
    rows = [tuple(t.detach().clone().requires_grad_() for t in row) for row in each]
    right = zip(*(torch.autograd.grad(p.loss(*row), row) for row in rows), strict=True)
    close(vmap(grad(p.loss, every))(*many), tuple(torch.stack(g) for g in right))


# -- what runs the function -----------------------------------------------------------------------


def in_pytorch(p: Point) -> None:
    """Without kernels: closed forms in PyTorch, and solvers."""
    found = derivatives(p)
    with regmax.kernels.reference():
        expected = derivatives(p)
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        close(a, b, atol=1e-7 if k > len(p.inputs) else 1e-8)


def checkpointed(p: Point) -> None:
    for reentrant in (False, True):
        given = leaves(p)
        checkpoint(p.loss, *given, use_reentrant=reentrant).backward()
        close(tuple(t.grad for t in given), gradients(p))


def repeated(p: Point) -> None:
    """Backward again gives the same bits, which are the caller's; gradients add up; no graph is
    made where nothing asks for one."""
    given = leaves(p)
    y = p.f(*given)
    first = torch.autograd.grad(y, given, p.v, retain_graph=True)
    kept = [g.clone() for g in first]
    for g in first:
        g.add_(7)
    again = torch.autograd.grad(y, given, p.v, retain_graph=True)
    sums = p.f.__qualname__.startswith("linear")  # which keeps the sums of one backward
    close(list(again), kept, atol=1e-14)
    assert sums or all(map(torch.equal, again, kept))
    for _ in range(2):
        y.backward(p.v, retain_graph=True)
    close([t.grad for t in given], [2 * g for g in kept])
    assert not p.f(*p.inputs).requires_grad
    with torch.no_grad():
        close(p.f(*given), p.y, atol=1e-14)
    with torch.inference_mode():
        close(p.f(*given), p.y, atol=1e-14)


def autocast(p: Point) -> None:
    """Rows of float32 keep their dtype and their digits, and so do their derivatives."""
    single = Point(p.f, tuple(t.float() for t in p.inputs))
    expected = single.y, gradients(single)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = single.f(*single.inputs), gradients(single)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def solved(name: str, solver: str, declared: bool, mask: Tensor | None) -> None:
    """By a solver, as by the closed form; ``declared=False``: Ω is given by its value alone."""
    make, _ = OMEGAS[name]
    inputs = mapping(name).inputs

    def by(solver: str, declared: bool) -> list[Tensor]:
        def f(x: Tensor, gamma: Tensor, *theta: Tensor) -> Tensor:
            omega = make(*theta) if declared else definition(make(*theta))
            return RegularizedMax(omega, gamma, solver=solver)(x, mask)

        return derivatives(Point(f, inputs))

    for got, expected in zip(by(solver, declared), by("auto", True), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)


def recorded(p: Point) -> None:
    """linearize; make_fx, and its graph of other numbers."""
    moved = tuple(1.01 * t for t in p.inputs)
    y, push = linearize(p.f, *p.inputs)
    close(y, p.y, atol=1e-14)
    close(push(*moved), jvp(p.f, p.inputs, moved)[1])
    close(make_fx(p.f)(*p.inputs)(*moved), p.f(*moved), atol=1e-13)


def compiled(name: str, what: str, halves: tuple[bool, ...] = (False,)) -> None:
    """A training step, in one graph, under autocast or not."""
    f, given = module(name, what)

    def step(x: Tensor) -> Tensor:
        return f(x).pow(3).sum()

    given[0] = given[0].requires_grad_()
    expected = torch.autograd.grad(step(given[0]), given)
    for half in halves:
        torch._dynamo.reset()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            run = torch.compile(step, fullgraph=True, backend="aot_eager")
            close(torch.autograd.grad(run(given[0]), given), expected)


def compiled_transforms(name: str) -> None:
    """grad, second derivatives, vmap and forward mode inside of a graph."""
    f, (x, *_) = module(name)

    def total(x: Tensor) -> Tensor:
        return f(x).pow(3).sum()

    def push(x: Tensor) -> Tensor:
        return jvp(f, (x,), (x.cos(),))[1]

    for inside in (grad(total), hessian(total), vmap(grad(total)), push):
        expected = inside(x)
        torch._dynamo.reset()
        close(torch.compile(inside, fullgraph=True, backend="aot_eager")(x), expected)


def broken(p: Point) -> None:
    """A compiler that leaves the function to PyTorch."""
    torch._dynamo.reset()
    run = torch.compile(lambda *t: 2 * p.f(*t) + 1, backend="aot_eager")
    close(run(*p.inputs), 2 * p.y + 1, atol=1e-13)


def fourth(p: Point) -> None:
    """Derivatives of derivatives up to the fourth, in any mixture of modes, and plain backwards."""
    x, rest = p.inputs[0][:1, :3], p.inputs[1:]

    def f(x: Tensor) -> Tensor:
        return p.f(x, rest[0][:1], *rest[1:]).sum(0) @ torch.tensor([1.0, 2, 4]).double()

    def backward(t: Tensor, x: Tensor) -> Tensor:
        return torch.autograd.grad(t, x, create_graph=True)[0][0, 1]

    leaf = x.clone().requires_grad_()
    expected = functools.reduce(lambda t, _: backward(t, leaf), range(4), f(leaf))
    for ways in itertools.islice(itertools.product((jacfwd, jacrev), repeat=4), 0, None, 3):
        found = f
        for way in ways:
            found = functools.partial(lambda g, way, x: way(g)(x)[0, 1], found, way)
        close(found(x), expected.detach(), atol=1e-8)
