"""``+`` and ``*`` of regularizers and penalties, which :mod:`regmax.regularizers.algebra`
implements."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from torch import nn

from . import printing


class _Arguments:
    """The names of a constructor's arguments, looked up on first use, because the constructor of a
    dataclass is made after its class."""

    def __get__(self, item: object, cls: type[Operand]) -> tuple[str, ...]:
        cls.arguments = tuple(parameters_of(cls))
        return cls.arguments


class Operand(nn.Module):
    """An object that can be added and multiplied by a number."""

    __array_ufunc__ = None  # NumPy numbers then call __rmul__
    hyperparameters: ClassVar[tuple[str, ...] | None] = None
    ranges: ClassVar[dict[str, tuple[str, Callable[[Any], Any]]]] = {}
    arguments: ClassVar[tuple[str, ...]] = ()
    formula: str = ""
    _symbol: ClassVar[str] = ""
    _methods: ClassVar[dict[str, str]] = {}  # method name -> the base class that defines it

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.arguments = _Arguments()  # type: ignore[assignment]
        if Operand in cls.__bases__:
            functions = inspect.getmembers(cls, inspect.isfunction)
            cls._methods = {k: cls.__name__ for k, _ in functions if k in vars(cls) and k[0] != "_"}
        for name in cls._methods.keys() & vars(cls).keys():
            item = vars(cls)[name]  # None: a subclass must define it
            if not (item is None or callable(item) or hasattr(item, "__get__")):
                _refuse_hiding(cls, name)

    def __setattr__(self, name: str, item: Any) -> None:
        """Set an attribute; TypeError if it would hide a method that the core calls."""
        if name in self._methods and (not callable(item) or isinstance(item, nn.Module)):
            _refuse_hiding(type(self), name)
        super().__setattr__(name, item)
        if name == "__class__":  # by torch.nn.utils.parametrize
            _ = item.arguments  # looked up here, as in __new__

    def __prepare_scriptable__(self) -> Any:
        """What torch.jit.script calls first, also for a layer that holds Ω."""
        raise NotImplementedError(
            f"torch.jit.script compiles no {type(self).__name__}; use torch.export, and ONNX or "
            "AOTInductor where there is no Python"
        )

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Initialise the nn.Module, so that an ``__init__`` need not call super()."""
        if cls.__hash__ is None:  # a dataclass; modules compare by identity
            cls.__eq__, cls.__hash__ = object.__eq__, object.__hash__
        self = super().__new__(cls)
        _ = cls.arguments  # looked up here, because Dynamo cannot
        nn.Module.__init__(self)
        return self

    def __init__(self) -> None:
        """Does nothing: ``__new__`` initialised the module."""

    def forward(self, *_: Any) -> Any:
        """Refused: Ω(x) could mean Ω or Π_Ω."""
        raise TypeError(
            f"{type(self).__name__} is not called: RegularizedMax(omega)(x) is Π_Ω(x), and "
            "omega.value(y) is Ω(y)"
        )

    def extra_repr(self) -> str:
        """``lam=0.1``: the arguments that recreate this object. Default: the arguments that are
        also attributes, without those at their default value that are not hyperparameters."""
        return ", ".join(printing.arguments(self, self.hyperparameters or ()))

    def __repr__(self) -> str:
        """A Python expression that recreates this object (:mod:`regmax.regularizers.printing`)."""
        return printing.called(self, [self.extra_repr()])

    def __str__(self) -> str:
        """The formula; tensors are printed as a number or a shape."""
        with printing.short():
            return repr(self)

    def _latex(self) -> str:
        """The value at y in LaTeX."""
        return printing.latex(self)

    def _repr_latex_(self) -> str:
        return rf"$\displaystyle {self._symbol}(y) = {self._latex()}$"

    def __add__(self, other: Any) -> Any:
        return plus(self, other)

    __radd__ = __add__

    def __mul__(self, c: Any) -> Any:
        return times(self, c)

    __rmul__ = __mul__

    def __sub__(self, other: Any) -> Any:
        raise _no_difference(f"{self} - {printing.brief(other)}")

    def __rsub__(self, other: Any) -> Any:
        raise _no_difference(f"{printing.brief(other)} - {self}")

    def __neg__(self) -> Any:
        raise _no_difference(f"-({self})")


def _no_difference(text: str) -> TypeError:
    return TypeError(
        f"{text}: regmax subtracts no regularizer or penalty, as a difference need not be convex; "
        "accepted: a + b, and c * a with a number or tensor c >= 0"
    )


def _refuse_hiding(cls: type[Operand], name: str) -> None:
    raise TypeError(
        f"{cls.__name__}.{name} is a method of regmax.{cls._methods[name]}, which an attribute of "
        f"that name would hide: store the argument under another name, such as {name}_"
    )


def parameters_of(cls: type[Any]) -> dict[str, inspect.Parameter]:
    """The parameters of the constructor of ``cls``, by name."""
    return dict(list(inspect.signature(cls.__init__).parameters.items())[1:])


@functools.singledispatch
def plus(first: Any, second: Any) -> Any:
    """first + second."""
    raise NotImplementedError


@functools.singledispatch
def times(item: Any, c: Any) -> Any:
    """c · item."""
    raise NotImplementedError
