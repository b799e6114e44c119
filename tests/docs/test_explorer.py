"""The explorer's mappings, in JavaScript, are regmax's."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import regmax
from regmax import functional

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
    def mapping(x, gamma, lam, alpha, p):
        omega = regmax.regularizer(base, **({"alpha": 1.5} if base == "tsallis" else {}))
        return regmax.RegularizedMax(omega + lam * regmax.penalty(penalty), gamma=gamma)(x)

    return mapping


REFERENCES = {
    ("entropy", "none"): lambda x, gamma, **_: functional.softmax(x, gamma=gamma),
    ("gini", "none"): lambda x, gamma, **_: functional.sparsemax(x, gamma=gamma),
    ("entmax15", "none"): lambda x, gamma, **_: functional.entmax15(x, gamma=gamma),
    ("tsallis", "none"): lambda x, gamma, alpha, **_: functional.entmax(x, alpha, gamma=gamma),
    ("pnorm", "none"): lambda x, gamma, p, **_: functional.pnormmax(x, p, gamma=gamma),
    ("gini", "tv"): lambda x, gamma, lam, **_: functional.fusedmax(x, lam, gamma=gamma),
    ("gini", "oscar"): lambda x, gamma, lam, **_: functional.oscarmax(x, lam, gamma=gamma),
    ("entropy", "tv"): composed("entropy", "tv"),
    ("entmax15", "tv"): composed("tsallis", "tv"),
    ("entropy", "oscar"): composed("entropy", "oscar"),
    ("entmax15", "oscar"): composed("tsallis", "oscar"),
}


def rows() -> list[tuple[list[float], dict[str, float]]]:
    """Scores of 1 to 12 entries, some tied, and hyperparameters over the explorer's ranges."""
    generator = torch.Generator().manual_seed(7)
    found = []
    for i in range(400):
        x = torch.randn(1 + i % 12, generator=generator, dtype=torch.float64)
        x = x * (0.3, 1.0, 2.0)[i % 3]
        if i % 5 == 0:
            x = (2 * x).round() / 2
        found.append(
            (
                x.tolist(),
                {
                    "gamma": (0.25, 0.7, 1.0, 3.0)[i % 4],
                    "lam": (0.02, 0.1, 0.5, 1.0)[i // 4 % 4],
                    "alpha": (1.0, 1.1, 1.3, 1.5, 2.0, 2.5, 4.0)[i % 7],
                    "p": (1.1, 1.3, 1.5, 2.0)[i // 2 % 4],
                },
            )
        )
    return found


@pytest.fixture(scope="module")
def answers():
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node, to run JavaScript")
    asked = [(*mapping, x, h) for mapping in REFERENCES for x, h in rows()]
    command = [node, "-e", PROGRAM, str(MAPPINGS)]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = iter(json.loads(done.stdout))
    return {mapping: [next(found) for _ in rows()] for mapping in REFERENCES}


@pytest.mark.parametrize("mapping", REFERENCES, ids="+".join)
def test_weights_zeros_threshold_and_groups_are_those_of_regmax(answers, mapping):
    for (x, h), answer in zip(rows(), answers[mapping], strict=True):
        wanted = REFERENCES[mapping](torch.tensor(x, dtype=torch.float64), **h)
        y = torch.tensor(answer["y"], dtype=torch.float64)
        assert (y - wanted).abs().max() <= 1e-14, (x, h)
        assert torch.equal(y == 0, wanted == 0), (x, h, y, wanted)
        assert answer["zeros"] == (y == 0).int().tolist(), (x, h, y)
        for group in answer["groups"]:
            assert len({wanted[i].item() for i in group}) == 1, (x, h, group, wanted)
        if len(set(x)) == len(x):  # without ties, equal weights are a group
            positive = [group for group in answer["groups"] if wanted[group[0]] > 0]
            assert len(positive) == len(set(wanted[wanted > 0].tolist())), (x, h, wanted)
