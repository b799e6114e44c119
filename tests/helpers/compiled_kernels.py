"""What NVIDIA's compiler makes of the launches of a Triton kernel, ahead of time and without a GPU.

    python tests/helpers/compiled_kernels.py          prints the table of tests/kernels
    python tests/helpers/compiled_kernels.py --write  writes it

In a process without Triton's interpreter: the launchers only note how kernels were launched.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "kernels" / "triton_counts.json"
# mapping, dtype, d, hyperparameter (None: a tensor that learns), whether there is a mask
COUNTED = (
    ("entropy", "bfloat16", 1024, 1.0, False),
    ("entropy", "float32", 40000, None, True),
    ("gini", "float32", 64, 1.0, False),
    ("gini", "float32", 8192, 1.0, False),
    ("gini", "float32", 32768, 1.0, False),
    ("gini", "bfloat16", 4000, None, True),
    ("tsallis", "float32", 64, None, False),
    ("tsallis", "float32", 1024, 1.5, False),
    ("tsallis", "float32", 32768, 1.5, False),
    ("tsallis", "float64", 4096, None, False),
    ("tsallis", "float16", 40000, None, True),
    ("pnorm", "float32", 1024, 1.5, False),
    ("pnorm", "float64", 40000, None, True),
    *((name, "float32", d, 0.1, False) for name in ("tv", "oscar") for d in (64, 2048)),
    ("tv", "float64", 2000, None, True),
    ("oscar", "float32", 1, None, True),
    ("from_value", "float64", 1, 1.0, True),
    ("from_value", "float64", 4096, None, False),
)
# losses: mapping, dtype, d, hyperparameter, ε (None: for distributions), whether there is a mask
LOSSES = (
    ("entropy", "bfloat16", 1024, 1.0, 0.0, False),
    ("entropy", "float32", 32768, 1.0, 0.1, False),
    ("gini", "float32", 64, 1.0, 0.0, False),
    ("gini", "float32", 8192, 1.0, 0.1, True),
    ("tsallis", "float32", 64, None, 0.1, True),
    ("tsallis", "float32", 1024, 1.5, 0.0, False),
    ("pnorm", "float32", 8192, 1.5, 0.1, True),
    ("entropy", "bfloat16", 1024, 1.0, None, False),
    ("gini", "float32", 8192, 1.0, None, True),
    ("tsallis", "float32", 8192, 1.5, None, True),
    ("tsallis", "float32", 32768, 1.5, None, False),
    ("pnorm", "float32", 8192, 1.5, None, False),
)
# attention: Ω, dtype, size of a head, α (None: learnt), and what else it has
ATTENTION = (
    ("gini", "float32", 64, 2.0, "causal"),
    ("tsallis", "bfloat16", 64, 1.5, "bool mask"),
    ("tsallis", "float32", 64, 1.5, "causal packed sink dropout"),
    ("tsallis", "bfloat16", 64, None, "learnt mask sink"),
    ("tsallis", "bfloat16", 128, None, "causal packed sink dropout"),
    ("entropy", "float32", 64, 1.0, "dropout"),
)


def launches(run: Callable[[], None]) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Those that ``run`` makes: kernel, arguments and options."""
    import triton

    from regmax.kernels.triton import rows

    noted: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def note(kernel: Any, grid: object) -> Any:
        return lambda *args, **kwargs: noted.append((kernel, args, kwargs))

    triton.JITFunction.__getitem__ = note
    rows.interpreted = lambda: True  # tensors of the CPU will do
    run()
    return noted


