"""Wrong arguments: the message names the argument, what came, and what is accepted."""

import pytest
import torch
from omegas import Square, Weighted, omega_of

import regmax
from regmax import PluginError, RegularizedMax, Regularizer, RegularizerError

F64 = torch.float64
f = regmax.functional
X = torch.tensor([[0.1, 0.4, -0.3], [1.0, 0.2, 0.3]], dtype=F64)
GINI = regmax.regularizer("gini")
MAPPINGS = ("softmax", "sparsemax", "pnormmax", "entmax", "entmax15", "fusedmax", "oscarmax")


def calls():
    """Every door through which scores come in."""
    layer, generic = RegularizedMax(GINI), RegularizedMax(Square())
    return {
        **{name: getattr(f, name) for name in MAPPINGS},
        "layer": layer,
        "generic": generic,
        "max": layer.max,
        "solve": layer.solve,
        "explain": layer.explain,
        "crosscheck": lambda x, **kw: regmax.crosscheck(GINI, x, ("generic",), **kw),
    }


@pytest.fixture(params=sorted(calls()))
def call(request):
    return calls()[request.param]


@pytest.mark.parametrize(
    ("x", "error", "match"),
    [
        ([1.0, 2.0], TypeError, r"x must be a torch\.Tensor.*list"),
        (torch.tensor([1, 2]), TypeError, r"x must be floating.*float32.*int64"),
        (torch.tensor([1j]), TypeError, r"x must be floating.*complex"),
        (torch.tensor(1.0), ValueError, r"x must have at least one dimension.*0-d"),
        (torch.zeros(2, 0), ValueError, r"x must not be empty along dim.*\(2, 0\)"),
    ],
)
def test_scores(call, x, error, match):
    with pytest.raises(error, match=match):
        call(x)


@pytest.mark.parametrize(
    ("mask", "error", "match"),
    [
        ([True, False, True], TypeError, r"mask must be a bool.*list"),
        (True, TypeError, r"mask must be a bool.*bool"),
        (torch.ones(3), TypeError, r"mask must be bool.*float32"),
        (torch.ones(4, dtype=torch.bool), ValueError, r"mask must broadcast.*\(4,\).*\(2, 3\)"),
        (torch.ones(5, 2, 3, dtype=torch.bool), ValueError, r"mask must broadcast.*\(5, 2, 3\)"),
    ],
)
def test_mask(call, mask, error, match):
    with pytest.raises(error, match=match):
        call(X, mask=mask)


@pytest.mark.parametrize(
    ("dim", "error", "match"),
    [
        (True, TypeError, r"dim must be an int.*True"),
        (1.0, TypeError, r"dim must be an int.*1\.0"),
        (None, TypeError, r"dim must be an int.*None"),
        ("0", TypeError, r"dim must be an int.*'0'"),
        (2, ValueError, r"dim must be in \[-2, 1\].*2"),
        (-3, ValueError, r"dim must be in \[-2, 1\].*-3"),
    ],
)
def test_dim(dim, error, match):
    for name in MAPPINGS:
        with pytest.raises(error, match=match):
            getattr(f, name)(X, dim=dim)
    with pytest.raises(error, match=match):
        RegularizedMax(GINI, dim=dim)(X)


