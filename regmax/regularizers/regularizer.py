"""The base class of Ω. Only ``value`` is required; the other methods have safe defaults."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..kernels import Kernel, decisions, transforms
from ..kernels.products import evaluated
from ..kernels.simplex import positive, row_sums
from . import threshold
from .arguments import first, hyperparameter
from .autodiff import alias, by_autograd
from .curvature import Curvature
from .errors import RegularizerError
from .operand import Operand
from .printing import brief


class Regularizer(Operand):
    """A convex function Ω on the simplex Δ.

    Required: :meth:`value`. Optional, each tested by the cross-check: :meth:`grad`,
    :meth:`curvature`, :meth:`inverse`, :meth:`closed_form`, :meth:`conjugate`, :meth:`as_cvxpy`,
    :attr:`strong_convexity`.

    Every method gets rows along the last dimension: ``y`` of shape (*batch, d), floating, with all
    entries positive. An entry that is 0 is passed as ε² (5e-32 in float64), so that log y and
    y^(α−2) are finite. Tensors stored as attributes (or nn.Parameters, or in nested modules) are
    hyperparameters: they get their gradient.

    Class attributes
    ----------------
    name: the plugin's name, as in ``regmax.regularizer(name)``.
    mapping: the name, or names, of its mapping in ``regmax.functional``.
    presets: hyperparameters that a mapping's name fixes ({"entmax15": {"alpha": 1.5}}).
    hyperparameters: the attributes that hold one number per row (a float, or a tensor that
        broadcasts to the scores with size 1 along ``dim``). None: not declared; regmax then
        searches Ω for tensors.
    per_entry: the attributes that hold one number per entry (a float, or a tensor that broadcasts
        to the scores). Ω gets them laid out like rows.
    ranges: the accepted values of each of them, in words and as a predicate:
        {"alpha": ("> 0", lambda a: a > 0)}. The core checks the range at every call; a constructor
        that sets ``self.alpha = self.checked("alpha", alpha)`` checks it at once.
    permutation_invariant: whether Ω(Py) = Ω(y) for every permutation P.
    separable: whether Ω(y) = Σ g_i(y_i); None: regmax tests it.
    ignores_zeros: whether Ω(y) depends only on the positive entries of y, in any order.
    highest: the largest y_i at which Ω is finite, where that is not +inf; below 1 it is for
        ``domain=`` alone. On every domain no entry is above it, and ``strong_convexity`` then holds
        wherever Ω is finite.
    steep: for :meth:`inverse`, whether the curvature is 0 at 0 (a bool, or one for each row).
    written: set by regmax where Σy is not fixed, and for max_Ω where Σy need not be 1: Ω is then
        what its formula says, also where a multiple of Σy − 1 would change nothing on the simplex.
    entries: the number of entries that a row must have; None: any.
    formula: Ω(y) in LaTeX, for notebooks; ``$alpha`` stands for the hyperparameter ``alpha``.
    exact: False for a mapping that only approximates the argmax of its Ω. Its derivatives are then
        those of its closed form.
    arguments: the names of the constructor's arguments, set by regmax. If each is also an
        attribute, torch.compile and torch.export can record the mapping.
    """

    _symbol = r"\Omega"
    name: ClassVar[str] = ""
    mapping: ClassVar[str | tuple[str, ...]] = ()
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    permutation_invariant: ClassVar[bool] = False
    separable: ClassVar[bool | None] = None
    ignores_zeros: ClassVar[bool] = False
    per_entry: ClassVar[tuple[str, ...]] = ()
    highest: ClassVar[float] = math.inf
    steep: bool | Tensor = False
    written: bool = False
    exact: bool = True
    entries: int | None = None

    def value(self, y: Tensor) -> Tensor:
        """Ω(y): (*batch, d) -> (*batch)."""
        raise NotImplementedError(
            f"{type(self).__name__} defines no value(self, y); it is the one required method"
        )

    def grad(self, y: Tensor) -> Tensor:
        """∇Ω(y): (*batch, d) -> (*batch, d). Default: autograd through ``value``."""
        return _gradient(self.value, type(self).__name__, y)

    def curvature(self, y: Tensor) -> Curvature:
        """∇²Ω(y) as a :class:`regmax.regularizers.curvature.Curvature`. Default: autograd through
        ``grad``."""
        return by_autograd(self.grad, y, self.separable)

    def inverse(self, u: Tensor) -> Tensor:
        """y ≥ 0 with e'(y) = u for Ω(y) = Σ e(y_i), and 0 where u ≤ e'(0), −∞ included: (*batch, d)
        -> (*batch, d). It gives :meth:`closed_form` and ``sharded_form``, with ``grad`` and
        ``curvature``, which take one number y of each row too, (*batch, 1).
        """
        raise NotImplementedError(f"{type(self).__name__} defines no inverse(self, u)")

    def closed_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor | None = None) -> Any:
        """Π_Ω(x) = argmax_{y ∈ Δ} ⟨y, x⟩ − γΩ(y), or None where no formula is known.

        ``x`` (*batch, d) is contiguous and finite; each row has a participant, and its largest
        participant is 0. ``gamma`` is a float or has size 1 in its last dimension; ``mask`` is None
        or bool of x's shape. regmax does not differentiate this method, but the optimality
        condition. By default it is computed from :meth:`inverse`, if that is defined.
        """
        return threshold.closed_form(self, x, gamma, mask) if self.declares("inverse") else None

    def kernel(self, x: Tensor) -> Kernel | None:
        """Compiled code for tensors like ``x``, or None: see :mod:`regmax.kernels`.

        Only for a class whose Ω depends on its ``hyperparameters`` alone. A subclass that redefines
        ``value``, ``grad``, ``curvature`` or ``closed_form`` must redefine this method too.
        """
        return None

    @property
    def sharded(self) -> bool:
        """Whether :meth:`sharded_form` computes Π_Ω, at the present hyperparameters."""
        if self.declares("sharded_form") or not self.declares("inverse"):
            return self.declares("sharded_form")
        return not (bool(self.steep.any()) if isinstance(self.steep, Tensor) else self.steep)

    def sharded_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor) -> Tensor:
        """As :meth:`closed_form`, where the entries of a row may lie on several devices: ``x``
        holds some of them, and the largest participant of the whole row is 0.

        Sums and maxima over a row are those of :meth:`row_sums` and :meth:`row_max`; nothing else
        mixes entries. If Ω is not separable, this holds for ``value``, ``grad`` and ``curvature``
        too. Where a loop ends may depend on such sums only, so that it is the same everywhere.
        ``x`` is float64. ``curvature`` must be diagonal, or diagonal plus rank one.
        """
        if not self.declares("inverse"):
            raise NotImplementedError(f"{type(self).__name__} defines no sharded_form")
        return threshold.sharded_form(self, x, gamma, mask)

    def row_sums(self, *entries: Tensor) -> tuple[Tensor, ...]:
        """The sum of each tensor (*batch, d) over the whole row, (*batch, 1). Where rows lie on
        several devices regmax replaces this method, and a call is one all-reduce."""
        return row_sums(*entries)

    def row_max(self, t: Tensor) -> Tensor:
        """The maximum over the whole row, (*batch, 1), without gradient; as :meth:`row_sums`."""
        return t.detach().amax(-1, keepdim=True)

    def conjugate(self, x: Tensor, gamma: float | Tensor, mask: Tensor | None = None) -> Any:
        """max_Ω(x), (*batch, d) -> (*batch), or None to use ⟨y, x⟩ − γΩ(y) at y = Π_Ω(x)."""
        return None

    def conjugate_at(
        self, x: Tensor, y: Tensor, gamma: float | Tensor, mask: Tensor | None = None
    ) -> Any:
        """max_Ω(x), given y = Π_Ω(x): (*batch), or None to use ⟨y, x⟩ − γΩ(y)."""
        return self.conjugate(x, gamma, mask)

    def as_cvxpy(self, y: Any) -> Any:
        """Ω as a cvxpy expression of the cvxpy variable ``y`` of shape (d,)."""
        raise NotImplementedError(
            f"{type(self).__name__} defines no as_cvxpy(self, y), so no convex solver can check it"
        )

    @property
    def strong_convexity(self) -> float | Tensor | None:
        """β > 0 such that Ω is β-strongly convex on Δ in ‖·‖₂. None: regmax estimates β at y*."""
        return None

    def notes(self, x: Tensor) -> list[str]:
        """Lines that ``RegularizedMax.explain(x)`` adds, such as the kernel that runs."""
        return []

    def support_radius(self) -> float | Tensor:
        """r such that a score more than γr below the largest has y_i = 0, or y_i below rounding.

        Default: +inf, no such r is known.
        """
        return math.inf

    def min_positive(self, tiny: float) -> float | Tensor:
        """The smallest y_i at which ``grad``, ``curvature`` and their derivatives are finite.

        ``tiny`` is the smallest normal number. There 1/y is finite, but 1/y² is not, unless the
        code writes 1/y as exp(−log y). Default: √tiny. Smaller positive entries are raised to it.
        """
        return math.sqrt(tiny)

    def lifted(self, y: Tensor) -> Tensor:
        """y for derivatives: zeros replaced by ε², positive entries at least ``min_positive``."""
        info = torch.finfo(y.dtype)
        floor = self.min_positive(info.tiny)
        if not isinstance(floor, Tensor) and not floor <= info.eps:
            raise RegularizerError(
                f"{type(self).__name__}.min_positive must be at most the rounding of y, "
                f"{info.eps:g}, as smaller entries are raised to it; got {floor:g}"
            )
        return positive(y, floor)

    # -- structure ---------------------------------------------------------------------------

    def declares(self, method: str) -> bool:
        """Whether this Ω defines an optional method instead of using the default."""
        return getattr(type(self), method) is not getattr(Regularizer, method)

    def leaves(self) -> tuple[Regularizer, ...]:
        """The regularizers in this expression (:mod:`regmax.regularizers.algebra`)."""
        return (self,)

    # -- hyperparameters ---------------------------------------------------------------------

    def tensors(self, fixed: bool = False) -> dict[str, Tensor]:
        """Every tensor inside Ω that requires grad, by dotted name; if ``fixed``, all tensors."""
        found: dict[str, Tensor] = {}
        for prefix, module in self.named_modules(remove_duplicate=False):
            attributes = {**vars(module), **module._parameters, **module._buffers}
            for key, item in attributes.items():
                if isinstance(item, Tensor) and (fixed or item.requires_grad):
                    found[f"{prefix}.{key}" if prefix else key] = item
        return found

    def declared(self, where: str = "hyperparameters") -> Iterator[tuple[str, str, Any]]:
        """(prefix, name, owner) of each declared hyperparameter, of nested Ω and penalties too;
        ``where`` it is declared: in this attribute of a class."""
        for prefix, module in self.named_modules(remove_duplicate=False):
            if isinstance(module, Operand):
                for name in getattr(module, where, None) or ():
                    yield f"{prefix}." if prefix else "", name, module

    def per_row_tensors(self, entries: bool = False) -> dict[str, Tensor]:
        """The declared hyperparameters that are tensors, by dotted name; ``entries``: those of one
        number per entry too."""
        each = [*self.declared(), *(self.declared("per_entry") if entries else ())]
        return {
            prefix + name: item
            for prefix, name, owner in each
            if isinstance(item := getattr(owner, name), Tensor)
        }

    def checked(self, name: str, item: Any) -> float | Tensor:
        """``item``; an error if it is out of the range of the hyperparameter ``name``."""
        return hyperparameter(name, item, *self.ranges[name])

    def with_tensors(self, values: dict[str, Tensor]) -> Regularizer:
        """A shallow copy in which the named tensors are replaced."""
        clone: Regularizer = replaced(self, values)
        return clone

    def per_row(self, name: str) -> Any:
        """The hyperparameter ``name`` shaped like a row's value: without its last dimension."""
        return per_row(getattr(self, name))


