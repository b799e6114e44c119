"""The cases of ``make gpu``, in order of importance, and the process that runs some of them.

    python -m benchmarks.gpu_cases DEVICE UNTIL [NAME ...]

It prints lines of JSON, as it goes: what a case found stays if the next one kills the process.
A case is a step of regmax that launches Triton kernels, and its rivals on the same tensors.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import importlib
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regmax
import regmax.functional
from regmax import kernels
from regmax.mapping.methods import from_value, traced
from regmax.nn import AdaptiveEntmax, attention

from . import inputs, own, page
from .peers import Candidate, candidates, regmax_candidate
from .timing import CpuWatch, CudaWatch, Step, interleave

Shape = tuple[int, ...]
Say = Callable[..., None]
LIMIT = 100
"""Seconds after which a case that has not ended ends its process."""
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 3e-2}
"""Of y, and of gradients over 1 + their largest number, by the dtype of the scores."""


@dataclass(frozen=True)
class Case:
    """``steps(shape, device)``: regmax, then the rivals."""

    full: Shape
    """Rows × scores; or sequences × heads × length × width."""
    tiny: Shape
    """For the interpreter: of the same way through the kernels."""
    steps: Callable[[Shape, str], list[Step]]
    checked: int = 64
    """Rows that are compared with the closed form."""
    groups: bool = False
    """Whether entries of y are equal in groups, which its derivative depends on."""


def _others(mapping: str) -> list[Candidate]:
    """Softmax, and the mapping by the packages that are installed."""
    found = (c for c in candidates("cuda")[0] if c.family != "regmax")
    return [c for c in found if c.mapping in ("softmax", mapping)]


def _rows(
    mapping: str, shape: Shape, device: str, kind: str = "normal", dtype: str = "float32",
    ours: Candidate | None = None,
) -> list[Step]:  # fmt: skip
    case = inputs.case(kind, shape[0], shape[1], getattr(torch, dtype), device)
    return [c.step(case) for c in (ours or regmax_candidate(mapping), *_others(mapping))]


def _own(shape: Shape, device: str) -> list[Step]:
    layer = regmax.RegularizedMax(own.Cubic())
    ours = Candidate("regmax", "", lambda x, a: layer(x))
    return _rows("", shape, device, dtype="float64", ours=ours)


def _loss(name: str, shape: Shape, device: str, dtype: str = "float32", soft: bool = False,
          learned: bool = False) -> list[Step]:  # fmt: skip
    case = inputs.case("normal", shape[0], shape[1], getattr(torch, dtype), device)
    target = torch.arange(shape[0], device=device) * 7919 % shape[1]
    if soft:
        target = case.v.float().softmax(-1).to(case.x)

    def ours(x: Tensor, t: Tensor, *alpha: Tensor) -> Tensor:
        omega = regmax.regularizer(name, **dict(zip(["alpha"], alpha, strict=False)))
        found: Tensor = regmax.FenchelYoungLoss(omega, reduction="none")(x, t)
        return found

    def cross_entropy(x: Tensor, t: Tensor, *alpha: Tensor) -> Tensor:
        return F.cross_entropy(x, t, reduction="none")

    functions: dict[str, Callable[..., Tensor]] = {"regmax": ours, "cross_entropy": cross_entropy}
    with contextlib.suppress(Exception):  # not installed, or not for this device
        liger: Any = importlib.import_module("liger_kernel.transformers")
        loss = liger.LigerCrossEntropyLoss(reduction="none")
        if not soft:  # it writes the gradient in the place of the logits
            functions["liger, of a copy"] = lambda x, t, *a: loss(x.clone(), t)
    leaves = (case.x.requires_grad_(), target, *[case.alpha.requires_grad_()] * learned)
    v = case.v[:, 0].float().contiguous()
    return [Step(k, f, leaves, v) for k, f in functions.items()]


def _attention(mapping: str, shape: Shape, device: str, dtype: str = "float32",
               causal: bool = True) -> list[Step]:  # fmt: skip
    generator = torch.Generator(device=device).manual_seed(shape[2])
    drawn = torch.randn(4, *shape, device=device, generator=generator)
    half = dtype if device == "cuda" else dtype.replace("bfloat", "float")
    q, k, v, out = drawn.to(getattr(torch, half))  # the interpreter multiplies bfloat16 wrongly
    model = AdaptiveEntmax(shape[1]).to(device)
    names, numbers = zip(*model.named_parameters(prefix="omega"), strict=True)
    learned = [t.detach().requires_grad_() for t in numbers if mapping == "entmax"]

    class Ours(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.omega = model

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention(q, k, v, self.omega if learned else mapping, is_causal=causal)

    def ours(q: Tensor, k: Tensor, v: Tensor, *alpha: Tensor) -> Tensor:
        held = dict(zip(names, alpha, strict=False))
        found: Tensor = torch.func.functional_call(Ours(), held, (q, k, v))
        return found

    functions: dict[str, Callable[..., Tensor]] = {
        "regmax": ours,
        "SDPA": lambda q, k, v, *a: sdpa(q, k, v, is_causal=causal),
    }
    with contextlib.suppress(Exception):  # not installed
        theirs: Any = importlib.import_module("adasplash").adasplash
        if mapping == "entmax15":
            functions["adasplash"] = lambda q, k, v: theirs(q, k, v, alpha=1.5, is_causal=causal)
    leaves = (*(t.contiguous().requires_grad_() for t in (q, k, v)), *learned)
    return [Step(name, f, leaves, out) for name, f in functions.items()]


def _with(mapping: str, **numbers: float) -> Candidate:
    """A mapping with other numbers than by default."""
    function = getattr(regmax.functional, mapping)
    return Candidate("regmax", mapping, lambda x, a: function(x, **numbers))


def _many(name: str, full: Shape, tiny: Shape, checked: int = 64, **more: Any) -> Case:
    groups = name in ("fusedmax", "oscarmax")
    return Case(full, tiny, functools.partial(_rows, name, **more), checked, groups)


def _losses(name: str, full: Shape, tiny: Shape, **more: Any) -> Case:
    return Case(full, tiny, functools.partial(_loss, name, **more))


def _heads(name: str, full: Shape, **more: Any) -> Case:
    return Case(full, (1, 2, 40, 16), functools.partial(_attention, name, **more), 1)


SHORT, LONG = ((16384, 1024), (3, 1024)), ((1024, 32768), (2, 20000))
CASES: dict[str, Case] = {
    "softmax": _many("softmax", *SHORT),
    "sparsemax": _many("sparsemax", *SHORT),
    "entmax15": _many("entmax15", *SHORT),
    "fusedmax": _many("fusedmax", (4096, 1024), (2, 40)),
    "oscarmax": _many("oscarmax", (4096, 1024), (2, 40), ours=_with("oscarmax", lam=2e-4)),
    "entmax15 loss": _losses("tsallis", (4096, 8192), (3, 200)),
    "entmax15 attention, bfloat16": _heads("entmax15", (4, 16, 1024, 64), dtype="bfloat16"),
    "entmax, α learned": _many("entmax", (16384, 256), (3, 60)),
    "pnormmax": _many("pnormmax", (16384, 512), (3, 60)),
    "sparsemax, long rows": _many("sparsemax", *LONG),
    "entmax15, long rows": _many("entmax15", *LONG),
    "softmax, long rows": _many("softmax", *LONG),
    "Ω by its value": Case((4096, 512), (2, 40), _own, 16),
    "sparsemax, bfloat16": _many("sparsemax", *SHORT, dtype="bfloat16"),
    "entmax15, bfloat16": _many("entmax15", *SHORT, dtype="bfloat16"),
    "cross-entropy loss": _losses("entropy", (4096, 8192), (3, 200)),
    "sparsemax loss, long rows": _losses("gini", *LONG),
    "entmax15 attention": _heads("entmax15", (4, 16, 1024, 64)),
    "softmax attention, bfloat16": _heads("softmax", (4, 16, 1024, 64), dtype="bfloat16"),
    "entmax attention, α learned": _heads("entmax", (1, 16, 1024, 64)),
    "entmax15 loss, distributions": _losses("tsallis", *LONG, soft=True),
    "entmax loss, α learned": _losses("tsallis", (4096, 1024), (3, 60), learned=True),
    "entmax, α = 3": _many("entmax", (4096, 256), (2, 60), ours=_with("entmax", alpha=3.0)),
    "sparsemax, masked": _many("sparsemax", *SHORT, kind="masked"),
    "sparsemax, float64": _many("sparsemax", *SHORT, dtype="float64"),
}  # fmt: skip


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Tensors of the CPU are for Triton's kernels, as its interpreter takes them."""
    get = kernels.Lazy.get
    with (
        mock.patch.object(kernels.Lazy, "get", lambda lazy, device: get(lazy, "cuda")),
        mock.patch.object(from_value, "method_of", return_value=None),
        mock.patch.dict(traced.COMPILERS, cpu="triton"),
    ):
        yield


