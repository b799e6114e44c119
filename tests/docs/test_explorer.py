"""The explorer's mappings, in JavaScript, are regmax's."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import regmax
from regmax import Simplex, functional

MAPPINGS = Path(__file__).parents[2] / "docs" / "_static" / "mappings.js"
PROGRAM = """
const { solve } = require(process.argv[1]);
const rows = JSON.parse(require("fs").readFileSync(0, "utf8"));
const out = rows.map(([base, penalty, x, h]) => {
  const { y, z, threshold, groups } = solve(base, penalty, x, h);
  return { y, zeros: z.map((v) => (v <= threshold ? 1 : 0)), groups };
});
console.log(JSON.stringify(out));
"""


def composed(base: str, penalty: str):
    def mapping(x, gamma, lam, domain, **_):
        omega = regmax.regularizer(base, **({"alpha": 1.5} if base == "tsallis" else {}))
        omega = omega + lam * regmax.penalty(penalty)
        return regmax.RegularizedMax(omega, gamma=gamma, domain=domain)(x)

    return mapping


def named(name: str, hyperparameter: str | None = None):
    def mapping(x, gamma, domain, **h):
        given = () if hyperparameter is None else (h[hyperparameter],)
        return getattr(functional, name)(x, *given, gamma=gamma, domain=domain)

    return mapping


REFERENCES = {
    ("entropy", "none"): named("softmax"),
    ("gini", "none"): named("sparsemax"),
    ("entmax15", "none"): named("entmax15"),
    ("tsallis", "none"): named("entmax", "alpha"),
    ("pnorm", "none"): named("pnormmax", "p"),
    ("gini", "tv"): named("fusedmax", "lam"),
    ("gini", "oscar"): named("oscarmax", "lam"),
    ("entropy", "tv"): composed("entropy", "tv"),
    ("entmax15", "tv"): composed("tsallis", "tv"),
    ("entropy", "oscar"): composed("entropy", "oscar"),
    ("entmax15", "oscar"): composed("tsallis", "oscar"),
}


def rows(bounded: bool) -> list[tuple[list[float], dict[str, float]]]:
    """Scores of 1 to 12 entries, some tied, and hyperparameters over the explorer's ranges; with
    ``bounded`` totals and caps too, that are met exactly and not, and leave room or none."""
    generator = torch.Generator().manual_seed(7)
    found = []
    for i in range(400):
        x = torch.randn(1 + i % 12, generator=generator, dtype=torch.float64)
        x = x * (0.3, 1.0, 2.0)[i % 3]
        if i % 5 == 0:
            x = (2 * x).round() / 2
        h = {
            "gamma": (0.25, 0.7, 1.0, 3.0)[i % 4],
            "lam": (0.02, 0.1, 0.5, 1.0)[i // 4 % 4],
            "alpha": (1.0, 1.1, 1.3, 1.5, 2.0, 2.5, 4.0)[i % 7],
            "p": (1.1, 1.3, 1.5, 2.0)[i // 2 % 4],
        }
        if bounded:
            h["total"] = min((1.0, 0.5, 2.0, 3.0, 1.35)[i // 3 % 5], len(x))
            h["cap"] = max((0.25, 0.5, 1.0, 0.37)[i // 7 % 4], h["total"] / len(x))
        found.append((x.tolist(), h))
    return found


CASES = [(m, b) for m in REFERENCES for b in (False, True) if m[0] != "pnorm" or not b]


@pytest.fixture(scope="module")
def answers():
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node, to run JavaScript")
    asked = [(*mapping, x, h) for mapping, bounded in CASES for x, h in rows(bounded)]
    command = [node, "-e", PROGRAM, str(MAPPINGS)]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = iter(json.loads(done.stdout))
    return {(m, bounded): [next(found) for _ in rows(bounded)] for m, bounded in CASES}


@pytest.mark.parametrize(("mapping", "bounded"), CASES, ids=lambda i: str(i).replace("', '", "+"))
def test_weights_zeros_threshold_and_groups_are_those_of_regmax(answers, mapping, bounded):
    for (x, h), answer in zip(rows(bounded), answers[mapping, bounded], strict=True):
        domain = Simplex(h["total"], upper=h["cap"]) if bounded else Simplex()
        wanted = REFERENCES[mapping](torch.tensor(x, dtype=torch.float64), domain=domain, **h)
        y = torch.tensor(answer["y"], dtype=torch.float64)
        assert (y - wanted).abs().max() <= 1e-14, (x, h)
        crumbs = 1e-15 if bounded else 0  # roundings of a sum beside caps that make it
        assert torch.equal(y <= crumbs, wanted <= crumbs), (x, h, y, wanted)
        below = torch.tensor(answer["zeros"]).bool()
        assert (y[below] <= crumbs).all(), (x, h, y)
        assert (y[~below] > 0).all(), (x, h, y)
        for group in answer["groups"]:
            assert wanted[group].max() - wanted[group].min() <= crumbs, (x, h, group, wanted)
        if bounded:
            assert torch.equal(y >= h["cap"] - crumbs, wanted >= h["cap"] - crumbs), (
                x,
                h,
                y,
                wanted,
            )
        elif len(set(x)) == len(x):  # without ties, equal weights are a group
            positive = [group for group in answer["groups"] if wanted[group[0]] > 0]
            assert len(positive) == len(set(wanted[wanted > 0].tolist())), (x, h, wanted)
