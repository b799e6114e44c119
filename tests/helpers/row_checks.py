"""What holds of a function of rows, compiled and in PyTorch: masks, layouts, arguments, choice."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import ClassVar

import pytest
import torch
from torch import Tensor

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
STRETCHED = [(1.0, 0.0), (1e-3, 0.0), (1.0, 1e6), (1e6, 1e6)]
"""Scales and shifts of rows."""


def hard_rows(d: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(d)
    i = torch.arange(d, dtype=torch.float64)
    normal = torch.randn(d, generator=g, dtype=torch.float64)
    return {
        "normal": normal,
        "ties": torch.randint(-2, 3, (d,), generator=g).double(),
        "plateaus": normal[(i // 7).long()],
        "constant": torch.full((d,), 0.1, dtype=torch.float64),
        "sawtooth": 1 - 2 * (i % 2),
        "teeth": i % 5 - i / 9,
        "ramp": i / 8,
        "fall": -i / 3,
        "parabola": (i - d / 2) ** 2 / d,
        "hill": -((i - d / 2) ** 2) / d,
        "walk": normal.cumsum(0),
        "noisy fall": normal - i / 4,
        "step": (i > d / 3).double(),
        "spike": (i == d // 2).double() * 100,
        "geometric": 2.0 ** -(i % 40),
    }


class RowChecks:
    """Inherit and set ``module`` and ``functions``: f(v, mask=None), and its reference."""

    module: ClassVar[ModuleType]
    functions: ClassVar[tuple[Callable[..., Tensor], Callable[..., Tensor]]]

    @pytest.fixture(params=[0, 1], ids=["compiled", "reference"])
    def f(self, request: pytest.FixtureRequest) -> Callable[..., Tensor]:
        return self.functions[request.param]

    @DTYPES
    def test_mask_is_the_shorter_row(self, f: Callable[..., Tensor], dtype: torch.dtype) -> None:
        g = torch.Generator().manual_seed(3)
        v = torch.randn(40, 29, generator=g).to(dtype)
        mask = torch.rand(40, 29, generator=g) < torch.linspace(0, 1, 40)[:, None]
        mask[0], mask[-1] = False, True
        dirty = torch.where(mask, v, torch.tensor([math.nan, math.inf, 3.0])[torch.arange(29) % 3])
        z = f(dirty.to(dtype), mask)
        assert (z[~mask] == 0).all()
        for k in range(40):
            assert torch.equal(z[k, mask[k]], f(v[k, mask[k]]))

    @DTYPES
    def test_bad_rows_are_nan_and_alone(self, f: Callable[..., Tensor], dtype: torch.dtype) -> None:
        v = torch.randn(5, 13, generator=torch.Generator().manual_seed(4)).to(dtype)
        clean = f(v)
        mask = torch.ones_like(v, dtype=torch.bool)
        mask[1, 0] = mask[4, 5] = False
        v[1, 4], v[2, 0], v[3, 12], v[4, 5] = math.nan, math.inf, -math.inf, math.nan
        z = f(v, mask)
        assert torch.equal(z[0], clean[0])
        assert z[1, 0] == 0
        assert z[1, 1:].isnan().all()
        assert z[2:4].isnan().all()
        assert z[4].isfinite().all()
        assert z[4, 5] == 0

    @DTYPES
    def test_shapes_and_strides(self, f: Callable[..., Tensor], dtype: torch.dtype) -> None:
        for shape in ((0, 4), (3, 0), (0,), (2, 0, 5)):
            z = f(torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=torch.bool))
            assert z.shape == shape
            assert z.dtype == dtype
        v = torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(6)).to(dtype)
        before = v.clone()
        z = f(v.requires_grad_().permute(2, 1, 0)[:, ::2, ::2])
        assert not z.requires_grad
        assert torch.equal(v, before)
        assert torch.equal(z, f(before.permute(2, 1, 0)[:, ::2, ::2].contiguous()))

    def test_errors(self, f: Callable[..., Tensor]) -> None:
        v = torch.zeros(2, 3)
        with pytest.raises(TypeError, match="float32"):
            f(v.half())
        with pytest.raises(TypeError, match="bool"):
            f(v, v)
        with pytest.raises(ValueError, match="mask"):
            f(v, torch.ones(3, dtype=torch.bool))
        with pytest.raises(ValueError, match="dimension"):
            f(torch.tensor(1.0))

    def test_kernel_choice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("numba")
        v = torch.randn(3, 8)
        assert self.module.kernel(v) == "numba"
        assert self.module.kernel(v.to("meta")) == "torch"
        monkeypatch.setattr(self.module, "_compiled", lambda: None)
        assert self.module.kernel(v) == "torch"
        compiled, reference = self.functions
        assert torch.equal(compiled(v), reference(v))
