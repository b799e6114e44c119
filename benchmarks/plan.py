"""What is measured on which device."""

from __future__ import annotations

from dataclasses import dataclass, replace

Shape = tuple[int, int]

MAPPINGS = ("softmax", "sparsemax", "entmax15", "entmax", "pnormmax", "fusedmax", "oscarmax")


@dataclass(frozen=True)
class Plan:
    """Sizes and budgets; a shape is rows × scores in a row."""

    shapes: tuple[Shape, ...] = ((4096, 64), (4096, 512), (1024, 4096), (256, 32768))
    dtypes: tuple[str, ...] = ("float32",)
    elements: int = 2_000_000
    """rows · d where d varies."""
    sizes: tuple[int, ...] = (100, 1_000, 10_000, 100_000, 1_000_000)
    row_counts: tuple[int, ...] = (1, 8, 64, 512, 4096)
    row_d: int = 512
    input_shape: Shape = (512, 2048)
    long_rows: tuple[int, ...] = (10_000, 1_000_000)
    calls: Shape = (256, 512)
    compiler: str = "inductor"
    conic_d: int = 100
    conic_rows: tuple[int, int] = (16, 4096)
    """Few rows, for cvxpylayers and regmax; many, for regmax alone."""
    own: tuple[Shape, ...] = ((1, 10), (32, 10), (1024, 64))
    """Of an Ω by its value; compositions, and what has a kernel by hand: the last shape only."""
    domains: tuple[Shape, ...] = ((64, 64), (1024, 512))
    own_scores: int = 1024
    """Of cvxpylayers at most."""
    own_loss: Shape = (128, 10)
    busy: int = 1500
    """The size of the matrices that a busy process multiplies."""
    own_elements: int = 65_536
    own_sizes: tuple[int, ...] = (16, 64, 256, 512, 1024, 4096)
    losses: tuple[Shape, ...] = ((512, 1_000), (512, 10_000), (256, 32_768))
    """Rows × classes. Smoothing, other packages and memory: the last shape only."""
    attention: tuple[tuple[int, int, int, int], ...] = ((8, 8, 128, 64), (2, 8, 512, 64))
    """Sequences × heads × length × width of a head."""
    long_attention: tuple[int, int, int, int] = (1, 4, 8192, 64)
    linear_loss: tuple[int, int, int] = (1024, 256, 32_768)
    """Rows × features × classes."""
    plans: tuple[Shape, ...] = ((8000, 4), (1, 64))
    """Plans × rows, as many columns."""
    memory: Shape = (2048, 4096)
    first: Shape = (64, 512)
    first_of: tuple[str, ...] = tuple(mapping for mapping in MAPPINGS if mapping != "entmax")
    budget: float = 0.3
    """Seconds for one candidate in one case, unless ``least`` runs take longer."""
    rounds: int = 100
    least: int = 3


CUDA = Plan(
    shapes=((65536, 1024), (4096, 32768)),
    dtypes=("bfloat16", "float32"),
    elements=32_000_000,
    row_counts=(1, 16, 256, 4096, 65536),
    input_shape=(16384, 2048),
    losses=((16384, 1_000), (8192, 10_000), (4096, 32_768)),
    attention=((64, 16, 128, 64), (4, 16, 1024, 64)),
    long_attention=(1, 8, 16384, 64),
    linear_loss=(8192, 1024, 131_072),
    memory=(16384, 4096),
)


def plan(device: str, quick: bool) -> Plan:
    """The plan of a device; ``quick`` runs the same code on the smallest sizes."""
    full = CUDA if device == "cuda" else Plan()
    if not quick:
        return full
    return replace(
        full,
        shapes=((4, 32),),
        domains=((4, 100),),
        elements=400,
        sizes=(10, 100),
        row_counts=(1, 4),
        row_d=8,
        input_shape=(4, 16),
        long_rows=(20, 200),
        calls=(2, 8),
        compiler="aot_eager",
        conic_d=4,
        conic_rows=(2, 4),
        own=((1, 4), (4, 16)),
        own_scores=32,
        own_loss=(4, 8),
        busy=8,
        own_elements=640,
        own_sizes=(16, 640),
        losses=((8, 10), (4, 32)),
        attention=((2, 2, 4, 8),),
        long_attention=(1, 2, 8, 8),
        linear_loss=(8, 4, 16),
        plans=((4, 3),),
        memory=(64, 256),
        first=(2, 8),
        first_of=("softmax",),
        budget=0.0,
        least=2,
    )