@contextlib.contextmanager
def launches() -> Iterator[tuple[list[str], set[str]]]:
    """The kernels of regmax that are launched, and the modules that have a part in it."""
    launched: list[str] = []
    modules: set[str] = set()
    rows: Any = importlib.import_module("regmax.kernels.triton.rows")
    kind = type(rows._nothing)  # compiled, or interpreted
    get = kind.__getitem__

    def parts(function: Any, seen: set[Any]) -> None:
        if not isinstance(function, kind) or function in seen:
            return
        seen.add(function)
        name = function.fn.__module__
        if not name.startswith(("regmax.", "triton.")):  # generated
            name = "regmax.kernels.from_value.triton_source"
        modules.add(name)
        for used in function.fn.__code__.co_names:
            parts(function.fn.__globals__.get(used), seen)

    def noted(kernel: Any, grid: Any) -> Any:
        def launch(*args: Any, **constants: Any) -> Any:
            if kernel.fn.__module__.startswith("regmax."):
                launched.append(kernel.fn.__name__)
                seen: set[Any] = set()
                for item in (kernel, *constants.values()):
                    for each in (item, *getattr(item, "__dict__", {}).values()):
                        parts(each, seen)
                frame = sys._getframe()
                for _ in range(20):  # the launchers
                    modules.add(frame.f_globals.get("__name__", ""))
                    frame = frame.f_back or frame
            return get(kernel, grid)(*args, **constants)

        return launch

    with mock.patch.object(kind, "__getitem__", noted):
        yield launched, modules


