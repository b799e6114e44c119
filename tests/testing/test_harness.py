"""How checks are chosen, run, expected and reported."""

import sys
import textwrap

import pytest
import torch
from processes import python

import regmax
from regmax.kernels.simplex import project
from regmax.testing import (
    Skipped,
    check_regularizer,
    checks_for,
    hard_inputs,
    harness,
    parametrize_with_checks,
)

pytest_plugins = ["pytester"]
Gini = type(regmax.regularizer("gini"))


class Right(Gini):
    """½‖y‖², without a program."""

    as_cvxpy = regmax.Regularizer.as_cvxpy


class Lying(Right):
    """Two lies: ∇Ω, and the declared strong convexity."""

    strong_convexity = 1.5

    def grad(self, y):
        return y * 1.01


def names(omega):
    return [check.name for check in checks_for(omega)]


def check_named(omega, name):
    return next(check for check in checks_for(omega) if check.name == name)


@pytest.fixture
def few(monkeypatch):
    """The kit with a few cheap checks."""
    some = (
        "check_value",
        "check_grad",
        "check_strong_convexity",
        "check_simplex",
        "check_as_cvxpy",
    )
    monkeypatch.setattr(harness, "KINDS", {name: harness.KINDS[name] for name in some})


# -- which checks ----------------------------------------------------------------------------------


class ByValue(regmax.Regularizer):
    def value(self, y):
        return y.square().sum(-1)


OPTIONAL = {
    "grad": "check_grad",
    "curvature": "check_curvature",
    "closed_form": "check_closed_form",
    "conjugate": "check_conjugate",
    "conjugate_at": "check_conjugate_at",
    "strong_convexity": "check_strong_convexity",
    "as_cvxpy": "check_as_cvxpy",
}


@pytest.mark.parametrize(("method", "name"), OPTIONAL.items())
def test_an_override_is_a_claim(method, name):
    entropy = type(regmax.regularizer("entropy"))
    claiming = type("Claiming", (ByValue,), {method: vars(entropy)[method]})
    assert name in names(claiming())
    assert name not in names(ByValue())


def test_a_declaration_is_a_claim():
    mine = {"check_separable", "check_permutation_invariant", "check_ignores_zeros"}
    assert not mine & set(names(ByValue()))
    claims = dict.fromkeys(("separable", "permutation_invariant", "ignores_zeros"), True)
    declared = type("D", (ByValue,), claims)
    assert {*mine, "check_order_preserved"} <= set(names(declared()))


def test_a_penalty_is_a_claim():
    mine = {"check_prox", "check_groups", "check_subgradient", "check_fused_groups_equal"}
    assert mine <= set(names(regmax.regularizer("tv")))
    assert not mine & set(names(regmax.regularizer("gini")))


def test_differences_are_no_coarser_than_the_answers():
    class Mixture(regmax.Regularizer):
        """The fourth derivative of y in γ is −1,400 where an entry is small."""

        def __init__(self):
            self.w = torch.nn.Parameter(torch.tensor(0.449))

        def value(self, y):
            return (self.w * y**1.5 / 0.75 + (1 - self.w) * y.square() / 2).sum(-1)

    check_named(Mixture(), "check_double_backward")(Mixture())


def test_what_is_no_omega_is_refused():
    for wrong in (Right, "gini", None):
        with pytest.raises(TypeError, match=r"must be an instance of regmax.Regularizer"):
            checks_for(wrong)
    with pytest.raises(TypeError, match="call it first"):
        check_regularizer(Gini)


# -- what a failure says ---------------------------------------------------------------------------


def test_a_failure_names_the_check_the_claim_and_the_input():
    with pytest.raises(AssertionError) as caught:
        check_named(Lying(), "check_grad")(Lying())
    message = str(caught.value)
    assert message.startswith("check_grad failed for Lying()\n")
    assert "expected: ∇value(y) by autograd: [[1.0]]" in message
    assert "found: grad(y) = [[1.01]], off by 0.01" in message
    assert "look at: Lying.grad" in message
    # the smallest input of all, as code
    code = message.partition("smallest input found:\n")[2].partition("\n  look at")[0]
    given = {"torch": torch}
    exec(textwrap.dedent(code), given)
    assert torch.equal(given["x"], torch.zeros(1, 1, dtype=torch.float64))
    assert given["gamma"] == 1.0
    assert given["mask"] is None


