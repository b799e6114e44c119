"""The grid: every function of tensors that learn (``points``), in every mode (``modes``).

The values are held against independent references in mapping/test_hard_inputs.py, and the compiled
kernels against closed forms in kernels/test_rows.py and kernels/test_losses.py.
"""

import pytest
from modes import (
    autocast,
    batched,
    broken,
    checkpointed,
    compiled,
    compiled_transforms,
    differences,
    first,
    fourth,
    hessians,
    in_pytorch,
    jacobians,
    mapped,
    recorded,
    repeated,
    solved,
)
from points import MASK, OMEGAS, OWN, POINTS, SOLVED, point

# forward mode warns that it is in beta
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

SOME = (
    "max of pnorm",
    "max of coupled",
    "tsallis on simplex",
    "max of entropy on at most",
    "plans of tsallis",
    "loss of tv: distributions, mask",
    "loss of tsallis: indices, mask, smoothing",
    "loss of weighted: indices, mask, smoothing",
    "attention of tsallis",
    "attention of weighted",
    "attention of tsallis, chunks",
)
OMEGA = (differences, jacobians, hessians, mapped, in_pytorch, checkpointed, repeated, autocast)
"""Of every Ω; and of a loss, a maximum or attention, which are made of it, a part."""
MADE = (differences, mapped, in_pytorch, repeated)
DECLARED = [name for name in POINTS if not any(own in name for own in OWN)]
EXCEPT = {
    (repeated, "weighted + tv"),  # inference mode
    (mapped, "matrix"),
    (hessians, "max of coupled"),
    (recorded, "jensen_shannon"),
    *((mode, name) for name in POINTS if "plans" in name for mode in (mapped, batched)),
    *((mode, name) for name in ("matrix", "coupled") for mode in (jacobians, hessians)),
}
"""What is not offered: a matrix inside Ω where vmap runs its gradient, and plans there; linearize
where an Ω without a kernel has a prior."""
PAIRS = [
    *((mode, name) for name in OMEGAS for mode in OMEGA),
    *((mode, name) for name in POINTS if name not in OMEGAS for mode in MADE),
    *((batched, name) for name in DECLARED if not any(k in name for k in ("chunks", "linear"))),
    *((recorded, name) for name in OMEGAS if name in DECLARED),
    *((mode, name) for name in SOME for mode in (jacobians, hessians, checkpointed)),
    *((mode, name) for name in SOLVED for mode in (first, jacobians)),
    (mapped, "coupled on box"),
    (jacobians, "tv on even simplex"),
    *((autocast, name) for name in SOME if not name.startswith(("attention", "plans"))),
    *((broken, name) for name in ("weighted", "matrix", "attention of weighted")),
    *((fourth, name) for name in ("tsallis", "norm")),
]


@pytest.mark.parametrize(
    ("mode", "name"),
    [pair for pair in PAIRS if pair not in EXCEPT],
    ids=lambda t: getattr(t, "__name__", t),
)
def test_mode(mode, name):
    mode(point(name))


@pytest.mark.parametrize(
    ("name", "what"),
    [  # in a graph each mapping is one operator: a few stand for all
        ("tsallis", "mapping"),
        ("tv", "mapping"),
        ("c (pnorm + oscar)", "mapping"),
        ("divergence", "mapping"),
        ("jensen_shannon", "mapping"),
        ("gini + graph", "mapping"),
        ("tsallis", "loss"),
        ("tsallis", "attention"),
        ("tsallis + tv", "attention"),
    ],
)
def test_compiled(name, what):
    compiled(name, what, (False, True) if name == "tv" else (False,))


def test_compiled_transforms():
    compiled_transforms("tv")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    ("name", "solver"),
    [
        *(("entropy", s) for s in ("newton", "interior")),
        *(("gini", s) for s in ("newton", "fista", "interior")),
        *(("pnorm", s) for s in ("fista", "interior")),
        ("tsallis", "newton"),
        ("tsallis 1.5", "interior"),
        ("tsallis, rows", "interior"),
        ("tv", "fista"),
        ("oscar, rows", "fista"),
    ],
)
def test_a_solver(name, solver, declared, masked):
    solved(name, solver, declared, MASK if masked else None)
