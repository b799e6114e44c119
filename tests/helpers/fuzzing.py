"""Fuzz the public API for as long as there is time:

    python tests/helpers/fuzzing.py --minutes 10 [--only mapping,loss] [--seed 0]

Each finding is printed with its smallest example; the exit status is 1 if there is any.
"""

import argparse
import time
import traceback
import warnings

import torch
from fuzz_cases import NUMBERS, masks, numbers, scores
from fuzz_certificates import check_certificate
from fuzz_checks import Mapped, check_mapping
from fuzz_layers import Expression, Layered, check_layer
from fuzz_losses import Loss, check_loss
from fuzz_random import check_random
from fuzz_truth import Term
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from regmax import functional

TERMS = (
    Term("entropy"),
    Term("gini"),
    *(Term("tsallis", a) for a in (1.5, 1.2, 2.0, 1.0, 0.6, 3.0)),
    *(Term("pnorm", p) for p in (1.5, 2.0, 1.1)),
)
PENALTIES = ("tv", "oscar", "clique_tv", "owl", "graph_tv", "grid_tv")
SOLVERS = ("auto", "auto", "auto", "newton", "newton", "interior", "fista")


@st.composite
def mapped(draw):
    name = draw(st.sampled_from(dir(functional)))
    _, own = functional.hyperparameters_of(name)
    hyper = {p.name: draw(numbers(p.name)) for p in own if p.name in NUMBERS}
    return Mapped(
        name,
        draw(scores(long=5000)),
        draw(numbers("gamma")),
        hyper,
        draw(masks()),
        reference=draw(st.booleans()),
    )


@st.composite
def expressions(draw):
    terms = draw(st.lists(st.sampled_from(TERMS), min_size=1, max_size=2, unique=True))
    factor = st.sampled_from([1.0, 0.5, 3.0, 0.01])
    terms = tuple(Term(t.name, t.theta, draw(factor)) for t in terms)
    penalty = draw(st.none() | st.sampled_from(PENALTIES))
    return Expression(terms, draw(numbers("c")), penalty, draw(numbers("lam")))


def layered():
    return st.builds(
        Layered,
        expressions(),
        scores(long=64, most=2),
        numbers("gamma"),
        masks(),
        st.sampled_from(SOLVERS),
    )


def losses():
    return st.builds(
        Loss,
        expressions(),
        scores(),
        numbers("gamma"),
        target=st.sampled_from(["index", "distribution"]),
        seed=st.integers(0, 99),
        ignored=st.sampled_from([0.0, 0.3, 1.0]),
        weighted=st.booleans(),
        smoothing=st.sampled_from([0.0, 0.0, 0.1, 1.0]),
        reduction=st.sampled_from(["none", "mean", "sum"]),
        mask=masks(),
        learns=st.booleans(),
    )


def seeds():
    """Cases that make themselves from a number."""
    return st.integers(0, 2**32 - 1)


FUZZED = {
    "mapping": (mapped, check_mapping),
    "layer": (layered, check_layer),
    "loss": (losses, check_loss),
    "certificate": (seeds, check_certificate),
    "random omega": (seeds, check_random),
}


def run(name, examples, number=None):
    """``examples`` drawn with the seed ``number``, or the same ones each time; how many ran."""
    strategy, check = FUZZED[name]

    def one(case):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check(case)

    test = given(strategy())(one)
    if number is not None:
        test = seed(number)(test)
    settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=number is None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )(test)()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--only", default=",".join(FUZZED))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    end = time.monotonic() + 60 * args.minutes
    number, done, findings = args.seed, dict.fromkeys(args.only.split(","), 0), 0
    while time.monotonic() < end:
        for name in done:
            try:
                run(name, 100, number)
                done[name] += 100
            except Exception as error:
                findings += 1
                print(f"--- finding {findings}: {name}, seed {number}", flush=True)
                traceback.print_exception(error, limit=-2)
        number += 1
        counts = ", ".join(f"{name} {count}" for name, count in done.items())
        left = max(end - time.monotonic(), 0)
        print(f"{left:4.0f} s left; {counts}; {findings} findings", flush=True)
    return int(findings > 0)


if __name__ == "__main__":
    raise SystemExit(main())
