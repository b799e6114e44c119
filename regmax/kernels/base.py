"""The interface of a kernel, and a loader that imports kernels on first use."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

Hyper = tuple[Tensor, ...]
Number = Tensor | float
Numbers = tuple[Number, ...]

ASKED = ContextVar("regmax_kernels", default=True)
"""Whether kernels may be used: not inside :func:`reference`."""


@contextmanager
def held(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Inside, the variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def reference() -> Iterator[None]:
    """``with regmax.kernels.reference():`` switches kernels off: PyTorch operations run instead.

    For comparisons, and to test whether a kernel causes a problem.
    """
    with held(ASKED, False):
        yield


def asked() -> bool:
    """Whether kernels may be used: False inside :func:`reference`."""
    return ASKED.get()


@functools.cache
def compiled(module: str) -> Any:
    """A module that needs numba; None without it."""
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError):
        return None


def on_cpu(module: str, like: Tensor) -> Any:
    """A module that needs numba, for tensors on the CPU; None without it, and elsewhere."""
    return compiled(module) if like.device.type == "cpu" else None


def why_none(device: str) -> str:
    """Why no kernel runs for tensors on a device."""
    if not asked():
        return "kernels are switched off (regmax.kernels.reference)"
    package = {"cpu": "numba", "cuda": "triton"}.get(device)
    if package is None:
        return f"kernels are for tensors on a CPU or CUDA device, not on {device}"
    if importlib.util.find_spec(package) is not None:
        return "no kernel takes rows of this length and dtype with these hyperparameters"
    return f"no kernel runs, {package} is missing (pip install 'regmax[fast]')"


class CannotLaunch(RuntimeError):
    """A compiled kernel does not fit this device."""


Offsets = tuple[tuple[int, ...], tuple[int, ...]]
"""Where sequences begin, and where the last one ends, among the queries and among the keys."""


@dataclass(frozen=True)
class Arrangement:
    """What an :class:`AttentionKernel` computes, beside its tensors.

    With ``diagonal`` query i sees keys 0, …, i + diagonal, counted in its sequence. With
    ``offsets`` queries and keys are packed sequences, and a query sees the keys of its own. With
    ``seed``, an int64 tensor, the share ``dropout`` of the weights is dropped and the others are
    divided by 1 − dropout, the same ones wherever the seed is the same.
    """

    scale: float
    diagonal: int | None = None
    offsets: Offsets | None = None
    dropout: float = 0.0
    seed: Tensor | None = None


class AttentionKernel(ABC):
    """Π_Ω(q kᵀ · scale + mask) v and its gradients in compiled code, with O(1) numbers per query in
    memory beside the result.

    ``q`` (B, H, L, E), ``k`` (B, K, S, E) and ``v`` (B, K, S, Ev) have one dtype of ``dtypes``, any
    strides, and no empty dimension; H is a multiple of K, and consecutive heads of q share a head
    of k and v. ``mask`` (B, H, L, S), of any strides, is bool (True = takes part), or floating and
    added to the scores; it is None for packed sequences. ``sink``, the score of one more entry of
    value 0, ``gamma`` and each of ``theta`` are floats, or floating (B, H). Rows are as in
    :class:`Kernel`: a query without keys gives 0, and one with a NaN or +inf among its scores NaN.
    """

    dtypes: ClassVar[tuple[torch.dtype, ...]]
    bounds: tuple[tuple[float, float], ...] = ()
    """The closed range of each of ``theta``. A tensor's value out of it gives NaN."""

    @abstractmethod
    def takes(
        self, how: Arrangement, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None,
        sink: Number | None,
    ) -> bool:  # fmt: skip
        """Whether the kernel takes these tensors. ``how`` has no seed yet."""

    @abstractmethod
    def forward(
        self, how: Arrangement, grad: bool, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None,
        sink: Number | None, gamma: Number, *theta: Number,
    ) -> tuple[Tensor, Hyper]:  # fmt: skip
        """The result, (B, H, L, Ev), and what ``backward`` needs. Raises ``CannotLaunch``."""

    @abstractmethod
    def backward(
        self, how: Arrangement, wants: tuple[bool, ...], g: Tensor, kept: Hyper, q: Tensor,
        k: Tensor, v: Tensor, mask: Tensor | None, sink: Number | None, gamma: Number,
        *theta: Number,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        """The gradients of q, k, v, the mask, the sink, γ and each of θ that ``wants`` asks for,
        given that of the result; None for others."""

    def factors(self, how: Arrangement, q: Tensor, k: Tensor) -> Tensor:
        """What dropout multiplies the weights by, (B, H, L, S): 0 or 1/(1 − dropout). For kernels
        that take dropout."""
        raise NotImplementedError


class Direct(ABC):
    """A kernel for rows of one dtype and length, without mask: what :meth:`Kernel.direct` returns.
    Rows are (R, d) as for :class:`Kernel`; ``theta`` are the hyperparameters that were not kept."""

    @abstractmethod
    def forward(self, x: Tensor, theta: Hyper) -> tuple[Tensor, Tensor | None]:
        """As :meth:`Kernel.forward`."""

    @abstractmethod
    def backward(
        self, y: Tensor, v: Tensor, theta: Hyper, mask: Tensor | None, hyper: bool
    ) -> tuple[Tensor, Hyper]:
        """As :meth:`Kernel.backward`; if ``hyper``, with the products of each of ``theta``."""


class Kernel(ABC):
    """Π_Ω(x) and v ↦ Jᵀv in compiled code, for the scores as the user gives them.

    Rows: ``x``, ``y`` and ``v`` are (R, d), d ≥ 1, R ≥ 0, of a dtype in ``dtypes``, all on one
    device, without gradient; entries of a row are adjacent in memory (last stride 1), rows need not
    be. ``x`` may hold any values. An entry is masked if it is −inf or ``mask`` (R, d) is False
    there, even if it is NaN. A row with a NaN or +inf participant is all NaN; a row without
    participants is all 0. All finite scores are valid, finfo.min included, whatever their shift.

    ``gamma`` and each of ``theta`` (the ``hyperparameters`` of Ω, in their order) are float64, of
    shape (1,) or (R,); those that the user gave as numbers are floats if the kernel takes
    ``numbers``. A value out of range arrives as NaN, and its row becomes NaN.
    """

    name: ClassVar[str]
    """The name that ``explain`` prints: "numba", "triton"."""
    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float32, torch.float64)
    """The accepted dtypes; rows of other dtypes are computed in float32."""
    numbers: ClassVar[bool] = False
    """Whether γ and θ may be floats. Otherwise a number becomes a tensor."""
    raw: ClassVar[bool] = True
    """Whether ``x`` may be the scores as the user gives them. Otherwise it is finite, 0 where
    masked, with the largest participant 0, and no row is spoilt or empty."""
    distributions: ClassVar[bool] = False
    """Whether the losses take distributions as targets."""
    longest: int | None = None
    """The longest row that it takes; longer ones are computed as if there were no kernel. None: any
    length."""
    attention: AttentionKernel | None = None
    """Attention with this Ω, if there is a kernel for it. It takes the same γ and θ."""

    @abstractmethod
    def forward(
        self, x: Tensor, gamma: Tensor, theta: Hyper, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """y = Π_Ω(x), new and contiguous, and the mask for ``backward``: bool (R, d), or None where
        y suffices (always, unless Ω depends on neighbours)."""

    @abstractmethod
    def backward(
        self,
        y: Tensor,
        v: Tensor,
        gamma: Tensor,
        theta: Hyper,
        mask: Tensor | None,
        hyper: bool,
    ) -> tuple[Tensor, Hyper | None]:
        """The gradients with respect to x and θ, given the gradient v with respect to y.

        The first is w/γ with w = Jv, like y. If ``hyper``, the others are −⟨w, ∂∇Ω(y; θ)/∂θ⟩ (for
        a penalty λR, −⟨w, u⟩ with u ∈ ∂R(y)), float64 (R,), one number per row; else None. ``mask``
        is the one that ``forward`` returned. All gradients of a row that is NaN or all 0 are 0.
        """

    def loss(
        self,
        x: Tensor,
        target: Tensor,
        gamma: Tensor,
        theta: Hyper,
        mask: Tensor | None = None,
        epsilon: float = 0.0,
    ) -> tuple[Tensor, Tensor] | None:
        """(1 − ε) L(x; t) plus ε times the mean of L(x; e_c) over the participants c, float64
        (R,), and its gradient, new and contiguous, in float32 for half precision.
        L(x; t) = max_Ω(x) + γΩ(t) − ⟨t, x⟩.

        ``target`` is int64 (R, 1), k of t = e_k, or −1: then the loss is 0. With ``distributions``
        it may be of a dtype of ``dtypes`` (R, d), like x: t times a number m ≥ 0; then the loss and
        the gradient are those of t times m, and 0 if m = 0. Where nothing takes part the loss is 0,
        and +∞ where the support of t is masked in part. Such rows and NaN rows have the gradient 0.

        None: both are computed from y."""
        return None

    def loss_slopes(
        self,
        dx: Tensor,
        x: Tensor,
        target: Tensor,
        gamma: Tensor,
        theta: Hyper,
        mask: Tensor | None,
        epsilon: float,
    ) -> Tensor | None:
        """The derivatives of each :meth:`loss` of vertices e_k in γ and in θ, float64 (R, 2), from
        its gradient ``dx``; any numbers where the loss is NaN or +∞.

        None: they are those of Ω(e_k) − Ω(y), by autograd."""
        return None

    def reduced(
        self,
        x: Tensor,
        target: Tensor,
        gamma: Tensor,
        theta: Hyper,
        epsilon: float,
        ignored: int,
        mean: bool,
    ) -> tuple[Tensor, Tensor, int] | None:
        """As :meth:`loss` for k (R,) or t (R, d), 0 where k is ``ignored``, and the number of the
        other rows; if ``mean``, the gradients are divided by it. For the CPU.

        None where an index is out of range or t has a negative, infinite or NaN entry, or where
        :meth:`loss` computes the losses."""
        return None

    def direct(
        self, dtype: torch.dtype, d: int, gamma: Tensor, theta: tuple[Tensor | None, ...]
    ) -> Direct | None:
        """``forward`` and ``backward`` for rows of d entries of this dtype, without mask, with less
        to do in each call; None where there is no such thing. γ and θ are kept, of shape (1,); one
        that is None comes with each call."""
        return None

    def operator(self, x: Tensor, *numbers: Number) -> Tensor | None:
        """Π_Ω(x) by an operator of PyTorch with its own derivatives, for scores (*batch, d) that
        may require grad, given the numbers γ and θ. None: ``forward`` and ``backward`` compute
        both; so where a row is NaN or has no participants."""
        return None

    def forward_after(
        self, step: str, x: Tensor, gamma: Tensor, lam: Tensor, theta: Hyper, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None] | None:
        """:meth:`forward` of Ω + λR in one function of rows, R of the prox in the module ``step``
        (``ProxKernel``); None where the prox runs first."""
        return None

    def backward_after(
        self, step: str, y: Tensor, v: Tensor, gamma: Tensor, lam: Tensor, theta: Hyper,
        part: Tensor | None, hyper: bool,
    ) -> tuple[Tensor, Hyper | None] | None:  # fmt: skip
        """:meth:`backward` of the same, with the derivative in λ before those in θ."""
        return None

    def between(self, each: bool) -> Any:
        """The kernel of the same Ω on {l ≤ y ≤ u, Σy = k}, for bounds of ``each`` entry or of rows:
        ``regmax.kernels.cpu.between.Between``; None where there is none."""
        return None

    def plans(self) -> Any:
        """The kernel of the transport plans of the same Ω, ``regmax.kernels.cpu.between.Plans``;
        None where there is none."""
        return None

    def compile(self, dtype: torch.dtype) -> None:  # noqa: B027
        """Compile all that calls for rows of a dtype may need. By default nothing: what a kernel
        compiles, it compiles in its first calls."""


class ProxKernel(ABC):
    """The prox of a penalty R in compiled code, pruned for a base; rows as in :class:`Kernel`.

    :class:`regmax.mapping.methods.kernel.ProxThenBase` makes a kernel of it and that of a
    base.
    """

    step: str | None = None
    """The module of the prox as a step of threshold mappings, if it is one:
    :class:`regmax.kernels.cpu.prox.Prox`."""

    @abstractmethod
    def prox(
        self, x: Tensor, gamma: Tensor, lam: Tensor, reach: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """γ prox_{λR}(x/γ), new and contiguous, its maximum shifted to 0, and the mask that
        :meth:`averages` needs, as :meth:`Kernel.forward` returns it. Members of a group are
        bit-for-bit equal.

        Masked entries are −inf. An entry of the result that is γ·``reach`` or more below 0 may have
        any value there, −inf included. ``lam`` and ``reach`` ≥ 0 are float64, (1,) or (R,).
        """

    @abstractmethod
    def averages(
        self, y: Tensor, v: Tensor, mask: Tensor | None, hyper: bool
    ) -> tuple[Tensor, Tensor | None]:
        """w = P v on the support of y, up to a constant for each row, P the averages over the
        groups of y; and if ``hyper``, for v with ⟨v, 1⟩ = 0 on the support, −⟨w, u⟩, u ∈ ∂R(y),
        float64 (R,)."""

    def before(self, base: Kernel) -> Kernel | None:
        """The kernel of a base after this prox, where one function of rows computes both."""
        return None

    def compile(self, dtype: torch.dtype) -> None:  # noqa: B027
        """As :meth:`Kernel.compile`."""


class Lazy:
    """Kernels by device. Each is the ``KERNEL`` of a module, which is imported on first use.

    ``Lazy(cpu="my_plugin._cpu", cuda="my_plugin._gpu")``.
    """

    def __init__(self, **modules: str) -> None:
        self.modules = modules
        self.loaded: dict[str, Kernel | None] = {}

    def __repr__(self) -> str:
        return f"Lazy({', '.join(f'{k}={v!r}' for k, v in self.modules.items())})"

    def get(self, device: str) -> Kernel | None:
        """The kernel for a device, or None if there is none or a package that it needs is missing.
        Any other failed import gives one warning."""
        try:
            return self.loaded[device]
        except KeyError:
            pass
        kernel: Kernel | None = None
        if device in self.modules:
            try:
                with torch._C._DisableFuncTorch():  # tensors that a module makes outlive this call
                    kernel = importlib.import_module(self.modules[device]).KERNEL
            except ModuleNotFoundError:
                kernel = None
            except (ImportError, RuntimeError) as error:
                warnings.warn(
                    f"the kernel {self.modules[device]} cannot be loaded, and PyTorch operations "
                    f"are used instead: {type(error).__name__}: {error}",
                    RuntimeWarning,
                    stacklevel=2,
                )
        self.loaded[device] = kernel
        return kernel
