"""Finds plugins through the entry-point group ``regmax``, the built-in ones included.

A faulty plugin does not stop regmax: one :class:`regmax.PluginWarning` names the plugin, its
distribution, the hook and the reason, and the rest works. If two plugins use one name, only a
request for that name is an error; ``distribution.name`` tells them apart.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import keyword
import re
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import EntryPoint, distributions, entry_points
from typing import Any

import pluggy

from ..kernels import process
from ..kernels.base import held
from . import hooks
from .errors import PluginError, PluginWarning, class_name, clipped, told, warn
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


@dataclass(frozen=True, eq=False)
class Offer:
    """One class that one plugin offers."""

    name: str
    cls: type[Any]
    plugin: str
    distribution: str
    mappings: tuple[str, ...] = ()

    @property
    def package(self) -> str:
        """The distribution as a name of Python: ``my_norms`` for "my-norms 1.2"."""
        return re.sub(r"\W+|^(?=\d)", "_", self.distribution.split(" ")[0]).lower()

    @property
    def text(self) -> str:
        """The class in the text of an Ω: ``Tsallis``; of a third party ``my_norms.Tsallis``."""
        name = class_name(self.cls)
        return name if self.package == "regmax" else f"{self.package}.{name}"

    def __str__(self) -> str:
        return f"{class_name(self.cls)} of plugin {self.plugin!r} ({self.distribution})"


class Registry:
    """Everything that the installed plugins offer, by kind and name."""

    def __init__(self, points: list[EntryPoint]) -> None:
        self.faults: list[str] = []
        self._unsaid: list[tuple[str, type[Warning]]] = []
        self._offers: dict[str, dict[str, list[Offer]]] = {
            kind: defaultdict(list) for kind in (*KINDS, "mapping")
        }
        # one installation can be found through several folders of sys.path
        unique = {(p.name, p.value, _distribution(p)): p for p in points}
        for (_, _, distribution), point in sorted(unique.items()):
            with _signals() as arrived:
                self._load(point, distribution, arrived)

    def _load(self, point: EntryPoint, distribution: str, arrived: list[int]) -> None:
        plugin = point.name

        def fault(where: str, error: BaseException) -> None:
            if arrived and not isinstance(error, Exception):
                raise error  # by a signal: Ctrl-C of the user, not the plugin
            reason = f"{class_name(type(error))}: {told(error)}"
            self.warn(
                f"regmax plugin {plugin!r} ({distribution}) failed in {where}: {reason}",
                PluginWarning,
            )

        # one manager per plugin, as pluggy lets an entry point hide another of the same name
        manager = pluggy.PluginManager(GROUP)
        manager.add_hookspecs(hooks)
        process.awaited.add(point.module.split(".")[0])
        # a plugin may raise anything: SystemExit too is a fault of its own
        try:
            manager.register(point.load(), plugin)
        except BaseException as error:
            fault("its import", error)
            return
        try:
            manager.check_pending()
        except BaseException as error:
            known = ", ".join(f"{h}()" for h in KINDS.values())
            fault(f"an unknown hook (known: {known})", error)
        for kind, hook in KINDS.items():
            for impl in getattr(manager.hook, hook).get_hookimpls():
                try:
                    offers = [_offer(c, kind, plugin, distribution) for c in impl.function()]
                except BaseException as error:
                    fault(f"hook {hook}", error)
                    continue
                for offer in offers:
                    each = ((kind, offer.name), *(("mapping", name) for name in offer.mappings))
                    for table, name in each:
                        known_ones = self._offers[table][name]
                        if all(offer.cls is not other.cls for other in known_ones):
                            known_ones.append(offer)

    def warn(self, message: str, category: type[Warning]) -> None:
        """Note a fault, of which :meth:`report` warns."""
        self.faults.append(message)
        self._unsaid.append((message, category))

    def report(self) -> None:
        """Warn of each fault, once. All plugins are loaded by then, in case a warning is an
        error."""
        unsaid, self._unsaid = self._unsaid, []
        for message, category in unsaid:
            warn(message, category)

    def offers(self, kind: str) -> Iterator[Offer]:
        """Every offer of a kind, sorted by name; a duplicate name comes once per plugin."""
        for name in sorted(self._offers[kind]):
            yield from self._offers[kind][name]

    def names(self, kind: str) -> dict[str, type[Any]]:
        """The names of a kind that one plugin offers, with their classes."""
        found = self._offers[kind]
        return {name: found[name][0].cls for name in sorted(found) if len(found[name]) == 1}

    def get(self, kind: str, name: str) -> type[Any]:
        """The class of that name, or of ``distribution.name``; :class:`PluginError` if there are
        none or several."""
        return self._one(self._found(kind, name), kind, name, self.names(kind))

    def origin(self, kind: str, name: str) -> str:
        """The distribution that offers ``name``."""
        self.get(kind, name)
        return self._found(kind, name)[0].distribution

    @property
    def by_mapping(self) -> dict[str, list[Offer]]:
        """The regularizers that offer each name in ``regmax.functional``, the kind "mapping"."""
        return dict(self._offers["mapping"])

    def first(self, name: str, *kinds: str) -> tuple[str, type[Any]] | None:
        """The first of the ``kinds`` ("mapping", or of KINDS) that has this name, and its class;
        None if none has. PluginError if several distributions claim the name in these kinds."""
        found = {kind: offers for kind in kinds if (offers := self._found(kind, name))}
        offers = [offer for each in found.values() for offer in each]
        if len({offer.distribution for offer in offers}) > 1:
            self._one(offers, " or ".join(found), name, ())
        for kind, each in found.items():
            return kind, self._one(each, kind, name, ())
        return None

    def _found(self, kind: str, name: str) -> list[Offer]:
        """The offers of a name, or of ``distribution.name``."""
        table, (package, _, own) = self._offers[kind], name.rpartition(".")
        inside = [offer for offer in table.get(own, []) if package and offer.package == package]
        return [*table.get(name, []), *inside]

    def _one(self, found: list[Offer], kind: str, name: str, known: Iterable[str]) -> type[Any]:
        if len(found) == 1:
            return found[0].cls
        if found:
            claims = " and ".join(str(offer) for offer in found)
            apart = {f"{offer.package}.{name}" for offer in found}
            hint = f", or write {' or '.join(map(repr, sorted(apart)))}" if len(apart) > 1 else ""
            raise PluginError(
                f"the {kind} name {name!r} is claimed by {claims}; uninstall one of them{hint}"
            )
        raise self.unknown(kind, name, sorted(known))

    def unknown(self, kind: str, name: str, known: list[str]) -> PluginError:
        """The error for a name that no plugin offers, with a suggestion."""
        hint = "" if known else " No plugin is installed: install regmax itself (pip install -e .)."
        if self.faults:
            hint += f" Failed plugins: {clipped('; '.join(self.faults), 2000)}."
        other = {"regularizer": "penalty", "penalty": "regularizer"}.get(kind)
        if other is not None and known:
            hint = f" regmax.{other}(name) makes {', '.join(self.names(other))}.{hint}"
        means = {}
        if kind == "regularizer":
            means = {mapping: each[0].name for mapping, each in self._offers["mapping"].items()}
        return PluginError(
            f"no {kind} is named {clipped(name, 100)!r}{suggestion(name, known, means)}; "
            f"accepted: {', '.join(known) or '(none)'}.{hint}"
        )


def suggestion(name: str, known: Iterable[str], means: Mapping[str, str] | None = None) -> str:
    """`` (did you mean 'gini'?)`` for "ginni", or "". ``means``: further names and the names that
    they stand for."""
    meant = {**(means or {}), **{each: each for each in known}}
    like = {each.lower(): each for each in meant}
    found = difflib.get_close_matches(name.lower(), like, 1, 0.7)
    return f" (did you mean {meant[like[found[0]]]!r}?)" if found else ""


def _offer(cls: Any, kind: str, plugin: str, distribution: str) -> Offer:
    """What a hook offers; TypeError if it does not fit the hook."""
    name, who = getattr(cls, "name", ""), {cls: repr(cls)}[cls]  # its metaclass may raise in both
    methods, base = REQUIRED[kind]
    if not isinstance(cls, type) or not all(hasattr(cls, method) for method in methods):
        raise TypeError(f"expected subclasses of {base}; got {who}")
    if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= 100):
        raise TypeError(
            f"{who} needs a class attribute `name`, a printable str of 1 to 100 characters; "
            f"got {name!r}"
        )
    if kind == "solver" and name == "auto":
        raise TypeError(f'{who}: solver="auto" is regmax\'s choice; give it another name')
    mappings = _mapping_names(cls) if kind == "regularizer" else ()
    return Offer(str.__str__(name), cls, plugin, distribution, mappings)


def _mapping_names(cls: Any) -> tuple[str, ...]:
    mapping = cls.mapping
    names = (mapping,) if isinstance(mapping, str) else mapping
    used = vars(sys.modules[f"{__name__.partition('.')[0]}.functional"])
    if not isinstance(names, tuple | list) or not all(
        isinstance(n, str)
        and n.isidentifier()
        and n[0] != "_"
        and not keyword.iskeyword(n)
        and n not in used
        and len(n) <= 100
        for n in names
    ):
        raise TypeError(
            f"{cls!r}: `mapping` must be a Python name or a tuple of names, without keywords, a "
            f"leading _ and what regmax.functional imports; got {mapping!r}"
        )
    return tuple(dict.fromkeys(map(str.__str__, names)))


def _distribution(point: EntryPoint) -> str:
    found = point.dist
    try:
        return f"{found.name} {found.version}" if found else "no distribution"
    except Exception:  # its metadata may be broken
        return "no distribution"


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The signals that arrive inside and have a handler in Python. What a handler raises is no
    fault of the code that it interrupts. Handlers run in the main thread alone."""
    arrived: list[int] = []

    def heard(handler: Any) -> Any:
        def also(number: int, frame: Any) -> Any:
            arrived.append(number)
            return handler(number, frame)

        return also

    ours = {}
    if threading.current_thread() is threading.main_thread():
        for number in signal.valid_signals():
            before = signal.getsignal(number)
            if callable(before):
                ours[number] = before, heard(before)
                signal.signal(number, ours[number][1])
    try:
        yield arrived
    finally:
        for number, (before, handler) in ours.items():
            if signal.getsignal(number) is handler:  # a plugin may have set its own
                signal.signal(number, before)


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


def registry() -> Registry:
    """The registry of this process, made on first use, when it warns of plugins at fault."""
    found = _loaded()
    if not _loading.get():
        found.report()
    return found


_loading = ContextVar("regmax_loading_plugins", default=False)
"""Whether plugins are being loaded, whose own code may ask for the registry."""


@functools.cache
def _loaded() -> Registry:
    try:
        points = list(entry_points(group=GROUP))
    except Exception:  # a package that is no plugin may have entry points that cannot be read
        points = list(_readable())
    with held(_loading, True):
        return Registry(points)


def _readable() -> Iterator[EntryPoint]:
    seen = set()
    for found in distributions():
        try:
            name = found.name
            points = list(found.entry_points.select(group=GROUP))
        except Exception:
            continue
        if name not in seen:  # the first one on sys.path counts
            seen.add(name)
            yield from points