def per_row(item: Any) -> Any:
    """A hyperparameter without its last dimension, of size 1: one number per row."""
    return item.squeeze(-1) if isinstance(item, Tensor) and item.ndim else item


def common_entries(*parts: Any) -> int | None:
    """The number of entries that all parts of an Ω require; None: any."""
    found = [part for part in parts if part.entries is not None]
    for part in found[1:]:
        if part.entries != found[0].entries:
            raise ValueError(
                f"{found[0]} is made for rows of {found[0].entries} entries, and {part} for "
                f"rows of {part.entries}: they cannot be added"
            )
    return found[0].entries if found else None


class Definition(Regularizer):
    """Ω given only by its value, for certificates and the generic method of a cross-check."""

    def __init__(self, omega: Regularizer) -> None:
        self.omega = omega

    def value(self, y: Tensor) -> Tensor:
        return self.omega.value(y)


def like(found: Any, y: Tensor, who: str) -> Tensor:
    """``found``, the result of the method ``who``; an error unless it is a tensor like y."""
    if not isinstance(found, Tensor):
        raise TypeError(f"{who} must return a Tensor; got {type(found).__name__}")
    if found.shape != y.shape or found.dtype != y.dtype:
        raise RegularizerError(
            f"{who} must return a tensor of shape {tuple(y.shape)}, {y.dtype}; got "
            f"{tuple(found.shape)}, {found.dtype}"
        )
    return found