@pytest.mark.parametrize(
    ("gamma", "error", "match"),
    [
        (0.0, ValueError, r"gamma must be > 0; got 0"),
        (float("nan"), ValueError, r"gamma must be > 0; got nan"),
        (float("inf"), ValueError, r"gamma must be .*; got inf"),
        (10**400, ValueError, r"gamma must be > 0 and finite; got an int beyond"),
        ("1", TypeError, r"gamma must be a number.*str"),
        (True, TypeError, r"gamma must be a number.*bool"),
        ([1.0], TypeError, r"gamma must be a number.*list"),
        (torch.tensor([1, 2]), TypeError, r"gamma must be.*floating.*int64"),
        (torch.tensor([[1.0], [-0.5]]), ValueError, r"gamma must be > 0; got -0\.5.*\(1, 0\)"),
        (torch.tensor([[torch.nan], [1.0]]), ValueError, r"gamma must be > 0; got nan.*\(0, 0\)"),
        (torch.ones(2, 3), ValueError, r"gamma must broadcast.*size 1 along dim.*\(2, 3\)"),
        (torch.ones(3, 1), ValueError, r"gamma must broadcast.*\(3, 1\).*\(2, 3\)"),
        (torch.ones(1, 2, 1), ValueError, r"gamma must broadcast.*\(1, 2, 1\).*\(2, 3\)"),
    ],
)
def test_gamma(gamma, error, match):
    for name in MAPPINGS:
        with pytest.raises(error, match=match):
            getattr(f, name)(X, gamma=gamma)
    with pytest.raises(error, match=match):
        RegularizedMax(Square(), gamma=gamma)(X)
    with pytest.raises(error, match=match):
        regmax.crosscheck(GINI, X, ("generic",), gamma=gamma)


@pytest.mark.parametrize(
    ("name", "mapping", "key", "wrong", "accepted"),
    [
        ("tsallis", "entmax", "alpha", -0.5, "> 0"),
        ("pnorm", "pnormmax", "p", 1.0, r"in \(1, 2\]"),
        ("pnorm", "pnormmax", "p", 2.5, r"in \(1, 2\]"),
        ("tv", "fusedmax", "lam", -0.1, ">= 0"),
    ],
)
def test_hyperparameters_out_of_range(name, mapping, key, wrong, accepted):
    right = 1.5
    message = rf"{key} must be {accepted}; got {wrong:g}"
    doors = (
        lambda v: regmax.regularizer(name, **{key: v}),
        lambda v: getattr(f, mapping)(X, **{key: v}),
    )
    for call in doors:
        with pytest.raises(ValueError, match=message):
            call(wrong)
        tensor = torch.full((2, 1), right, dtype=F64)
        tensor[1] = wrong
        with pytest.raises(ValueError, match=message + r" at index \(1, 0\)"):
            call(tensor)
        tensor[1] = torch.nan
        with pytest.raises(ValueError, match=rf"{key} must be {accepted}; got nan at index"):
            call(tensor)
        with pytest.raises(ValueError, match=rf"{key} must be {accepted}; got nan"):
            call(float("nan"))
        for item in ("big", None, True, [1.0], 1j):
            with pytest.raises(TypeError, match=rf"{key} must be a number.*{type(item).__name__}"):
                call(item)
        with pytest.raises(ValueError, match=rf"{key} must be .*; got inf"):
            call(float("inf"))
        with pytest.raises(TypeError, match=rf"{key} must be .*float.*int64"):
            call(torch.tensor([[2]]))
    for shape in ((2, 3), (3,), (1, 2, 1)):
        with pytest.raises(ValueError, match=rf"{key} must broadcast.*\(2, 3\)"):
            getattr(f, mapping)(X, **{key: torch.full(shape, right)})


def test_hyperparameters_unknown():
    with pytest.raises(TypeError, match=r"'tv'.*'lamda'.*accepted: lam"):
        regmax.regularizer("tv", lamda=1.0)
    with pytest.raises(TypeError, match=r"'gini'.*'alpha'.*none"):
        regmax.regularizer("gini", alpha=1.0)
    with pytest.raises(TypeError, match="lamda"):
        f.fusedmax(X, lamda=0.1)
    with pytest.raises(TypeError, match=r"exact must be a bool.*1"):
        regmax.regularizer("oscar", exact=1)
    with pytest.raises(TypeError, match=r"name must be a str.*int"):
        regmax.regularizer(3)
    with pytest.raises(PluginError, match=r"'lasso'.*entropy.*gini.*tv"):
        regmax.regularizer("lasso")


