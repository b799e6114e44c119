"""Fuzz answers for random Ω by value for as long as there is time:

    python tests/helpers/fuzzing.py --minutes 10 [--seed 0]

Each finding is printed with its smallest example; the exit status is 1 if there is any.
"""

import argparse
import time
import traceback
import warnings

import torch
from fuzz_random import check_random
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st


def run(examples, number=None):
    """``examples`` drawn with the seed ``number``, or the same ones each time."""

    def one(case):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_random(case)

    test = given(st.integers(0, 2**32 - 1))(one)  # cases make themselves from a number
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
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    end = time.monotonic() + 60 * args.minutes
    number, done, findings = args.seed, 0, 0
    while time.monotonic() < end:
        try:
            run(100, number)
            done += 100
        except Exception as error:
            findings += 1
            print(f"--- finding {findings}: seed {number}", flush=True)
            traceback.print_exception(error, limit=-2)
        number += 1
        left = max(end - time.monotonic(), 0)
        print(f"{left:4.0f} s left; {done} Ω; {findings} findings", flush=True)
    return int(findings > 0)


if __name__ == "__main__":
    raise SystemExit(main())