def checked(omega: Any) -> Regularizer:
    """``omega``; a TypeError if it is no regularizer."""
    if not isinstance(omega, Regularizer):
        raise TypeError(
            f"omega must be a regmax.Regularizer; got {type(omega).__name__} {brief(omega)} "
            "(regmax.regularizer(name) makes one by name; a Learnable is for attention, and "
            "omega() is its present Ω)"
        )
    return omega


def checked_value(omega: Regularizer, y: Tensor, name: str | None = None) -> Tensor:
    """Ω(y); an error unless it is one finite number per row."""
    value = evaluated(omega.value, y)
    who = f"{name or type(omega).__name__}.value"
    if not isinstance(value, Tensor):
        raise TypeError(f"{who}(y) must return a Tensor; got {type(value).__name__}")
    if value.shape != y.shape[:-1]:
        raise RegularizerError(
            f"{who}(y) must return one number per row: shape {tuple(y.shape[:-1])} for y of shape "
            f"{tuple(y.shape)}; got {tuple(value.shape)} (sum over the last dimension only)"
        )
    if decisions.rare("infinite value", ~torch.isfinite(value)):
        row = first(~torch.isfinite(value))
        raise RegularizerError(
            f"{who}(y) must be finite on the simplex; got {value[row].item()} at row {row}, where "
            f"y = {y[row].tolist()[:8]} (is there a log, root or division of an entry near 0?)"
        )
    return value