@pytest.mark.parametrize(
    ("kwargs", "error", "match"),
    [
        ({"omega": "gini"}, TypeError, r"omega must be a regmax\.Regularizer.*str.*regularizer\("),
        ({"omega": Square}, TypeError, r"omega must be a regmax\.Regularizer"),
        ({"solver": "simplex"}, PluginError, r"'simplex'.*accepted.*fista.*interior.*newton"),
        ({"solver": 3}, TypeError, r"solver must be.*3"),
        ({"tol": 0.0}, ValueError, r"tol must be > 0.*0"),
        ({"tol": float("nan")}, ValueError, r"tol must be > 0.*nan"),
        ({"tol": "small"}, TypeError, r"tol must be.*str|tol must be.*small"),
        ({"tol": True}, TypeError, r"tol must be.*True|tol must be.*bool"),
        ({"max_iter": 0}, ValueError, r"max_iter must be an int >= 1; got 0"),
        ({"max_iter": 1.5}, (TypeError, ValueError), r"max_iter must be an int >= 1; got 1\.5"),
        ({"on_failure": "stop"}, ValueError, r'on_failure must be "warn".*\'stop\''),
    ],
)
def test_layer_arguments(kwargs, error, match):
    with pytest.raises(error, match=match):
        RegularizedMax(**{"omega": GINI, **kwargs})


def test_crosscheck_arguments():
    with pytest.raises(TypeError, match=r"omega must be a regmax\.Regularizer.*str"):
        regmax.crosscheck("gini", X)
    with pytest.raises(PluginError, match=r"'mosek'.*accepted.*cvxpylayers.*generic"):
        regmax.crosscheck(GINI, X, ("mosek",))
    with pytest.raises(TypeError, match=r"against"):
        regmax.crosscheck(GINI, X, against=3)
    with pytest.raises(TypeError, match=r"x must be float32 or float64.*float16"):
        regmax.crosscheck(GINI, X.half(), ("generic",))
    with pytest.raises(ValueError, match=r"x must have at least one row.*\(0, 3\)"):
        regmax.crosscheck(GINI, X[:0], ("generic",))
    for bad in (torch.nan, torch.inf):
        x = X.clone()
        x[1, 1] = bad
        with pytest.raises(ValueError, match=r"x must have no NaN, no \+inf"):
            regmax.crosscheck(GINI, x, ("generic",))
    x = X.clone()
    x[1] = -torch.inf
    with pytest.raises(ValueError, match=r"participant in every row"):
        regmax.crosscheck(GINI, x, ("generic",))


@pytest.mark.parametrize(
    ("function", "error", "match"),
    [
        (lambda y: y.square(), RegularizerError, r"Mine\.value.*per row.*\(2,\).*\(2, 3\)"),
        (lambda y: y.square().sum(-1, keepdim=True), RegularizerError, r"per row.*\(2, 1\)"),
        (lambda y: float(y.square().sum()), TypeError, r"Mine\.value.*Tensor.*float"),
        (lambda y: None, TypeError, r"Mine\.value.*Tensor.*NoneType"),
        (lambda y: y.square().sum(-1) * torch.nan, RegularizerError, r"Mine\.value.*finite.*nan"),
        (lambda y: (y - 1).log().sum(-1), RegularizerError, r"Mine\.value.*finite.*nan.*row"),
        (lambda y: y.square().sum(-1).detach(), RegularizerError, r"Mine\.value.*depend on y"),
    ],
)
def test_value_at_fault(function, error, match):
    for call in (RegularizedMax(omega_of(function)), RegularizedMax(omega_of(function)).solve):
        with pytest.raises(error, match=match):
            call(X)


def test_no_value():
    class Empty(Regularizer):
        pass

    with pytest.raises(NotImplementedError, match=r"Empty.*value\(self, y\)"):
        RegularizedMax(Empty())(X)


@pytest.mark.parametrize(
    ("formula", "match"),
    [
        (lambda self, x, gamma, mask=None: x.sum(-1), r"Mine\.closed_form.*\(2, 3\).*\(2,\)"),
        (lambda self, x, gamma, mask=None: x.float(), r"Mine\.closed_form.*float64.*float32"),
        (lambda self, x, gamma, mask=None: 3, r"Mine\.closed_form.*int"),
    ],
)
def test_closed_form_at_fault(formula, match):
    omega = omega_of(lambda y: y.square().sum(-1))
    type(omega).closed_form = formula
    with pytest.raises(RegularizerError, match=match):
        RegularizedMax(omega)(X)


