"""The report of a cross-check: objects, a table, a dict or JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any


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

        def plain(item: Any) -> Any:
            if isinstance(item, dict):
                return {k: plain(v) for k, v in item.items()}
            if isinstance(item, list):
                return [plain(v) for v in item]
            if isinstance(item, float) and not math.isfinite(item):
                return None
            return item

        return json.dumps(plain(self.to_dict()), indent=indent, allow_nan=False)

    def table(self) -> str:
        """A table with one line per pair of methods, then one line per declared property."""
        head = ("methods", "max |Δy|", "bounds", "max |ΔVJP|", "bounds", "seconds", "verdict")
        lines = [head]
        for p in self.pairs:
            lines.append(
                (
                    f"{p.a} | {p.b}",
                    _number(p.max_dy),
                    f"{_number(p.bound_a)} + {_number(p.bound_b)}",
                    _number(p.max_dvjp),
                    f"{_number(p.vjp_bound_a)} + {_number(p.vjp_bound_b)}",
                    f"{p.seconds_a:.3f} | {p.seconds_b:.3f}",
                    p.verdict,
                )
            )
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        out = [f"{self.name}: {self.problems} rows of {self.d}: {'ok' if self.ok else 'FAILED'}"]
        for line in lines:
            out.append("  " + "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)))
        for c in self.declared:
            state = "holds" if c.ok else "FAILS"
            out.append(f"  declared {c.method} {state}: error {_number(c.error)}")
        if not self.pairs:
            out.append("  nothing to compare with")
        out += [f"  skipped {reason}" for reason in self.skipped]
        if self.culprits:
            out.append(f"  disagreeing with the rest: {', '.join(self.culprits)}")
        return "\n".join(line.rstrip() for line in out)

    __str__ = table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"
