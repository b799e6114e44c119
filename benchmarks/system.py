"""The machine, the versions and the commit that figures belong to."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "torch",
    "numba",
    "triton",
    "numpy",
    "entmax",
    "cvxpylayers",
    "cvxpy",
    "adasplash",
    "liger-kernel",
)


def hardware(device: str) -> dict[str, Any]:
    """Model names, cores and memory."""
    found: dict[str, Any] = {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if device == "cuda":
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        found["gpu"] = f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB"
        found["cuda"] = str(torch.version.cuda)
    return found


def _cpu() -> str:
    """The model; where the machine hides it, its family, and the vector units that matter."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {key.strip(): value.strip() for key, _, value in (s.partition(":") for s in lines)}
    name = facts.get("model name", platform.machine())
    if "model" in facts:
        name += f" (family {facts.get('cpu family', '?')}, model {facts['model']}"
        name += ", AVX-512)" if "avx512f" in facts.get("flags", "") else ")"
    return name


def versions() -> dict[str, str]:
    """Of Python, regmax and whatever of ``PACKAGES`` is installed."""
    import regmax

    found = {"python": platform.python_version(), "regmax": regmax.__version__}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit, with a plus sign if files differ from it; "unknown" outside of a clone."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return "unknown"
    return head + ("+" if _git("status", "--porcelain") else "")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
