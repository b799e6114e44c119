"""The report of a cross-check: objects, a table, a dict or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..regularizers import display


@dataclass(frozen=True)
class Pair:
    """Two methods compared over all rows of a batch."""

    a: str
    b: str
    max_dy: float
    max_dvjp: float | None
    bound_a: float
    bound_b: float
    vjp_bound_a: float | None
    vjp_bound_b: float | None
    seconds_a: float
    seconds_b: float
    wrong: tuple[str, ...]
    ok: bool

    @property
    def verdict(self) -> str:
        if self.ok:
            return "agree"
        return f"DISAGREE ({', '.join(self.wrong)})" if self.wrong else "DISAGREE"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "wrong": list(self.wrong), "verdict": self.verdict}


@dataclass(frozen=True)
class Declared:
    """One overridden method of Ω compared with Ω's value: relative and allowed error."""

    method: str
    error: float
    allowed: float

    @property
    def ok(self) -> bool:
        return self.error <= self.allowed

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


@dataclass(frozen=True)
class Report:
    """The result of :func:`regmax.crosscheck`.

    ``rows`` has one dict per pair of methods, ``declared`` one entry per overridden method of Ω.
    ``skipped`` lists the backends that did not run, with the reasons.
    """

    name: str
    rows: list[dict[str, Any]]
    pairs: list[Pair] = field(repr=False)
    declared: list[Declared] = field(repr=False)
    skipped: list[str]
    problems: int
    d: int

    @property
    def ok(self) -> bool:
        """Whether there is a pair of methods, all pairs agree, and all declared properties hold."""
        return (
            bool(self.pairs) and all(p.ok for p in self.pairs) and all(c.ok for c in self.declared)
        )

    @property
    def culprits(self) -> list[str]:
        """The methods and the declared properties of Ω that disagree with the rest."""
        methods = [method for pair in self.pairs for method in pair.wrong]
        return list(
            dict.fromkeys(methods + [f"declared {c.method}" for c in self.declared if not c.ok])
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "problems": self.problems,
            "d": self.d,
            "ok": self.ok,
            "culprits": self.culprits,
            "rows": self.rows,
            "declared": [c.to_dict() for c in self.declared],
            "skipped": list(self.skipped),
        }

    def to_json(self, indent: int | None = 2) -> str:
        """JSON; infinite and missing numbers are null."""
        finite = json.loads(json.dumps(self.to_dict()), parse_constant=lambda _: None)
        return json.dumps(finite, indent=indent, allow_nan=False)

    def table(self, width: int | None = None) -> str:
        """The report as text: a table of the methods with their certified bounds, one of their
        pairs, and one line per declared property. ``width``: the columns that tables may take."""
        out = [self._title()]
        for header, rows in self._tables() if self.pairs else ():
            out.append(display.table(header, rows, "  ", width))
        return "\n".join([*out, *(f"  {line}" for line in self._remarks())])

    def _title(self) -> str:
        return f"{self.name}: {self.problems} rows of {self.d}: {'ok' if self.ok else 'FAILED'}"

    def _tables(self) -> Iterator[tuple[Sequence[str], list[list[str]]]]:
        methods: dict[str, list[str]] = {}
        for p in self.pairs:
            methods[p.a] = [_number(p.bound_a), _number(p.vjp_bound_a), f"{p.seconds_a:.3f}"]
            methods[p.b] = [_number(p.bound_b), _number(p.vjp_bound_b), f"{p.seconds_b:.3f}"]
        head = ("method", "bound on y", "bound on VJP", "seconds")
        yield head, [[name, *cells] for name, cells in methods.items()]
        head = ("compared", "max |Δy|", "max |ΔVJP|", "verdict")
        yield (
            head,
            [
                [f"{p.a} | {p.b}", _number(p.max_dy), _number(p.max_dvjp), p.verdict.split(" ")[0]]
                for p in self.pairs
            ],
        )

    def _remarks(self) -> list[str]:
        out = [
            f"declared {c.method} {'holds' if c.ok else 'FAILS'}: error {_number(c.error)}"
            for c in self.declared
        ]
        out += [] if self.pairs else ["nothing to compare with"]
        out += [f"skipped {reason}" for reason in self.skipped]
        out += [f"disagreeing with the rest: {', '.join(self.culprits)}"] if self.culprits else []
        return out

    def _repr_markdown_(self) -> str:
        parts = [f"**{display.escaped(self._title())}**"]
        parts += [display.markdown(*each) for each in self._tables()] if self.pairs else []
        parts.append("\n".join(f"- {display.escaped(line)}" for line in self._remarks()))
        return "\n\n".join(parts)

    __str__ = table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"
