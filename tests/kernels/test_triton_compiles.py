"""Each Triton kernel compiles for an NVIDIA GPU, ahead of time and without one.

The interpreter runs much that the compiler refuses. A process of its own, without the interpreter,
lets the launchers run with kernels that only note how they were launched, and compiles those.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton is not installed"
    ),
]

CASES = (
    # mapping, dtype, d, mask, hyperparameters' gradients
    ("gini", "float32", 1, False, False),
    ("gini", "bfloat16", 4000, True, False),
    ("gini", "float32", 16384, False, False),
    ("gini", "float32", 40000, True, False),
    ("tsallis", "float32", 1, True, True),
    ("tsallis", "bfloat16", 64, False, True),
    ("tsallis", "float64", 4096, False, True),
    ("tsallis", "float16", 40000, True, True),
    ("pnorm", "float32", 1, False, True),
    ("pnorm", "bfloat16", 4000, True, True),
    ("pnorm", "float64", 40000, False, True),
    ("tv", "float32", 1, False, True),
    ("tv", "float64", 5000, True, True),
    ("oscar", "float32", 1, True, True),
    ("oscar", "float64", 4096, False, True),
    ("generated", "float64", 1, True, False),
    ("generated", "float64", 4096, False, True),
)


def test_kernels_compile_for_hopper() -> None:
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, __file__], env=env, capture_output=True, text=True, timeout=1800
    )
    assert run.returncode == 0, run.stderr[-4000:]
    kernels = [json.loads(line) for line in run.stdout.splitlines()]
    found = {(kernel["mapping"], kernel["pass"]) for kernel in kernels}
    assert found == {(case[0], step) for case in CASES for step in ("forward", "backward")}
    for kernel in kernels:
        # a block has at most 227 KiB of shared memory, and 255 registers a thread
        assert kernel["shared"] <= 227 * 1024, kernel
        assert kernel["registers"] <= 255, kernel


def _compiled(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What the compiler makes of one launch."""
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {
        torch.float16: "fp16",
        torch.bfloat16: "bf16",
        torch.float32: "fp32",
        torch.float64: "fp64",
        torch.int8: "i8",
        torch.int32: "i32",
        torch.int64: "i64",
        torch.bool: "i1",
    }
    options = {key: kwargs[key] for key in kwargs if key in ("num_warps", "num_stages")}
    given = dict(zip(kernel.arg_names, args, strict=False))
    constants = {key: kwargs[key] for key in kwargs if key not in options}
    signature, aligned = {}, {}
    for place, parameter in enumerate(kernel.params):
        name, item = parameter.name, given.get(parameter.name)
        if name in constants:
            signature[name] = "constexpr"
        elif isinstance(item, torch.Tensor):
            signature[name] = "*" + types[item.dtype]
            aligned[(place,)] = [["tt.divisibility", 16]]
        elif item == 1 and not parameter.do_not_specialize:
            # as a launch would have it
            signature[name], constants[name] = "constexpr", 1
        else:
            signature[name] = "i32"
            if item % 16 == 0 and not parameter.do_not_specialize:
                aligned[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, aligned)
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return {
        "kernel": kernel.__name__,
        **{key: item for key, item in constants.items() if not callable(item)},
        **options,
        "dtype": signature[kernel.arg_names[0]],
        "shared": built.metadata.shared,
        **_resources(built.asm["ptx"]),
    }


def _resources(ptx: str) -> dict[str, int]:
    """Registers per thread and bytes spilled, as the assembler of Triton's wheel reports them."""
    from triton import knobs

    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", file.name, "-o", "/dev/null"]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = {}
    for key, pattern in (("registers", r"Used (\d+) reg"), ("spilled", r"(\d+) bytes spill st")):
        found[key] = max(int(number) for number in re.findall(pattern, report))
    return found


def _generated(d: int) -> Any:
    """A kernel made of a value, and its inputs."""
    import torch

    from regmax.kernels.generated import entrywise
    from regmax.kernels.generated.triton_kernel import TritonKernel

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
    import triton

    from regmax.kernels.base import Kernel
    from regmax.kernels.generated import triton_kernel  # noqa: F401 (compiled, not interpreted)
    from regmax.kernels.triton import rows

    launches: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
    kernel: Kernel

    def noted(kernel: Any, grid: object) -> Any:
        return lambda *args, **kwargs: launches.append((kernel, args, kwargs))

    triton.JITFunction.__getitem__ = noted
    rows.interpreted = lambda: True  # tensors of the CPU will do
    for mapping, dtype, d, masked, hyper in CASES:
        x = torch.zeros(3, d, dtype=getattr(torch, dtype))
        one = torch.ones(3, dtype=torch.float64)
        theta: tuple[torch.Tensor, ...] = () if mapping == "gini" else (one,)
        if mapping == "generated":
            kernel, theta = _generated(d)
        else:
            kernel = importlib.import_module(f"regmax_{mapping}._gpu").KERNEL
        mask = torch.ones(3, d, dtype=torch.bool) if masked else None
        y, part = kernel.forward(x, one, theta, mask)
        count = len(launches)
        kernel.backward(y, x, one, theta, part, hyper)
        for i, launch in enumerate(launches):
            step = "forward" if i < count else "backward"
            noted_at = {"mapping": mapping, "pass": step, "d": d}
            print(json.dumps({**noted_at, **_compiled(*launch)}), flush=True)
        launches.clear()


if __name__ == "__main__":
    main()
