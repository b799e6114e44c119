"""Fuzz answers for random Ω by value for as long as there is time:

    python tests/helpers/fuzzing.py --minutes 10 [--only certificate] [--seed 0]

Each finding is printed with its smallest example; the exit status is 1 if there is any.
"""

import argparse
import time
import traceback
import warnings

import torch
from fuzz_certificates import check_certificate
from fuzz_random import check_random
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st


def seeds():
    """Cases that make themselves from a number."""
    return st.integers(0, 2**32 - 1)


FUZZED = {
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