def errors(case: Case, step: Step) -> tuple[float, float]:
    """The largest error of a step that has run, of y and of gradients, over their largest number.
    The truth is the closed form in PyTorch of some rows, on the CPU in float64."""
    assert step.y is not None
    assert step.v is not None
    size = len(step.y)
    at = torch.linspace(0, size - 1, min(case.checked, size), dtype=torch.float64).round().long()

    def few(t: Tensor) -> Tensor:
        t = t.detach()
        t = t[at.to(t.device)] if len(t) == size else t
        return (t.double() if t.is_floating_point() else t).cpu()

    leaves = [few(leaf).requires_grad_(leaf.requires_grad) for leaf in step.leaves]
    with kernels.reference():
        y = step.function(*leaves)
        y.backward(few(step.v))
    found, exact = few(step.y), y.detach()
    alike = torch.ones(len(at), dtype=torch.bool)
    if found.ndim == 2:  # J jumps where rounding moves an entry into the support, or into a group
        alike = ((found > 0) == (exact > 0)).all(-1)
        if case.groups:
            counts = [(t.sort(-1).values.diff() > 0).sum(-1) for t in (found, exact)]
            alike &= counts[0] == counts[1]
    if alike.sum() < 0.8 * len(alike):
        raise AssertionError(
            f"supports or groups differ in {int((~alike).sum())} of {len(at)} rows"
        )
    pairs = [
        (few(torch.zeros_like(a) if a.grad is None else a.grad),
         torch.zeros_like(b) if b.grad is None else b.grad)
        for a, b in zip(step.leaves, leaves, strict=True) if a.requires_grad
    ]  # fmt: skip
    rows = [(a[alike], b[alike]) if len(a) == len(at) else (a, b) for a, b in pairs]
    return _error(found, exact), max(_error(a, b) for a, b in rows)