def test_the_input_is_made_small():
    class Only(Right):
        """Wrong where three entries or more are above −1, for γ ≤ ½."""

        def closed_form(self, x, gamma, mask=None):
            y = project(x / gamma, mask)
            wrong = ((x > -1).sum(-1, keepdim=True) >= 3) & (torch.as_tensor(gamma) <= 0.5)
            return torch.where(wrong, 2 * y, y)

    with pytest.raises(AssertionError) as caught:
        check_named(Only(), "check_simplex")(Only())
    message = str(caught.value)
    assert "x = torch.tensor([[0.0, 0.0, 0.0]], dtype=torch.float64)" in message
    assert "gamma = 0.5" in message


def test_an_exception_of_omega_is_a_failure_that_names_the_method():
    class Raises(Right):
        def closed_form(self, x, gamma, mask=None):
            raise KeyError("no such thing")

    with pytest.raises(AssertionError, match="no such thing") as caught:
        check_named(Raises(), "check_simplex")(Raises())
    assert isinstance(caught.value.__cause__, KeyError)
    assert "look at: Raises.closed_form, line" in str(caught.value)


def test_what_fails_now_and_then_is_reported():
    class Moody(Right):
        def __init__(self):
            self.calls = 0

        def closed_form(self, x, gamma, mask=None):
            self.calls += 1
            return project(x / gamma, mask) * (2 if self.calls == 7 else 1)

    with pytest.raises(AssertionError, match="check_simplex failed for Moody"):
        check_named(Moody(), "check_simplex")(Moody())


def test_all_failures_are_listed(few):
    with pytest.raises(AssertionError) as caught:
        check_regularizer(Lying())
    message = str(caught.value)
    assert "check_grad failed for Lying()" in message
    assert "check_strong_convexity failed for Lying()" in message
    assert message.splitlines()[0] == "2 of 4 checks failed for Lying()"


def test_what_rests_on_a_failed_check_is_left_out(monkeypatch):
    class Off(regmax.Regularizer):
        def value(self, y):
            return y.square().sum(-1)

        def grad(self, y):
            return 2.02 * y

    some = ("check_value", "check_grad", "check_simplex", "check_jacobian")
    monkeypatch.setattr(harness, "KINDS", {name: harness.KINDS[name] for name in some})
    with pytest.raises(AssertionError) as caught:
        check_regularizer(Off())
    first, *_, last = str(caught.value).splitlines()
    assert first == "1 of 4 checks failed for Off()"
    assert "2 more checks were left out" in last
    assert "they solve with Off, and check_grad failed" in last


# -- expected failures ----------------------------------------------------------------------------

EXPECTED = {"check_grad": "off by 1 %", "check_strong_convexity": "too bold"}


def reported(omega, expected):
    with pytest.raises(AssertionError) as caught:
        check_regularizer(omega, expected)
    return str(caught.value)


def test_a_waived_check_must_fail(few):
    message = reported(Right(), {"check_simplex": "as I thought"})
    assert "check_simplex passed for Right(), and was expected to fail: as I thought" in message
    assert message.count(" failed for ") == 1


@pytest.mark.parametrize("expected", [EXPECTED, lambda omega: EXPECTED])
def test_a_waived_failure_is_not_listed(expected, few):
    assert check_regularizer(Lying(), expected) is None


def test_a_wrong_waiver_is_refused():
    for waive in (
        check_regularizer,
        lambda omega, expected: parametrize_with_checks([omega], expected),
    ):
        with pytest.raises(ValueError, match=r"'check_gradient'.*accepted: .*check_grad, "):
            waive(Right(), {"check_gradient": "misspelt"})
        with pytest.raises(ValueError, match=r"'check_conjugate', which is no check of Right\(\)"):
            waive(Right(), {"check_conjugate": "not claimed"})
        for reason in ("", "  ", None):
            with pytest.raises(ValueError, match=r"\['check_grad'\] must be a reason"):
                waive(Right(), {"check_grad": reason})
        with pytest.raises(TypeError, match="expected_failures must be"):
            waive(Right(), ["check_grad"])


