"""Cross-checks: right Ω pass, planted faults are caught and named."""

import importlib.util
import json

import pytest
import torch
from mapping_checks import normal as scores
from omegas import Quartic

import regmax
from regmax import AtMost, Box, Penalized, Regularizer, Simplex, crosscheck
from regmax.testing.backends import Cvxpy, CvxpyLayers, Task
from regmax_entropy import Entropy
from regmax_gini import Gini
from regmax_oscar import OrderedPairs
from regmax_pnorm import PNorm
from regmax_tsallis import Tsallis
from regmax_tv import ChainTV

F64 = torch.float64
ALL = ("generic", "cvxpylayers", "cvxpy")
NAMES = ("entropy", "gini", "pnorm", "tsallis", "tv", "oscar")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("cvxpylayers") is None, reason="cvxpylayers is not installed"
)


@pytest.mark.parametrize("name", NAMES)
def test_built_ins_pass(name):
    x, mask = scores(4, 7, seed=1), torch.ones(4, 7, dtype=torch.bool)
    x[0, 2] = -torch.inf
    mask[1, 4] = mask[2, 0] = False
    for gamma, against in ((0.5, ("generic", "cvxpylayers")), (2.0, ALL)):
        report = crosscheck(regmax.regularizer(name), x, against, gamma=gamma, mask=mask)
        assert report.ok, report.table()
        assert report.culprits == []
        assert report.skipped == []
    methods = {p.a for p in report.pairs} | {p.b for p in report.pairs}
    assert any("closed form" in r for r in methods)
    assert {"generic", "cvxpylayers DIFFCP", "cvxpy Clarabel"} <= methods
    n = len(methods)
    assert len(report.rows) == len(report.pairs) == n * (n - 1) // 2


def test_per_row_hyperparameters():
    alpha = torch.tensor([[1.3], [1.5], [2.0]], dtype=F64)
    gamma = torch.tensor([[0.5], [1.0], [2.0]], dtype=F64)
    omega = regmax.regularizer("tsallis", alpha=alpha)
    report = crosscheck(omega, scores(3, 5), ALL, gamma=gamma)
    assert report.ok, report.table()


# -- planted faults ----------------------------------------------------------------------------


def nudged(y, size=1e-5):
    """``size`` moved from the largest entry to the next."""
    move = torch.tensor([-size, size], dtype=y.dtype).expand(*y.shape[:-1], 2)
    return y.scatter_add(-1, y.topk(2, -1).indices, move)


def formula(cls, change):
    """``cls`` with a closed form that ``change`` makes of its own, x, γ and the mask."""

    def closed_form(self, x, gamma, mask=None):
        return change(lambda *given: cls.closed_form(self, *given), x, gamma, mask)

    return type("Wrong", (cls,), {"closed_form": closed_form})()


def lie(cls, **attributes):
    return type("Wrong", (cls,), attributes)()


def rare(own, x, gamma, mask):
    y = own(x, gamma, mask).clone()
    if len(y) > 5:
        y[5] = y[5].roll(1)
    return y


def off_gradient(cls):
    return lie(cls, grad=lambda self, y: cls.grad(self, y) + 1e-5 * y)


def off_curvature(cls):
    def curvature(self, y):
        return cls.curvature(self, y).plus_diagonal(1e-2 * torch.arange(y.shape[-1]).to(y))

    return lie(cls, curvature=curvature)


def off_conjugate(size):
    return lie(Entropy, conjugate=lambda self, *given: Entropy.conjugate(self, *given) + size)


