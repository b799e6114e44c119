"""``regmax new-plugin``: write a package with a working regularizer, for the user to change."""

from __future__ import annotations

import argparse
import builtins
import importlib.util
import keyword
import sys
from pathlib import Path
from string import Template
from typing import Any

from ..regularizers.errors import clipped
from .common import UsageError
from .listing import quiet_registry


def add_to(commands: Any) -> None:
    """Add this command to the parser's subcommands."""
    parser = commands.add_parser(
        "new-plugin",
        help="write a package with a regularizer of your own",
        description="Writes the folder regmax-NAME: a Python package with a small working "
        "regularizer, its entry point, and tests of every promise of a mapping. You then change "
        "the formula.",
        epilog="example: regmax new-plugin elastic",
    )
    parser.add_argument(
        "name", metavar="NAME", help="of the regularizer: letters, digits, - or _ (elastic)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="the folder in which to create regmax-NAME (default: here)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the package and say what to do next."""
    words = named(arguments.name)
    home: Path = arguments.out / words["project"]
    files = {
        name: Template(text).substitute(words)
        for name, text in (
            ("pyproject.toml", PYPROJECT),
            ("README.md", README),
            (f"{words['module']}.py", MODULE),
            (f"tests/test_{words['name']}.py", TEST),
        )
    }
    try:
        if home.exists():
            raise UsageError(
                f"{home} exists already; choose another NAME, or another folder by --out"
            )
        (home / "tests").mkdir(parents=True)
        for name, text in files.items():
            (home / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {home}: {error.strerror or error}") from error
    print(f"wrote {home}: {', '.join(files)}")
    print(Template(NEXT).substitute(words, home=home), end="")
    return 0


def named(given: str) -> dict[str, str]:
    """The names that follow from NAME; :class:`UsageError` if it is invalid or taken.

    ``My-Norm`` gives the regularizer ``my_norm``, the mapping ``mynormmax``, the class ``MyNorm``,
    the module ``regmax_my_norm`` and the project ``regmax-my-norm``.
    """
    name = given.lower().replace("-", "_").removeprefix("regmax_")
    words_of_python = {*keyword.kwlist, *dir(builtins), *sys.stdlib_module_names}
    if not (name.isascii() and name.isidentifier() and len(name) <= 60) or name in {
        word.lower() for word in words_of_python
    }:
        raise UsageError(
            f"NAME must be at most 60 letters, digits, - or _, begin with a letter and be no word "
            f"or module of Python; got {clipped(given, 80)!r}"
        )
    parts = [part for part in name.split("_") if part]
    if not parts or name != "_".join(parts):
        raise UsageError(f"NAME must be words, with one - or _ between two of them; got {given!r}")
    words = "".join(parts)
    mapping = words if words.endswith("max") else f"{words}max"
    found, module = quiet_registry(), f"regmax_{name}"
    offers = [*found.offers("regularizer"), *found.offers("penalty")]
    takers = [str(offer) for offer in offers if offer.name == name]
    if mapping in found.by_mapping:
        takers.append(f"the mapping {mapping!r}")
    if importlib.util.find_spec(module) is not None:
        takers.append(f"the installed module {module!r}")
    if takers:
        raise UsageError(f"the name {name!r} is taken by {takers[0]}; choose another NAME")
    return {
        "name": name,
        "mapping": mapping,
        "cls": "".join(part.capitalize() for part in parts),
        "module": module,
        "project": f"regmax-{'-'.join(parts)}",
    }


NEXT = """\
It works as it is. Next:
  cd $home
  pip install -e '.[test]'
  change the formula in $module.py
  python -m pytest        # each promise of a mapping, about a minute
  regmax validate $name   # a cross-check with convex solvers
"""

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "$project"
version = "0.1.0"
description = "$mapping, a mapping for regmax"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["regmax"]

[project.optional-dependencies]
test = ["pytest", "regmax[testing,validate]"]

# regmax finds the module through this group
[project.entry-points.regmax]
$name = "$module"

[tool.hatch.build.targets.wheel]
only-include = ["$module.py"]
"""

README = """\
# $project

A regularizer for [regmax](https://github.com/regmax/regmax). Its mapping is $mapping.

```sh
pip install -e '.[test]'
python -m pytest
regmax validate $name
```

```python
import torch
from regmax.functional import $mapping

print($mapping(torch.tensor([1.0, 1.1, 0.2, -0.5, 0.9])))
```
"""

MODULE = '''\
"""$mapping, a mapping for regmax."""

from __future__ import annotations

from typing import Any

import torch

import regmax


class $cls(regmax.Regularizer):
    """Ω(y) = ½ Σ y² + (μ/4) Σ y⁴, μ ≥ 0: like sparsemax, with smaller large weights.

    ``mu``: a float, or a tensor that broadcasts to the scores with size 1 along ``dim``.
    """

    # Change: the name is for regmax.regularizer("$name") and `regmax validate $name`, the mapping
    # for `from regmax.functional import $mapping`.
    name = "$name"
    mapping = "$mapping"

    # Change: hyperparameters that may differ between rows and be learned, with accepted ranges.
    hyperparameters = ("mu",)
    ranges = {"mu": (">= 0", lambda mu: mu >= 0)}

    # Change: declared properties, which make regmax faster. All are optional. Remove those that do
    # not hold for your Ω: the test check_separable fails where separable is false, and so on.
    permutation_invariant = True  # Ω is the same for every order of the entries
    separable = True  # Ω(y) = Σ g(y_i)
    ignores_zeros = True  # entries that are 0 do not change Ω
    strong_convexity = 1.0  # β: ∇²Ω ⪰ βI on the simplex, here from ½ Σ y²

    def __init__(self, mu: float | torch.Tensor = 1.0) -> None:
        self.mu = self.checked("mu", mu)

    def value(self, y: torch.Tensor) -> torch.Tensor:
        """Ω(y): (*batch, d) -> (*batch)."""
        # Change: the formula. It is strictly convex, in PyTorch operations, and sums over the last
        # dimension. y is on the simplex; every entry is positive, but may be tiny. per_row("mu")
        # has the shape of the result. self.mu has y's shape, with size 1 in the last dimension.
        return y.square().sum(-1) / 2 + self.per_row("mu") * y.pow(4).sum(-1) / 4

    def as_cvxpy(self, y: Any) -> Any:
        """Ω of a cvxpy variable, for cross-checks with convex solvers."""
        # Change: the same formula with cvxpy's functions, or remove the method.
        import cvxpy

        return cvxpy.sum_squares(y) / 2 + float(self.mu) / 4 * cvxpy.sum(cvxpy.power(y, 4))

    # Add if you know them: grad(y), curvature(y), closed_form(x, gamma, mask),
    # conjugate(x, gamma, mask). They make regmax faster, and the tests check them.


@regmax.hookimpl
def regmax_regularizers() -> list[type[regmax.Regularizer]]:
    return [$cls]
'''

TEST = '''\
"""$mapping keeps every promise of a mapping."""

from $module import $cls

from regmax.testing import parametrize_with_checks


@parametrize_with_checks([$cls()])
def test_$name(omega, check):
    check(omega)
'''