def _gradient(value: Any, who: str, y: Tensor) -> Tensor:
    if transforms.under_transform((y,)):
        transformed: Tensor = torch.func.grad(lambda t: value(t).sum())(y)
        return transformed
    keep = torch.is_grad_enabled()
    with torch.enable_grad():
        z = alias(y)
        try:
            total = evaluated(value, z).sum()
        except RuntimeError as error:
            if "requires grad" not in str(error):
                raise
            raise RegularizerError(
                f"{who}.value(y) leaves PyTorch, or changes y in place: {error}"
            ) from error
        if not total.requires_grad:
            raise RegularizerError(
                f"{who}.value(y) does not depend on y through PyTorch operations, so it has no "
                "gradient (a detach, .item(), numpy call, or a constant Ω?)"
            )
        (g,) = torch.autograd.grad(total, z, create_graph=keep, allow_unused=True)
    if g is None:
        g = torch.zeros_like(y)
    return g if keep else transforms.without_graph(g)


def as_written(omega: Regularizer) -> Regularizer:
    """A copy of Ω that is what its formula says."""
    copy: Regularizer = frozen(omega)
    for part in copy.modules():
        if isinstance(part, Regularizer):
            part.__dict__["written"] = True
    return copy


def frozen(module: nn.Module) -> Any:
    """A copy of a module and its submodules; assignments to ``module`` do not change it."""
    clone = copied(module)
    for name, inner in module._modules.items():
        clone._modules[name] = None if inner is None else frozen(inner)
    return clone


def copied(module: nn.Module) -> Any:
    """A shallow copy with its own dicts of attributes, parameters, buffers and submodules."""
    clone = object.__new__(type(module))  # copy.copy refuses parametrized modules
    clone.__dict__ = dict(module.__dict__)
    for store in ("_parameters", "_buffers", "_modules"):
        clone.__dict__[store] = dict(clone.__dict__[store])
    return clone


def _unparametrized(module: nn.Module, clone: Any) -> Any:
    """``clone`` with plain attributes instead of the properties of torch.nn.utils.parametrize."""
    if "parametrizations" in clone._modules:
        values = {name: getattr(module, name) for name in clone._modules.pop("parametrizations")}
        clone.__class__ = type(module).__mro__[1]
        clone.__dict__.update(values)
    return clone


def replaced(module: nn.Module, values: dict[str, Tensor]) -> Any:
    """A shallow copy of a module in which the named tensors are replaced."""
    clone = copied(module)
    nested: dict[str, dict[str, Tensor]] = {}
    for key, item in values.items():
        head, _, rest = key.partition(".")
        if rest:
            nested.setdefault(head, {})[rest] = item
        else:
            if head in getattr(module, "parametrizations", ()):
                clone = _unparametrized(module, clone)
            clone._parameters.pop(head, None)
            clone._buffers.pop(head, None)
            clone.__dict__[head] = item
    for head, inner in nested.items():
        clone._modules[head] = replaced(module._modules[head], inner)  # type: ignore[arg-type]
    return clone