CONIC = {"cvxpylayers DIFFCP", "cvxpylayers MOREAU", "cvxpy Clarabel"}
LARGEST = scores(3, 6, seed=1).argmax(-1, keepdim=True)
WITHOUT_THE_LARGEST = torch.ones(3, 6, dtype=torch.bool).scatter_(-1, LARGEST, False)
FORMULA, GENERIC = {"closed form"}, {"against": ("generic",)}
FAULTS = {
    "a closed form": (formula(Gini, lambda own, *at: nudged(own(*at))), FORMULA, {}),
    "one row of many": (formula(Gini, rare), FORMULA, {"rows": 8, **GENERIC}),
    "no γ": (
        formula(Gini, lambda own, x, gamma, mask: own(x, 1.0, mask)),
        FORMULA,
        {"gamma": 2.0, **GENERIC},
    ),
    "no mask": (
        formula(Gini, lambda own, x, gamma, mask: own(x, gamma, None)),
        FORMULA,
        {"mask": WITHOUT_THE_LARGEST, **GENERIC},
    ),
    "NaN": (formula(Gini, lambda own, *at: own(*at) * torch.nan), FORMULA, GENERIC),
    "infinities": (
        formula(Gini, lambda own, x, *_: torch.full_like(x, torch.inf)),
        FORMULA,
        GENERIC,
    ),
    "a conjugate, 1e-5 more": (off_conjugate(1e-5), {"declared conjugate"}, {}),
    "a conjugate, 1e-5 less": (off_conjugate(-1e-5), {"declared conjugate"}, {}),
    "strong convexity": (
        lie(Tsallis, strong_convexity=30.0),
        {"declared strong_convexity"},
        {"scale": 0.3, **GENERIC},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_blamed(name):
    omega, blamed, given = FAULTS[name]
    given = {"against": ALL, "rows": 3, "scale": 1.0, **given}
    x = given.pop("scale") * scores(given.pop("rows"), 6, seed=1)
    report = crosscheck(omega, x, **given)
    assert not report.ok
    assert set(report.culprits) == blamed, report.table()
    json.loads(report.to_json())


@pytest.mark.parametrize("cls", [Gini, PNorm])
@pytest.mark.parametrize(
    ("made", "blamed"), [(off_gradient, "declared grad"), (off_curvature, "declared curvature")]
)
def test_a_wrong_derivative(cls, made, blamed):
    """Solvers that take it are wrong too."""
    report = crosscheck(made(cls), scores(3, 7, seed=1), ALL)
    assert not report.ok
    assert blamed in report.culprits, report.table()
    assert not {*report.culprits} & (CONIC | {"generic"})


@pytest.mark.parametrize("name", ["entropy", "tv"])
def test_a_wrong_convex_program(name):
    cls = type(regmax.regularizer(name))

    class Wrong(cls):
        def as_cvxpy(self, y):
            import cvxpy

            return super().as_cvxpy(y) + 0.05 * cvxpy.sum_squares(y)

    report = crosscheck(Wrong(), scores(3, 6, seed=1), ALL)
    assert not report.ok
    methods = {p.a for p in report.pairs} | {p.b for p in report.pairs}
    assert {*report.culprits} == CONIC & methods, report.table()


@pytest.mark.parametrize(
    ("penalty", "change"),
    [
        (ChainTV, lambda own, v, step: own(v, 2 * step)),
        (OrderedPairs, lambda own, v, step: own(v, step) * (1 + 1e-4)),
    ],
)
def test_a_wrong_prox(penalty, change):
    class Wrong(penalty):
        def prox(self, v, step, mask=None):
            return change(super().prox, v, step)

    omega = Penalized(regmax.regularizer("gini"), Wrong(), 0.1)
    report = crosscheck(omega, scores(3, 6, seed=1), ALL)
    assert not report.ok
    assert not {*report.culprits} & CONIC, report.table()
    assert any("prox" in b or b == "closed form" for b in report.culprits)


# -- convex programs as their authors write them --------------------------------------------------

GROUPS = ([0, 1, 2], [3, 4, 5])


def natural_programs():
    import cvxpy

    return {
        "norms of groups": lambda y: sum(cvxpy.norm(y[g]) for g in GROUPS),
        "norms of multiples": lambda y: sum(2 * cvxpy.norm(y[g] / 2) for g in GROUPS),
        "norm of norms": lambda y: cvxpy.norm(cvxpy.hstack([cvxpy.norm(y[g]) for g in GROUPS])),
        "norm of values": lambda y: sum(cvxpy.norm(cvxpy.abs(y[g])) for g in GROUPS),
        "norm of squares": lambda y: cvxpy.norm(cvxpy.square(y)),
        "a shifted norm": lambda y: cvxpy.norm(y - 1 / 6),
        "the largest": lambda y: cvxpy.max(y) + cvxpy.norm1(y[:3]),
    }


@pytest.mark.parametrize("name", natural_programs() if importlib.util.find_spec("cvxpy") else [])
def test_conic_roads_agree_whatever_the_expression(name):
    """MOREAU was off by up to 1 where cvxpy took a cone out of the rows."""
    import cvxpy

    class Written(Regularizer):
        def as_cvxpy(self, y):
            return cvxpy.sum_squares(y) / 2 + natural_programs()[name](y)

    z, v = scores(5, 6, seed=3), scores(5, 6, seed=4)
    task = Task(Written(), z, v, None)
    answers = CvxpyLayers().answers(task) + Cvxpy().answers(task)
    assert len(answers) == 2 + (importlib.util.find_spec("moreau") is not None)
    for answer in answers[:-1]:
        assert (answer.y - answers[-1].y).abs().max() < 2e-5, answer.method
        assert (answer.vjp - answers[0].vjp).abs().max() < 2e-3, answer.method


def test_making_a_layer_leaves_cvxpy_as_it_was():
    conif = pytest.importorskip("cvxpy.reductions.solvers.conic_solvers.moreau_conif")
    before = conif.MOREAU.DIR_CONE_KINDS
    assert before
    crosscheck(regmax.regularizer("gini"), scores(2, 4))
    assert before == conif.MOREAU.DIR_CONE_KINDS


# -- the report --------------------------------------------------------------------------------


def test_report():
    report = crosscheck(regmax.regularizer("tv", lam=0.2), scores(3, 6), ALL)
    table = report.table()
    assert str(report) == table
    for word in ("TV(lam=0.2)", "3 rows of 6", "generic", "DIFFCP", "agree", "seconds", "VJP"):
        assert word in table
    assert max(len(line) for line in table.splitlines()) < 200
    as_dict = report.to_dict()
    assert as_dict["ok"] is True
    assert as_dict["rows"] == report.rows
    assert as_dict["problems"] == 3
    for row in report.rows:
        keys = {"a", "b", "max_dy", "max_dvjp", "bound_a", "bound_b", "seconds_a", "ok", "verdict"}
        assert keys <= set(row)
        assert row["max_dy"] <= row["bound_a"] + row["bound_b"]
        if "Clarabel" in row["b"]:
            assert row["max_dvjp"] is None
    assert json.loads(report.to_json()) == json.loads(json.dumps(as_dict))


def test_report_of_a_failure():
    report = crosscheck(FAULTS["a closed form"][0], scores(3, 6), ("generic",))
    assert "DISAGREE" in report.table()
    assert "FAILED" in report.table()
    assert json.loads(report.to_json())["ok"] is False
    assert json.loads(report.to_json())["culprits"] == ["closed form"]
    assert report.rows[0]["wrong"] == ["closed form"]


def test_a_backend_that_cannot_take_omega_is_skipped():
    report = crosscheck(Quartic(), scores(3, 5), ALL)
    assert report.ok
    assert len(report.skipped) == 2
    for name, text in zip(("cvxpylayers", "cvxpy"), report.skipped, strict=True):
        assert text.startswith(f"{name}:")
        assert "as_cvxpy" in text
    assert "skipped" in report.table()
    assert len(report.pairs) == 1


def test_nothing_compared_is_not_ok():
    report = crosscheck(Quartic(), scores(3, 5), ("cvxpy",))
    assert report.pairs == []
    assert not report.ok


def test_a_missing_backend(monkeypatch):
    find = importlib.util.find_spec

    def without(name, *args):
        return None if name in ("cvxpy", "cvxpylayers") else find(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    omega, x = regmax.regularizer("gini"), scores(2, 4)
    for name in ("cvxpylayers", "cvxpy"):
        with pytest.warns(UserWarning, match=rf"against {name}: {name} is not installed: pip inst"):
            report = crosscheck(omega, x, ("generic", name))
        assert report.ok
        assert len(report.pairs) == 1
        assert report.skipped == [
            f'{name}: {name} is not installed: pip install "regmax[validate]"'
        ]
    with pytest.warns(UserWarning, match="not cross-checked against cvxpylayers"):
        assert not crosscheck(omega, x, "cvxpylayers").ok
    with pytest.warns(UserWarning, match="not cross-checked against cvxpylayers"):
        assert crosscheck(omega, x).ok  # the default


@pytest.mark.parametrize("package", ["scs", "clarabel", "diffcp"])
def test_a_missing_solver(package, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *args: None if name == package else find(name)
    )
    with pytest.warns(UserWarning, match=f"against cvxpylayers: {package} is not installed"):
        crosscheck(regmax.regularizer("gini"), scores(2, 4))


def test_one_name_is_enough():
    report = crosscheck(regmax.regularizer("gini"), scores(2, 4), "generic")
    assert len(report.pairs) == 1


def test_higher_dimensions_and_seeds():
    x = scores(2, 3, 5)
    first = crosscheck(regmax.regularizer("gini"), x, ("generic",), seed=1)
    again = crosscheck(regmax.regularizer("gini"), x, ("generic",), seed=1)
    assert first.problems == 6
    assert first.pairs[0].max_dvjp == again.pairs[0].max_dvjp
    x = scores(4)
    assert crosscheck(regmax.regularizer("gini"), x, ("generic",)).problems == 1


def test_a_point_off_the_simplex_is_bound_by_its_distance():
    """A vertex but for negative entries has the distance to Δ in its bound."""

    class Off(Gini):
        def closed_form(self, x, gamma, mask=None):
            y = super().closed_form(x, gamma, mask)
            push = torch.tensor([1e-6, -1e-6, 0, 0], dtype=y.dtype)
            return y + push

    x = torch.tensor([[9.0, 0.0, 0.0, 0.0]], dtype=F64)
    report = crosscheck(Off(), x, ("generic",))
    assert not report.ok
    assert report.culprits == ["closed form"]
    assert report.pairs[0].bound_a > 1e-6


@pytest.mark.parametrize("scale", [1.0, 100.0, 1000.0])
@pytest.mark.parametrize("domain", [None, Simplex(3.0, upper=1.0), Box(), AtMost(4.0, 1.0)])
def test_a_product_next_to_a_cap_is_judged_within_the_domain(domain, scale):
    """y within its bound on both sides; above 1, log(1 − y) is none, and −1/(1 − y) < 0."""
    omega = regmax.regularizer("fermi_dirac")
    for seed, d in enumerate((5, 8, 12, 30)):
        x = scale * scores(24, d, seed=seed)
        x[1:3, 0], x[2, 0] = x[1:3, 1], torch.nextafter(x[2, 1], x[2, 2])  # ties, and one ulp
        report = crosscheck(omega, x, ("generic",), domain=domain)
        assert report.ok, report.table()
        assert report.pairs[0].vjp_bound_a < 1e-10


def test_a_wrong_product_next_to_a_cap_is_caught():
    class Off(type(regmax.regularizer("fermi_dirac"))):
        def curvature(self, y):
            return super().curvature(y).scaled(1.01)

    report = crosscheck(Off(), 3 * scores(6, 8), ("generic",), domain=Box())
    assert report.pairs[0].wrong == ("closed form",)
    assert report.pairs[0].vjp_bound_a > 1e-4


@pytest.mark.parametrize(("program", "said"), [("square", r"shape \(5,\)"), ("sqrt", "CONCAVE")])
def test_a_program_that_is_no_convex_number_is_named(program, said):
    class Wrong(Quartic):
        def as_cvxpy(self, y):
            import cvxpy

            entries = getattr(cvxpy, program)(y)
            return entries if program == "square" else cvxpy.sum(entries)

    with pytest.raises(regmax.RegularizerError, match=rf"Wrong\.as_cvxpy.*{said}"):
        crosscheck(Wrong(), scores(2, 5), ("cvxpy",))