def test_a_missing_package_is_no_failure(monkeypatch, few, pytester):
    omega = regmax.regularizer("gini")
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(Skipped, match="needs cvxpy"):
        check_named(omega, "check_as_cvxpy")(omega)
    assert check_regularizer(omega) is None
    pytester.makepyfile(
        """
        import regmax
        from regmax.testing import parametrize_with_checks

        @parametrize_with_checks([regmax.regularizer("gini")])
        def test_mine(omega, check):
            if check.name == "check_as_cvxpy":
                check(omega)
        """
    )
    result = pytester.runpytest("-rs", "-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(["SKIPPED*check_as_cvxpy needs cvxpy: pip install*"])
    result.assert_outcomes(passed=len(names(omega)) - 1, skipped=1)


# -- under pytest ----------------------------------------------------------------------------------

FILE = """
import regmax
from regmax.testing import parametrize_with_checks

class Lying(type(regmax.regularizer("gini"))):
    strong_convexity = 1.5

class Test:
    @parametrize_with_checks([Lying(), regmax.regularizer("gini")], {expected_by})
    def test_mine(self, it, promise):
        if promise.name in ("check_grad", "check_strong_convexity"):
            promise(it)
"""


def test_one_id_for_each_omega_and_check(pytester):
    pytester.makepyfile(FILE.format(expected_by=None))
    result = pytester.runpytest("-v", "-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(
        [
            "*::test_mine[[]Lying()-check_grad] PASSED*",
            "*::test_mine[[]Lying()-check_strong_convexity] FAILED*",
            "*::test_mine[[]Gini()-check_strong_convexity] PASSED*",
        ]
    )
    result.assert_outcomes(failed=1, passed=len(names(Gini())) * 2 - 1)


def test_waivers_are_strict(pytester):
    expected_by = '{"check_strong_convexity": "too bold"} if type(o).__name__ == "Lying" else {}'
    pytester.makepyfile(FILE.format(expected_by=f"lambda o: {expected_by}"))
    result = pytester.runpytest("-p", "no:cacheprovider")
    result.assert_outcomes(xfailed=1, passed=len(names(Gini())) * 2 - 1)
    pytester.makepyfile(FILE.format(expected_by='{"check_grad": "cannot be"}'))
    result = pytester.runpytest("-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(["*XPASS(strict)*cannot be*"])
    result.assert_outcomes(failed=3, passed=len(names(Gini())) * 2 - 3)


OPTIONAL_PACKAGES = """
import sys

sys.modules["pytest"] = None  # importing it raises ImportError
import regmax
from regmax.testing import checks_for

class Mine(type(regmax.regularizer("gini"))):
    as_cvxpy = regmax.Regularizer.as_cvxpy

[check(Mine()) for check in checks_for(Mine()) if check.name == "check_grad"]
"""


def test_optional_packages_are_optional():
    python(OPTIONAL_PACKAGES)


# -- hard inputs -----------------------------------------------------------------------------------


def test_hard_inputs_are_chosen_by_flags():
    named = {case.name: case for case in hard_inputs()}
    for flag, some, others in (
        ("masked", ("ragged mask", "-inf", "NaN under a mask"), ("ties", "NaN")),
        ("spoilt", ("NaN", "+inf", "NaN, +inf and -inf"), ("-inf", "NaN under a mask")),
        ("finite", ("ties", "mask", "finfo.min"), ("-inf", "NaN", "NaN under a mask")),
    ):
        assert all(named[name] in hard_inputs(**{flag: True}) for name in some)
        assert all(named[name] in hard_inputs(**{flag: False}) for name in others)
    assert not any(case.big for case in hard_inputs())
    assert {case.big for case in hard_inputs(big=None)} == {True, False}
    big = hard_inputs(big=True)
    assert max(case.make(torch.float32)[0].shape[-1] for case in big) == 10**6
