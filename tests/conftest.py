"""Assertions of the helper modules are explained, and each test runs on one thread."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported, by whatever test

pytest.register_assert_rewrite("references", "mapping_checks", "row_checks", "modes", "ways")


def pytest_configure(config: pytest.Config) -> None:
    """A process among several has no core for another one, which compiles what may be needed."""
    if hasattr(config, "workerinput") and importlib.util.find_spec("numba") is not None:
        from regmax.kernels.cpu import compiling

        compiling.CORES = 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests come first, so that two processes end together."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