class WithFormula(Weighted):
    def closed_form(self, x, gamma, mask=None):
        return f.sparsemax(x / self.w)


class Coupled(Weighted):
    def value(self, y):
        return ((y @ torch.diag(self.w).to(y)) * y).sum(-1)


class WeightedPenalty(regmax.Penalty):
    def __init__(self, w):
        self.w = w

    def value(self, y, mask=None):
        return (self.w * y).sum(-1)

    def prox(self, v, step, mask=None):
        return v - step * self.w

    def groups(self, z, mask=None):
        return torch.arange(z.shape[-1]).expand(z.shape)

    def subgradient(self, y, near, step, mask=None):
        return (step * self.w).expand_as(y)


FIVE = torch.ones(5)
OF_FIVE = {
    "Weighted": lambda: Weighted(FIVE),
    "WithFormula": lambda: WithFormula(FIVE),
    "Coupled": lambda: Coupled(FIVE),
    "WeightedPenalty": lambda: GINI + WeightedPenalty(FIVE),
}


@pytest.mark.parametrize("name", OF_FIVE)
def test_tensor_inside_of_another_length(name):
    omega = OF_FIVE[name]
    layer = RegularizedMax(omega())
    loss = regmax.FenchelYoungLoss(omega())
    said = rf"{name}\.value\(y\) takes rows of 5 entries, and x has 3 along dim=1.*entries = 5"
    for call in (layer, layer.max, layer.solve, layer.explain, torch.func.vmap(layer)):
        with pytest.raises(ValueError, match=said.replace("dim=1", "dim=")):
            call(X)
    with pytest.raises(ValueError, match=said):
        loss(X, torch.tensor([0, 2]))
    with pytest.raises(ValueError, match=said.replace("dim=1", "dim=0")):
        RegularizedMax(omega(), dim=0)(X.T)
    with pytest.raises(ValueError, match=said):
        regmax.crosscheck(omega(), X, "generic")


def test_a_length_that_is_declared():
    class Declared(Weighted):
        entries = 5

    with pytest.raises(ValueError, match=r"x must have 5 entries.* as Declared\(.*made for; got 3"):
        RegularizedMax(Declared(FIVE))(X)


def test_other_faults_of_sizes_stay_what_they_are():
    omega = omega_of(lambda y: (y * y.new_ones(3, 4)).sum(-1))  # for no row at all
    with pytest.raises(RuntimeError, match=r"size of tensor a \(3\)"):
        RegularizedMax(omega)(X)


# -- suggestions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "meant"),
    [
        (lambda: regmax.regularizer("ginni"), PluginError, "gini"),
        (lambda: regmax.regularizer("Tsalis"), PluginError, "tsallis"),
        (lambda: regmax.regularizer("sparsemx"), PluginError, "gini"),
        (lambda: regmax.penalty("grid-tv"), PluginError, "grid_tv"),
        (lambda: f.sparsmax, AttributeError, "sparsemax"),
        (lambda: regmax.losses.SparsmaxLoss, AttributeError, "SparsemaxLoss"),
        (lambda: RegularizedMax(Square(), solver="newtn")(X), PluginError, "newton"),
        (lambda: regmax.crosscheck(GINI, X, "cvxpylayer"), PluginError, "cvxpylayers"),
        (lambda: regmax.nn.attention(X, X, X, "entmx15"), ValueError, "entmax15"),
        (lambda: regmax.nn.attention(X, X, X, "ginni"), ValueError, "gini"),
    ],
)
def test_a_name_that_is_nearly_right(call, error, meant):
    with pytest.raises(error, match=rf"\(did you mean '{meant}'\?\)"):
        call()


def test_the_name_of_a_mapping_in_place_of_a_regularizers():
    with pytest.raises(
        PluginError, match=r"'entmax15' \(did you mean 'tsallis'\?\); accepted: div"
    ):
        regmax.regularizer("entmax15")


def test_nothing_is_suggested_for_what_is_like_nothing():
    with pytest.raises(PluginError) as raised:
        regmax.regularizer("quantile regression")
    assert "did you mean" not in str(raised.value)
