"""Finds plugins through the entry-point group ``regmax``, the built-in ones included.

A faulty plugin does not stop regmax: one :class:`regmax.PluginWarning` names the plugin, its
distribution, the hook and the reason, and the rest works. If two plugins use one name, only a
request for that name is an error.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, entry_points
from typing import Any

import pluggy

from ..kernels import process
from . import hooks
from .errors import PluginError, PluginWarning
from .operand import parameters_of

GROUP = "regmax"
KINDS = {
    "regularizer": "regmax_regularizers",
    "penalty": "regmax_penalties",
    "solver": "regmax_solvers",
    "backend": "regmax_backends",
}
# the methods that a class must have, and the base class that provides them
REQUIRED = {
    "regularizer": (("value", "with_tensors"), "regmax.Regularizer"),
    "penalty": (("value", "prox"), "regmax.Penalty"),
    "solver": (("unsuitable", "run"), "regmax.solvers.Solver"),
    "backend": (("missing", "unsuitable", "answers"), "regmax.testing.backends.Backend"),
}


@dataclass(frozen=True)
class Offer:
    """One class that one plugin offers."""

    name: str
    cls: type[Any]
    plugin: str
    distribution: str

    def __str__(self) -> str:
        return f"{self.cls.__qualname__} of plugin {self.plugin!r} ({self.distribution})"


class Registry:
    """Everything that the installed plugins offer, by kind and name."""

    def __init__(self, points: list[EntryPoint]) -> None:
        self.faults: list[str] = []
        self._offers: dict[str, dict[str, list[Offer]]] = {k: defaultdict(list) for k in KINDS}
        # one installation can be found through several folders of sys.path
        unique = {(p.name, p.value, _distribution(p.dist)): p for p in points}
        for (_, _, distribution), point in sorted(unique.items()):
            self._load(point, distribution)

    def _load(self, point: EntryPoint, distribution: str) -> None:
        plugin = point.name
        # one manager per plugin, as pluggy lets an entry point hide another of the same name
        manager = pluggy.PluginManager(GROUP)
        manager.add_hookspecs(hooks)
        process.awaited.add(point.module.split(".")[0])
        try:
            manager.register(point.load(), plugin)
        except Exception as error:
            self._fault(plugin, distribution, "its import", error)
            return
        try:
            manager.check_pending()
        except pluggy.PluginValidationError as error:
            known = ", ".join(f"{h}()" for h in KINDS.values())
            self._fault(plugin, distribution, f"an unknown hook (known: {known})", error)
        for kind, hook in KINDS.items():
            for impl in getattr(manager.hook, hook).get_hookimpls():
                try:
                    classes = list(impl.function())
                    offers = [Offer(_name(c, kind), c, plugin, distribution) for c in classes]
                except Exception as error:
                    self._fault(plugin, distribution, f"hook {hook}", error)
                    continue
                for offer in offers:
                    self._offers[kind][offer.name].append(offer)

    def _fault(self, plugin: str, distribution: str, where: str, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        message = f"regmax plugin {plugin!r} ({distribution}) failed in {where}: {reason}"
        self.faults.append(message)
        warnings.warn(message, PluginWarning, stacklevel=2)

    def offers(self, kind: str) -> Iterator[Offer]:
        """Every offer of a kind, sorted by name; a duplicate name comes once per plugin."""
        for name in sorted(self._offers[kind]):
            yield from self._offers[kind][name]

    def names(self, kind: str) -> dict[str, type[Any]]:
        """The names of a kind that one plugin offers, with their classes."""
        found = self._offers[kind]
        return {name: found[name][0].cls for name in sorted(found) if len(found[name]) == 1}

    def get(self, kind: str, name: str) -> type[Any]:
        """The class of that name; :class:`PluginError` if there are none or several."""
        return self._one(self._offers[kind].get(name, []), kind, name, self.names(kind))

    def origin(self, kind: str, name: str) -> str:
        """The distribution that offers ``name``."""
        self.get(kind, name)
        return self._offers[kind][name][0].distribution

    @functools.cached_property
    def _mappings(self) -> dict[str, list[Offer]]:
        found: dict[str, list[Offer]] = defaultdict(list)
        for offer in self.offers("regularizer"):
            for name in _mapping_names(offer.cls):
                found[name].append(offer)
        return dict(found)

    def mappings(self) -> list[str]:
        """The names in ``regmax.functional``."""
        return sorted(self._mappings)

    def mapping(self, name: str) -> type[Any]:
        """The regularizer class of a mapping of ``regmax.functional``."""
        return self._one(self._mappings.get(name, []), "mapping", name, self._mappings)

    def _one(self, found: list[Offer], kind: str, name: str, known: Any) -> type[Any]:
        if len(found) == 1:
            return found[0].cls
        if found:
            claims = " and ".join(str(offer) for offer in found)
            raise PluginError(
                f"the {kind} name {name!r} is claimed by {claims}; uninstall one of them"
            )
        raise self.unknown(kind, name, sorted(known))

    def unknown(self, kind: str, name: str, known: list[str]) -> PluginError:
        """The error for a name that no plugin offers, with a suggestion."""
        hint = "" if known else " No plugin is installed: install regmax itself (pip install -e .)."
        if self.faults:
            hint += f" Failed plugins: {'; '.join(self.faults)}."
        means = {}
        if kind == "regularizer":
            means = {mapping: offers[0].name for mapping, offers in self._mappings.items()}
        return PluginError(
            f"no {kind} is named {name!r}{suggestion(name, known, means)}; "
            f"accepted: {', '.join(known) or '(none)'}.{hint}"
        )


def suggestion(name: str, known: Iterable[str], means: Mapping[str, str] | None = None) -> str:
    """`` (did you mean 'gini'?)`` for "ginni", or "". ``means``: further names and the names that
    they stand for."""
    meant = {**(means or {}), **{each: each for each in known}}
    like = {each.lower(): each for each in meant}
    found = difflib.get_close_matches(name.lower(), like, 1, 0.7)
    return f" (did you mean {meant[like[found[0]]]!r}?)" if found else ""


def _name(cls: Any, kind: str) -> str:
    """The name of an offered class; TypeError if the class does not fit the hook."""
    name = getattr(cls, "name", "")
    methods, base = REQUIRED[kind]
    if not isinstance(cls, type) or not all(hasattr(cls, method) for method in methods):
        raise TypeError(f"expected subclasses of {base}; got {cls!r}")
    if not isinstance(name, str) or not name:
        raise TypeError(f"{cls!r} needs a class attribute `name`, a non-empty str; got {name!r}")
    if kind == "regularizer":
        _mapping_names(cls)
    return name


def _mapping_names(cls: Any) -> tuple[str, ...]:
    mapping = cls.mapping
    names = (mapping,) if isinstance(mapping, str) else mapping
    if not isinstance(names, tuple | list) or not all(
        isinstance(n, str) and n.isidentifier() for n in names
    ):
        raise TypeError(
            f"{cls!r}: `mapping` must be a Python name or a tuple of names; got {mapping!r}"
        )
    return tuple(names)


@functools.cache
def _distribution(found: Distribution | None) -> str:
    return f"{found.name} {found.version}" if found else "no distribution"


def required(cls: type[Any]) -> list[str]:
    """The arguments of the constructor that have no default."""
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    items = parameters_of(cls).items()
    return [k for k, p in items if p.default is p.empty and p.kind not in many]


def instance(cls: type[Any], kind: str, name: str, hyper: dict[str, Any]) -> Any:
    """``cls(**hyper)``; a TypeError for a wrong keyword lists the accepted ones."""
    accepted = parameters_of(cls)
    unknown = [key for key in hyper if key not in accepted]
    if unknown:
        raise TypeError(
            f"{kind} {name!r} has no hyperparameter {', '.join(map(repr, unknown))}; "
            f"accepted: {', '.join(accepted) or '(none)'}"
        )
    missing = [key for key in required(cls) if key not in hyper]
    if missing:
        needed = ", ".join(f"{key}=..." for key in missing)
        raise TypeError(f"{kind} {name!r} needs {needed}; got {', '.join(hyper) or 'nothing'}")
    return cls(**hyper)


@functools.cache
def registry() -> Registry:
    """The registry of this process, made on first use."""
    return Registry(list(entry_points(group=GROUP)))
