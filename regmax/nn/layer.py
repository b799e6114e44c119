"""``RegularizedMax``: Π_Ω and max_Ω as a layer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor, nn

from .. import domains
from ..domains import Domain
from ..kernels import transforms, why_none
from ..kernels.transforms import outside_inference
from ..kernels.wrappers import dense as dense_tensor
from ..kernels.wrappers import is_dtensor, splits
from ..mapping import evaluate, sharded, solution
from ..mapping.methods import from_value
from ..mapping.methods.closed_form import solves
from ..mapping.methods.solver import OnFailure, Settings, named_solver
from ..mapping.rows import Rows, computed_in, prepare
from ..optimality.solution import Solution, Trace
from ..regularizers.arguments import POSITIVE, hyperparameter, scores
from ..regularizers.curvature import Curvature
from ..regularizers.display import Lines
from ..regularizers.identity import unscaled
from ..regularizers.penalty import Penalized, smooth_part, structured, who
from ..regularizers.printing import called, short, unusual
from ..regularizers.registry import registry
from ..regularizers.regularizer import Regularizer, checked
from ..solvers import Solver
from .layer_jacobian import Jacobian

F = TypeVar("F", bound=Callable[..., Any])


def recorded(method: F) -> F:
    """A method of scores and a mask. In torch.compile's graph it is one call, or outside of the
    graph if it cannot be recorded."""
    name = method.__name__

    @outside_inference
    @functools.wraps(method)
    def call(self: Any, x: Any, mask: Any = None, **options: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            return method(self, x, mask, **options)
        from ..mapping import dynamo  # loads the compiler

        text, arguments = dynamo.text_of(self.omega, self.settings, self.domain)
        if name not in dynamo.CALLS or not text or splits(x, self._along(x)):
            return dynamo.outside(method, self, x, mask, **options)
        along, domain = self._along(x), domains.told(self.domain)
        return dynamo.CALLS[name](text, x, self.gamma, along, mask, domain, *arguments)

    return call  # type: ignore[return-value]


class RegularizedMax(nn.Module):
    """Π_Ω(x) = argmax_{y ∈ Δ} ⟨y, x⟩ − γΩ(y), differentiable in x, γ and every tensor inside Ω.

    Parameters
    ----------
    omega: a :class:`regmax.Regularizer`.
    gamma: γ > 0, a float, or a tensor that broadcasts to x with size 1 along ``dim``.
    dim: the dimension along which the result sums to 1.
    solver: ``"auto"`` (the closed form if there is one, else a kernel from the value or a solver
        that suits Ω; :meth:`explain` names it), the name of a solver, or a
        :class:`regmax.solvers.Solver`.
    tol: the certified error ‖y − y*‖ at which a solver stops; by default 1e-8 in float64 and 1e-3
        in float32. Closed forms ignore it.
    max_iter: the budget of iterations of a solver.
    on_failure: ``"warn"``, ``"raise"`` or ``"ignore"`` when a solver misses ``tol``.
    domain: a :class:`regmax.Simplex`, :class:`regmax.AtMost` or :class:`regmax.Box` in place of the
        simplex Δ: bounds, another sum, or none; or a :class:`regmax.Transport`, whose rows are
        plans. Its tensors get their gradients.
    certify: whether every call certifies its answer and its vector–Jacobian product from Ω's value.
        Closed forms and their kernels are certified only then. For debugging: it costs more than
        the call.

    Shapes: x of any shape and strides, floating; the output has x's shape, dtype and device.
    float16 and bfloat16 compute in float32. ``mask`` is bool, broadcastable to x, True = takes
    part; −inf counts as masked. A row without participants gives zeros and zero gradients. A NaN or
    +inf makes its own row NaN and no other row. Π_Ω is Niculae & Blondel (2017), §2.2.
    """

    def __init__(
        self,
        omega: Regularizer,
        gamma: float | Tensor = 1.0,
        dim: int = -1,
        solver: str | Solver = "auto",
        *,
        tol: float | None = None,
        max_iter: int = 2000,
        on_failure: OnFailure = "warn",
        domain: Domain | None = None,
        certify: bool = False,
    ) -> None:
        super().__init__()
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise TypeError(f"dim must be an int; got {dim!r}")
        if not isinstance(solver, str | Solver):
            raise TypeError(f'solver must be "auto", a name or a Solver; got {solver!r}')
        if solver != "auto":
            named_solver(solver)
        if tol is not None and (isinstance(tol, bool) or not isinstance(tol, int | float)):
            raise TypeError(f"tol must be a number > 0 or None; got {tol!r}")
        if tol is not None and not tol > 0:
            raise ValueError(f"tol must be > 0 or None; got {tol}")
        if isinstance(max_iter, bool) or not isinstance(max_iter, int) or max_iter < 1:
            raise ValueError(f"max_iter must be an int >= 1; got {max_iter!r}")
        if on_failure not in ("warn", "raise", "ignore"):
            raise ValueError(f'on_failure must be "warn", "raise" or "ignore"; got {on_failure!r}')
        self.domain = domains.given(domain)
        self.omega = checked(omega)
        self.gamma = hyperparameter("gamma", gamma, *POSITIVE)
        self.dim = dim
        if not isinstance(certify, bool):
            raise TypeError(f"certify must be a bool; got {certify!r}")
        self.settings = Settings(solver, tol, max_iter, on_failure, certify)

    @recorded
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Π_Ω(x), of x's shape, dtype and device."""
        along, settings = self._along(x), self.settings
        return evaluate.mapping(self.omega, x, self.gamma, along, mask, settings, self.domain)

    @recorded
    def max(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """max_Ω(x) = max_{y ∈ Δ} ⟨y, x⟩ − γΩ(y), of x's shape without ``dim``.

        Its gradient is Π_Ω(x). A row without participants gives 0.
        """
        along, settings = self._along(x), self.settings
        return evaluate.maximum(self.omega, x, self.gamma, along, mask, settings, self.domain)

    @recorded
    def solve(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        y0: Tensor | None = None,
        trace: bool = False,
    ) -> Solution:
        """Π_Ω(x) with max_Ω(x), duality gap, certified error, iterations and the method used.

        ``y0``: where a solver starts, for instance the answer for similar scores. It has x's shape;
        its rows are nonnegative with a positive sum, and are scaled to sum to 1. ``trace``: whether
        the solution keeps the gap, the residual and the support size of each iteration. A closed
        form ignores both.
        """
        settings = replace(self.settings, trace=Trace() if trace else None)
        given = self.omega, x, self.gamma, self._along(x), mask, settings, y0, self.domain
        return solution.solution(*given)

    @overload
    def jacobian(
        self, x: Tensor, mask: Tensor | None = ..., *, dense: Literal[True] = ...
    ) -> Tensor: ...
    @overload
    def jacobian(
        self, x: Tensor, mask: Tensor | None = ..., *, dense: Literal[False]
    ) -> Jacobian: ...
    @recorded
    def jacobian(
        self, x: Tensor, mask: Tensor | None = None, *, dense: bool = True
    ) -> Tensor | Jacobian:
        """J(x) = ∂Π_Ω/∂x, symmetric and positive semidefinite: (*batch, d, d), or an operator.

            J = (1/γ) (H⁻¹ − H⁻¹1 1ᵀH⁻¹ / 1ᵀH⁻¹1)  on the support S of y,  0 elsewhere,

        with H = ∇²Ω(y)_SS (Peters, Niculae & Martins 2019, Prop. 2); a penalty averages over the
        groups of y before and after. *batch is x's shape without ``dim``. Entry [..., i, j] is
        ∂yᵢ/∂xⱼ. J has x's dtype, float32 for half precision. Rows and columns of masked entries,
        and of entries with yᵢ = 0, are 0; a row without participants has J = 0.

        ``dense=False`` gives a :class:`regmax.nn.Jacobian` with ``J @ v``, ``J.norm("spectral")``
        and ``J.norm("frobenius")``, which stores no matrix. J is computed by the layer's own
        backward, and is differentiable if x, γ or Ω requires grad. Inside ``torch.func``, use
        ``torch.func.jacrev(layer)``.
        """
        x, _ = scores(dense_tensor("x", x), self._along(x))
        if self.domain is not None and self.domain.across is not None:
            raise NotImplementedError(
                "layer.jacobian is that of rows; of plans, torch.autograd.functional.jacobian("
                "layer, x) computes it"
            )
        gamma = self.gamma if isinstance(self.gamma, Tensor) else x
        given = (x, gamma, *self.omega.tensors().values())
        given = given if self.domain is None else (*given, *self.domain.parameters())
        if transforms.under_transform(given):
            raise NotImplementedError(
                "layer.jacobian has no derivatives in forward mode, and is no function for "
                "torch.func: use torch.func.jacrev(layer) there"
            )
        keep = torch.is_grad_enabled() and any(t.requires_grad for t in given)
        x = x.to(computed_in(x.dtype))
        with torch.enable_grad():
            x = x.view_as(x) if keep and x.requires_grad else x.detach().requires_grad_()
            y = self.forward(x, mask)
        whole = self.domain is not None and self.domain.projects
        found = Jacobian(x, y, self._along(x), self.omega.exact, keep, whole)
        return found.dense() if dense else found

    @outside_inference
    def explain(self, x: Tensor, mask: Tensor | None = None) -> str:
        """Which method computes ``self(x)``, and why; and why no kernel is made of a value. A str,
        which a notebook shows as a list."""
        if is_dtensor(x):
            with torch.no_grad():
                found = sharded.explained(self.omega, x, self._along(x), self.settings)
            return Lines("\n".join([str(self), *found]))
        with torch.no_grad():
            wide = solves(self.omega, self.settings)
            rows = prepare(self.omega, x, self.gamma, self._along(x), mask, wide, self.domain)
            y, result = evaluate.argmax(rows, self.settings)
        omega, d = rows.omega, rows.x.shape[-1]
        lines = [
            str(self),
            f"rows: {rows.x[..., 0].numel()} of {d} scores along dim {self._along(x)}",
            f"dtype: {x.dtype}, computed in {rows.x.dtype}",
            f"forward: {result.path}: {result.why}",
            f"backward: {self._backward(omega, rows, y, result.tied is not None)}",
        ]
        known = _known_as(omega)
        if known is not None:
            lines.insert(1, f"Π_Ω is {known}")
        bare, _ = unscaled(smooth_part(omega), 1.0)
        chosen = self.settings.solver == "auto"  # else the user asked for a solver
        if chosen and bare.declares("kernel") and omega.exact and "kernel" not in result.why:
            lines.append(f"note: {why_none(rows.x.device.type)}")
        tried = from_value.why_none(rows, self.settings)
        if tried is not None:
            lines.append(f"note: {tried}")
        lines += [f"note: {line}" for line in omega.notes(rows.x)]
        return Lines("\n".join(lines))

    @staticmethod
    def _backward(omega: Regularizer, rows: Rows, y: Tensor, tied: bool) -> str:
        if not omega.exact:
            return "autograd through the closed form"
        smooth = smooth_part(omega)
        if isinstance(rows.bounds, domains.Projected):
            return "the implicit function theorem on y = P(y + ηr), by autograd through project"
        if y.numel() == 0:
            return "Proposition 1 on the support"
        curvature: Curvature = rows.problem.curvature(y)
        source = "declared by" if smooth.declares("curvature") else "found by autograd from"
        groups = "group averages, then " if structured(omega) else ""
        groups = "along the kinks, " if tied else groups
        return (
            f"Proposition 1 on the support: {groups}{type(curvature).__name__} curvature, "
            f"{source} {who(smooth)}"
        )

    def _along(self, x: Any) -> int:
        """The dimension of x that sums to 1."""
        return self.dim

    def options(self) -> list[str]:
        """``gamma=0.5``, ``tol=1e-06``, …: the arguments that are not defaults, without ``dim``."""
        s = self.settings
        return unusual(
            gamma=(self.gamma, 1.0),
            solver=(s.solver, "auto"),
            tol=(s.tol, None),
            max_iter=(s.max_iter, 2000),
            on_failure=(s.on_failure, "warn"),
            domain=(self.domain, None),
            certify=(s.certify, False),
        )

    def __repr__(self) -> str:
        return called(self, [repr(self.omega), *unusual(dim=(self.dim, -1)), *self.options()])

    def __str__(self) -> str:
        with short():
            return repr(self)


def _known_as(omega: Regularizer) -> str | None:
    """The mapping of a registered regularizer with the same base and the same penalty, or None."""
    if type(omega) is not Penalized:
        return None
    for offer in registry().offers("regularizer"):
        if not (issubclass(offer.cls, Penalized) and offer.mappings):
            continue
        cls: Any = offer.cls
        try:
            known = cls()
            parts = ((o.base, o.penalty) for o in (omega, known))
            same = len({tuple((type(part), repr(part)) for part in pair) for pair in parts}) == 1
        except Exception:  # a hyperparameter without default, or a fault of the plugin
            continue
        if same:
            return offer.mappings[0]
    return None
