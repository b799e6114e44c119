"""What is measured on which device, and the bars that figures are held against."""

from __future__ import annotations

from dataclasses import dataclass, replace

Shape = tuple[int, int]

MAPPINGS = ("softmax", "sparsemax", "entmax15", "entmax", "pnormmax", "fusedmax", "oscarmax")
SECTIONS = (
    "main",
    "size",
    "rows",
    "inputs",
    "linear",
    "memory",
    "conic",
    "generic",
    "generic-size",
    "composed",
    "losses",
    "attention",
    "first",
)
CPU_ONLY = ("conic", "generic", "generic-size", "composed")


@dataclass(frozen=True)
class Plan:
    """Sizes and budgets; shapes are rows × scores in a row."""

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    elements: int
    """rows · d in ``size`` and ``linear``, so that their figures are per score."""
    sizes: tuple[int, ...]
    row_d: int
    row_counts: tuple[int, ...]
    input_shape: Shape
    linear: tuple[int, int]
    """The short and the long row whose times per score are compared."""
    memory: Shape
    conic_d: int
    conic_rows: int
    """What cvxpylayers gets; regmax gets these, and ``conic_many``."""
    conic_many: int
    first: Shape
    own: Shape = (1024, 64)
    """An Ω given by its value, and compositions."""
    own_few: int = 8
    """What cvxpylayers gets of these."""
    own_elements: int = 65_536
    own_sizes: tuple[int, ...] = (16, 64, 256, 512, 1024, 4096)
    own_limit: float = 60.0
    """Seconds for an Ω that is not separable on rows too long for a dense Hessian, in all; and by
    how much fewer rows it gets there."""
    own_fewer: int = 4
    losses: tuple[Shape, ...] = ((512, 1_000), (512, 10_000), (256, 32_768))
    """Rows × classes; the last is smoothed too, is what other packages get, and is measured for
    memory."""
    smoothing: float = 0.1
    attention: tuple[tuple[int, int, int, int], ...] = ((8, 8, 128, 64), (2, 8, 512, 64))
    """Sequences × heads × queries, which are as many as keys × width of a head."""
    mappings: tuple[str, ...] = MAPPINGS
    isolated: tuple[str, ...] = MAPPINGS
    """Those with a first call measured in a process of their own."""
    budget: float = 0.5
    """Seconds for one candidate in one case, unless ``at_least`` runs take longer."""
    rounds: int = 100
    at_least: int = 3
    main_inputs: tuple[str, ...] = ("normal", "normal4")
    inputs: tuple[str, ...] = (
        "normal",
        "normal4",
        "equal",
        "ties",
        "ramp",
        "sawtooth",
        "parabola",
        "onehot",
        "masked",
    )
    linear_inputs: tuple[str, ...] = ("normal", "sawtooth", "ramp", "parabola")


CPU = Plan(
    shapes=((4096, 64), (4096, 512), (1024, 4096), (256, 32768)),
    dtypes=("float32",),
    elements=2_000_000,
    sizes=(100, 1_000, 10_000, 100_000, 1_000_000),
    row_d=512,
    row_counts=(1, 8, 64, 512, 4096),
    input_shape=(512, 2048),
    linear=(10_000, 1_000_000),
    memory=(2048, 4096),
    conic_d=100,
    conic_rows=16,
    conic_many=4096,
    first=(64, 512),
)
CUDA = replace(
    CPU,
    shapes=((65536, 1024), (4096, 32768)),
    dtypes=("bfloat16", "float32"),
    elements=32_000_000,
    row_counts=(1, 16, 256, 4096, 65536),
    input_shape=(16384, 2048),
    memory=(16384, 4096),
    losses=((16384, 1_000), (8192, 10_000), (4096, 32_768)),
    attention=((64, 16, 128, 64), (4, 16, 1024, 64)),
)


def plan(device: str, quick: bool) -> Plan:
    """The plan of a device; ``quick`` runs every line of code on sizes that mean nothing."""
    full = CUDA if device == "cuda" else CPU
    if not quick:
        return full
    return replace(
        full,
        shapes=((16, 8), (4, 32)),
        elements=400,
        sizes=(10, 100),
        row_d=8,
        row_counts=(1, 4),
        input_shape=(4, 16),
        linear=(20, 200),
        memory=(64, 256),
        conic_d=4,
        conic_rows=2,
        conic_many=4,
        first=(2, 8),
        own=(16, 16),
        own_few=2,
        own_elements=640,
        own_sizes=(16, 640),
        losses=((8, 10), (4, 32)),
        attention=((2, 2, 4, 8),),
        isolated=("softmax",),
        budget=0.002,
        rounds=3,
        at_least=2,
    )


# Forward + backward in units of torch.softmax: (geometric mean over the cases, any one case).
SOFTMAX_BARS: dict[str, dict[str, tuple[float, float]]] = {
    "cpu": {
        "sparsemax": (1.0, 2.0),
        "entmax15": (1.0, 2.0),
        "entmax": (2.0, 4.0),
        "pnormmax": (2.0, 4.0),
        "fusedmax": (3.0, 6.0),
        "oscarmax": (6.0, 12.0),
    },
    "cuda": {
        "sparsemax": (1.1, 1.1),
        "entmax15": (1.1, 1.1),
        "entmax": (1.1, 1.1),
        "pnormmax": (1.1, 1.1),
        "fusedmax": (2.0, 2.0),
        "oscarmax": (2.0, 2.0),
    },
}
# How many times faster than the entmax package (CPU), in the geometric mean.
ENTMAX_BARS = {"sparsemax": 20.0, "entmax15": 20.0, "entmax": 40.0}
# How many times faster than cvxpylayers, per row.
CONIC_BAR = 1000.0
# Time per score of a long row in units of that of a short row.
LINEAR_BAR = 2.0
# Share of the copy bandwidth, with the least possible traffic counted (CUDA).
COPY_BAR = 0.8
COPY_MAPPINGS = ("sparsemax", "entmax15", "entmax", "pnormmax")
# An Ω by its value: certified error, median iterations, and time in units of its closed form; how
# many times faster than cvxpylayers it should be, each says in ``own``.
OWN_ERROR_BAR = 1e-8
OWN_ITERATIONS_BAR = 15.0
OWN_CLOSED_BAR = 100.0
# A composition in units of prox and base put together by hand.
COMPOSED_BAR = 1.5
# A loss in units of CrossEntropyLoss, on the most classes.
LOSS_BAR = 1.0
