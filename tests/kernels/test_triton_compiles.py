"""Each Triton kernel compiles for an NVIDIA GPU, ahead of time and without one.

The interpreter runs much that the compiler refuses. A process of its own, without the interpreter,
lets the launchers run with kernels that only note how they were launched, and compiles those.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HELPERS = Path(__file__).parents[1] / "helpers"
if str(HELPERS) not in sys.path:  # in a process of its own
    sys.path.insert(0, str(HELPERS))

import compiled_kernels  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton is not installed"
    ),
]

CASES = (
    # what test_counts does not compile: mapping, dtype, d, mask, hyperparameters' gradients
    ("entropy", "float32", 40000, True, False),
    ("gini", "bfloat16", 4000, True, False),
    ("tsallis", "float64", 4096, False, True),
    ("tsallis", "float16", 40000, True, True),
    ("pnorm", "float64", 40000, True, True),
    ("tv", "float64", 2000, True, True),
    ("oscar", "float32", 1, True, True),
    ("from_value", "float64", 1, True, False),
    ("from_value", "float64", 4096, False, True),
)


def _output(*command: str) -> str:
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, *command], env=env, capture_output=True, text=True, timeout=1800
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return run.stdout


def test_counts() -> None:
    """What the compiler makes of a launch has not grown by more than a fifth."""
    expected = json.loads(compiled_kernels.TABLE.read_text())
    version = importlib.metadata.version("triton")
    if version != expected["triton"]:
        pytest.skip(f"the table is of triton {expected['triton']}, not {version}")
    found = json.loads(_output(str(HELPERS / "compiled_kernels.py")))
    assert found.keys() == expected.keys()
    for name, row in found.items():
        if name == "triton":
            continue
        for count in ("instructions", "stores", "bytes", "registers", "spilled"):
            assert row[count] <= 1.2 * expected[name][count], (name, count, row)
        assert row["registers"] <= 255
        assert row["spilled"] == 0 or "attention" not in name


def test_kernels_compile_for_hopper() -> None:
    kernels = [json.loads(line) for line in _output(__file__).splitlines()]
    found = {(kernel["mapping"], kernel["pass"]) for kernel in kernels}
    assert found == {(case[0], step) for case in CASES for step in ("forward", "backward")}
    for kernel in kernels:
        # a block has at most 227 KiB of shared memory, and 255 registers a thread
        assert kernel["shared"] <= 227 * 1024, kernel
        assert kernel["registers"] <= 255, kernel


def _from_value(d: int) -> Any:
    """A kernel made of a value, and its inputs."""
    import torch

    from regmax.kernels.from_value import entrywise
    from regmax.kernels.from_value.triton_kernel import TritonKernel

    def value(y: torch.Tensor, w: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        own = torch.where((y > w) & ~(y > a), y.expm1(), y.pow(1.37)) - torch.special.entr(y)
        return (w * own + torch.nn.functional.softplus(a * y).erf() + y.clamp_min(0.1)).sum(-1)

    tensors = [torch.linspace(1, 2, d, dtype=torch.float64), torch.ones((), dtype=torch.float64)]
    entry = entrywise(value, torch.full((1, d), 1 / d, dtype=torch.float64), tensors)
    inputs = entry.inputs(tensors)
    theta = tuple(t.reshape(1, -1) if t.ndim and d > 1 else t.reshape(-1) for t in inputs)
    return TritonKernel(entry, inputs, d, torch.device("cpu")), theta


def main() -> None:
    import torch

    from regmax.kernels.from_value import triton_kernel  # noqa: F401 (compiled, not interpreted)

    for mapping, dtype, d, masked, hyper in CASES:
        x = torch.zeros(3, d, dtype=getattr(torch, dtype))
        one = torch.ones(3, dtype=torch.float64)
        theta: tuple[torch.Tensor, ...] = () if mapping in ("gini", "entropy") else (one,)
        kernel: Any
        if mapping == "from_value":
            kernel, theta = _from_value(d)
        else:
            kernel = importlib.import_module(f"regmax_{mapping}._gpu").KERNEL
        mask = torch.ones(3, d, dtype=torch.bool) if masked else None

        def run(noted: list[Any]) -> int:
            if mapping == "from_value":  # noqa: B023
                y, _ = kernel.solve(x, one, theta, mask)  # noqa: B023
                rest: tuple[Any, ...] = (hyper,)  # noqa: B023
            else:
                y, part = kernel.forward(x, one, theta, mask)  # noqa: B023
                rest = (part, hyper)  # noqa: B023
            count = len(noted)
            kernel.backward(y, x, one, theta, *rest)  # noqa: B023
            return count

        for step, *launch in compiled_kernels.launches(run):
            line = {"mapping": mapping, "pass": step, "d": d, **compiled_kernels.compiled(*launch)}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