def _error(found: Tensor, exact: Tensor) -> float:
    worst = (found - exact).abs().max() / exact.abs().max().clamp_min(1e-4)
    return float(worst.nan_to_num(torch.inf))


def check(case: Case, step: Step) -> dict[str, Any]:
    """What the first call of a step does, and its errors."""
    with warnings.catch_warnings(record=True) as heard, launches() as (launched, modules):
        warnings.simplefilter("always")
        begin = time.perf_counter()
        step.forward()
        forward = len(launched)
        step.backward()
        settle(step)
        took = time.perf_counter() - begin
    fell = "" if launched else "no kernel was launched"
    if launched and not forward:
        fell = "no kernel was launched forward"
    elif len(launched) == forward and step.y is not None and step.y.ndim > 1:
        fell = fell or "no kernel was launched backward"  # a loss finds its gradient forward
    if fell:
        fell = "; ".join([fell, *(str(w.message) for w in heard if w.category is RuntimeWarning)])
    of_y, of_gradients = errors(case, step)
    step.reset()
    bound = TOLERANCE[step.leaves[0].dtype]
    return {
        "y": of_y, "gradients": of_gradients, "bound": bound, "first": took, "fell": fell,
        "kernels": sorted(set(launched)), "modules": sorted(modules),
    }  # fmt: skip


def settle(step: Step) -> None:
    """Wait for the device: a kernel that fails raises its error here."""
    if step.leaves[0].is_cuda:
        torch.cuda.synchronize()


def times(steps: list[Step], watch: CpuWatch, rounds: int) -> Iterator[dict[str, Any]]:
    """Why rivals do not run, and seconds forward and of both passes."""
    ready, failed = [], {}
    for step in steps:
        try:
            step.forward()
            step.backward()
            settle(step)
        except Exception as error:
            if step is steps[0]:
                raise
            failed[step.name] = words(error)
            yield {"failed": failed}
            settle(step)  # raises if the device is lost
            continue
        finally:
            step.reset()
        ready.append(step)
    found = interleave(ready, watch, 0.3 if rounds > 2 else 0.0, rounds, 2)
    yield {"times": {k: (f.forward, f.both) for k, f in found.items()}}


def words(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:300]


def machine(device: str) -> str:
    facts = [page.origin(device)]
    if device == "cuda":
        p = torch.cuda.get_device_properties()
        facts.append(f"{p.multi_processor_count} multiprocessors, {p.total_memory / 2**30:.0f} GiB")
        facts.append(f"capability {p.major}.{p.minor}, CUDA {torch.version.cuda or '–'}")
        command = ["nvidia-smi", "--query-gpu=driver_version,power.limit,clocks.max.sm"]
        with contextlib.suppress(OSError):
            run = subprocess.run([*command, "--format=csv"], capture_output=True, text=True)
            facts.append("nvidia-smi: " + run.stdout.strip().replace("\n", "; "))
    return ". ".join(facts)


def main(device: str, until: str = "0", *names: str) -> None:
    """Run cases till that time; print what is found of each. Or ``list`` their names."""
    if device == "list":
        print(json.dumps(list(CASES)))
        return

    def say(case: str, **found: Any) -> None:
        print(json.dumps({"case": case, **found}), flush=True)

    faulthandler.enable()
    say("", machine=machine(device))
    watch = CudaWatch() if device == "cuda" else CpuWatch()
    with contextlib.nullcontext() if device == "cuda" else interpreted():
        for name in names:
            left = float(until) - time.time()
            if left < 0:
                return
            faulthandler.dump_traceback_later(min(LIMIT, left + 10), exit=True)
            case = CASES[name]
            shape = case.full if device == "cuda" else case.tiny
            say(name, shape=" × ".join(map(str, shape)))
            try:
                steps = case.steps(shape, device)
                say(name, **check(case, steps[0]))
                for found in times(steps, watch, 100 if device == "cuda" else 2):
                    say(name, **found)
            except Exception as error:
                say(name, failure=words(error))
                if device == "cuda":
                    torch.cuda.synchronize()  # raises if it is lost: another process goes on
            say(name, ended=True)
            steps = []
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(*sys.argv[1:])