def compiled(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
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
    options = {key: kwargs[key] for key in kwargs if key in ("num_warps", "num_stages", "maxnreg")}
    given = dict(zip(kernel.arg_names, args, strict=False))
    constants = {key: kwargs[key] for key in kwargs if key not in options}
    signature, aligned = {}, {}
    for place, parameter in enumerate(kernel.params):
        name, item = parameter.name, given.get(parameter.name)
        if name in constants or item is None:
            signature[name], constants[name] = "constexpr", constants.get(name)
        elif isinstance(item, torch.Tensor):
            signature[name] = "*" + types[item.dtype]
            aligned[(place,)] = [["tt.divisibility", 16]]
        elif isinstance(item, float):
            assert parameter.annotation_type == "fp64", f"{name} would be rounded to float32"
            signature[name] = "fp64"
        elif item == 1 and not parameter.do_not_specialize:
            # as a launch would have it
            signature[name], constants[name] = "constexpr", 1
        else:
            signature[name] = "i32"
            if item % 16 == 0 and not parameter.do_not_specialize:
                aligned[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, aligned)
    start = time.thread_time()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return {
        "kernel": kernel.__name__,
        **{key: item for key, item in constants.items() if isinstance(item, int)},
        **options,
        "dtype": signature[kernel.arg_names[0]],
        "shared": built.metadata.shared,
        "seconds": round(time.thread_time() - start, 1),
        **_resources(said.getvalue(), built.asm["cubin"]),
    }


def _resources(report: str, binary: bytes) -> dict[str, int]:
    """Registers per thread and bytes spilled, as the assembler reports them, the instructions of a
    thread, and the bytes that they load from and store to global memory."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [Path(knobs.nvidia.ptxas.path).with_name("nvdisasm"), "-c", file.name]
        code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {}
    for key, pattern in (("registers", r"Used (\d+) reg"), ("spilled", r"(\d+) bytes spill st")):
        found[key] = max(int(number) for number in re.findall(pattern, report))
    names = re.findall(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w+)", code, re.MULTILINE)
    global_ = re.findall(r"\b(?:LDG|STG)(\.\S+)", code)
    width = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
    traffic = sum(max(width.get(part, 0) for part in name.split(".")) or 4 for name in global_)
    return {
        **found, "instructions": len(names), "stores": names.count("STS"), "bytes": traffic
    }  # fmt: skip


def attention(case: tuple[Any, ...]) -> None:
    """A line of ``ATTENTION``, with all gradients."""
    import torch

    from regmax.kernels.base import Arrangement

    kind, dtype, size, alpha, more = case
    kernel = importlib.import_module(f"regmax_{kind}._gpu").KERNEL.attention
    batch, heads, keys = 2, 4, 256
    q = torch.zeros(batch, heads, keys, size, dtype=getattr(torch, dtype))
    k = v = q[:, ::2].contiguous()
    mask = None
    if "mask" in more:
        mask = torch.ones(batch, 1, 1, keys) > 0
        mask = mask.expand(batch, heads, keys, keys)
        mask = mask.float() if "learnt" in more else mask
    number: Any = 1.0 if alpha else torch.ones(batch, heads)
    theta = () if kind != "tsallis" else (alpha or number,)
    how = Arrangement(
        0.1,
        diagonal=0 if "causal" in more else None,
        offsets=((0, 100, keys), (0, 100, keys)) if "packed" in more else None,
        dropout=0.1 if "dropout" in more else 0.0,
        seed=torch.zeros(1, dtype=torch.int64) if "dropout" in more else None,
    )
    given = (q, k, v, mask, number if "sink" in more else None, number, *theta)
    learnt = (not alpha for _ in theta)
    wants = (True, True, True, "learnt" in more, "sink" in more, not alpha, *learnt)

    out, kept = kernel.forward(how, True, *given)
    kernel.backward(how, wants, out, kept, *given)


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


def counts() -> dict[str, dict[str, Any]]:
    """The table: per launch, instructions, stores to shared memory and bytes of global memory of a
    thread for each of its entries, registers, bytes spilled, and seconds of compilation."""

    from triton import knobs

    from regmax.kernels.from_value import triton_kernel  # noqa: F401  compiled, not interpreted

    knobs.compilation.always_compile = knobs.nvidia.dump_ptxas_log = True

    table = {}

    def add(name: str, run: Callable[[], None], tile: tuple[str, str] | None = None) -> None:
        for launch in launches(run):
            found = compiled(*launch)
            size = _tile(found) if tile is None else found[tile[0]] * found[tile[1]]
            table[f"{name} {found['kernel']}"] = _row(found, size)

    for mapping, dtype, d, number, *epsilon, masked in (*COUNTED, *LOSSES):
        name = f"{mapping} {dtype} {d} {'tensor' if number is None else number}"
        if epsilon:
            name += " loss" if epsilon[0] is not None else " loss of distributions"
        elif masked:
            name += " mask"
        add(name, functools.partial(rows_of, mapping, dtype, d, number, epsilon, masked))
    for case in ATTENTION:
        kind, dtype, size, alpha, more = case
        name = f"{kind} {dtype} {size} {alpha or 'tensor'} {more}".rstrip()
        add(name, functools.partial(attention, case), ("BM", "BN"))
    return table


def rows_of(
    mapping: str, dtype: str, d: int, number: Any, epsilon: list[float | None], masked: bool
) -> None:
    """A line of ``COUNTED``, forward and backward, or of ``LOSSES``, which have an ε."""
    import torch

    x = torch.zeros(3, d, dtype=getattr(torch, dtype))
    mask = torch.ones(3, d, dtype=torch.bool) if masked else None
    value = torch.ones(3, dtype=torch.float64) if number is None else number
    gamma, theta = value if number is None else 1.0, (value,) * (mapping not in ("gini", "entropy"))
    if mapping == "from_value":
        kernel, theta = _from_value(d)
        gamma = torch.ones(3, dtype=torch.float64)
        y, _ = kernel.solve(x, gamma, theta, mask)
        kernel.backward(y, x, gamma, theta, number is None)
        return
    kernel = importlib.import_module(f"regmax_{mapping}._gpu").KERNEL
    if epsilon:
        target = x if epsilon[0] is None else torch.zeros(3, 1, dtype=torch.int64)
        kernel.loss(x, target, gamma, theta, mask, epsilon[0] or 0.0)
        return
    y, part = kernel.forward(x, gamma, theta, mask)
    kernel.backward(y, x, gamma, theta, part, number is None)


def _tile(found: dict[str, Any]) -> int:
    """The entries that a program processes at once."""
    block = next((found[key] for key in ("BLOCK", "CHUNK", "N", "B") if key in found), 1)
    return int(found.get("ROWS", 1) * block)


def _row(found: dict[str, Any], tile: int) -> dict[str, Any]:
    each = max(tile // (32 * found["num_warps"]), 1)
    return {
        "instructions": round(found["instructions"] / each, 1),
        "stores": round(found["stores"] / each, 1),
        "bytes": round(found["bytes"] / each, 1),
        "registers": found["registers"],
        "spilled": found["spilled"],
        "shared": found["shared"],
        "seconds": found["seconds"],
    }


if __name__ == "__main__":
    import triton

    rows = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in counts().items())
    text = f'{{\n"triton": "{triton.__version__}",\n{rows}\n}}\n'
    if "--write" in sys.argv:
        TABLE.write_text(text)
    else:
        print(text)
