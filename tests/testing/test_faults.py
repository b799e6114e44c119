"""Each check finds the lie that it is there for, and says where to look."""

import re

import pytest
import torch

import regmax
from regmax.kernels import Kernel
from regmax.kernels.simplex import project
from regmax.regularizers.curvature import Diagonal
from regmax.testing import checks_for
from regmax.testing.harness import KINDS

pytestmark = pytest.mark.slow

Entropy = type(regmax.regularizer("entropy"))
Gini = type(regmax.regularizer("gini"))
PNorm = type(regmax.regularizer("pnorm"))
TV = type(regmax.regularizer("tv"))
ChainTV = type(regmax.regularizer("tv").penalty)
SMALL = 1 + 1e-5


def lie(base, **attributes):
    """A subclass of ``base`` with one thing changed."""
    return type(f"Lying{base.__name__}", (base,), attributes)


def tv_with(**attributes):
    class LyingTV(TV):
        def __init__(self):
            super().__init__(0.1)
            self.penalty = lie(ChainTV, **attributes)()

    return LyingTV


def formula(function):
    """Gini with a closed form that is not P_Δ(x/γ)."""

    def closed_form(self, x, gamma, mask=None):
        return function(x / gamma, mask)

    return lie(Gini, closed_form=closed_form)


def hessian(jacobian):
    """Gini with a Jacobian that is not that of ½‖y‖²: ``jacobian(right, v, support)``."""

    class Lying(Diagonal):
        def jacobian(self, v, support):
            return jacobian(super().jacobian(v, support), v, support)

    return lie(Gini, curvature=lambda self, y: Lying(torch.ones_like(y)))


def scaled(function, by=SMALL):
    return lambda self, *args: function(self, *args) * by


class OffKernel(Kernel):
    """Sparsemax by PyTorch operations, wrong by a factor in one method."""

    name = "lying"

    def __init__(self, forward=1.0, backward=1.0, loss=None, operator=None):
        self.forward_by, self.backward_by = forward, backward
        self.loss_by, self.operator_by = loss, operator

    def forward(self, x, gamma, theta, mask):
        on = x > -torch.inf if mask is None else mask & (x > -torch.inf)
        y = project((x / gamma.unsqueeze(-1)).to(x), on)
        y = torch.where(on.any(-1, keepdim=True), y, 0)
        bad = (on & ~(x < torch.inf)).any(-1, keepdim=True)
        return torch.where(bad, torch.nan, y * self.forward_by), None

    def backward(self, y, v, gamma, theta, mask, hyper):
        w = Diagonal(torch.ones_like(y)).jacobian(v, y > 0)
        return (w / gamma.unsqueeze(-1)).to(y) * self.backward_by, () if hyper else None

    def operator(self, x, gamma):
        if self.operator_by is None or not x.isfinite().all():
            return None
        y = project(x / gamma)
        return y.detach() + (y - y.detach()) * self.operator_by

    def loss(self, x, k, gamma, theta, mask=None, epsilon=0.0):
        if self.loss_by is None or not x.isfinite().all():
            return None
        y = self.forward(x, gamma, theta, None)[0].double()
        dx = y.scatter_add(-1, k, -torch.ones_like(y))
        value = (dx * x).sum(-1) + gamma * (1 - y.square().sum(-1)) / 2
        return value * self.loss_by, dx.to(x)


class Concave(regmax.Regularizer):
    def value(self, y):
        return -y.square().sum(-1)


class SumsTheBatch(regmax.Regularizer):
    def value(self, y):
        return y.square().sum()


class Ordered(regmax.Regularizer):
    permutation_invariant = True

    def value(self, y):
        return ((1 + torch.arange(y.shape[-1])) * y.square()).sum(-1)


def centred(self, y):
    """½‖y − 1/d‖²: Gini's mapping, but d is seen."""
    return (y - 1 / y.shape[-1]).square().sum(-1) / 2


class Counting(Gini):
    """A closed form that remembers how often it ran."""

    def __init__(self):
        self.calls = 0

    def closed_form(self, x, gamma, mask=None):
        self.calls += 1
        return project(x / gamma * (1 + 1e-6 * self.calls), mask)


class Ridge(regmax.Regularizer):
    """Ω(y) = λ/2 ‖y‖²."""

    hyperparameters = ("lam",)
    separable = True

    def __init__(self, lam=0.7):
        self.lam = lam

    def value(self, y):
        return self.per_row("lam") * y.square().sum(-1) / 2

    def grad(self, y):
        return self.lam * y

    def curvature(self, y):
        return Diagonal(self.lam * torch.ones_like(y))

    def closed_form(self, x, gamma, mask=None):
        return project(x / gamma / self.lam, mask)


def constant_lam(self, y):
    lam = self.lam.detach() if isinstance(self.lam, torch.Tensor) else self.lam
    return lam * y


def mean_lam(self, x, gamma, mask=None):
    return project(x / gamma / torch.as_tensor(self.lam).mean(), mask)


def by_the_size_of_the_batch(z, mask):
    """As a kernel whose blocks depend on the number of rows."""
    return project(z * (1 + 1e-3 * z.shape[0]), mask)


def for_matrices_only(z, mask):
    return project(z if z.ndim == 2 else z * (1 + 1e-9), mask)


def ulps(self, v, step, mask=None):
    z = ChainTV.prox(self, v, step, mask)
    return z + 4e-16 * torch.arange(z.shape[-1])


def tilted(z, mask):
    y = project(z, mask)
    return y + 1e-9 * torch.rand(z.shape[-1], dtype=z.dtype)


FORMULAS = {  # in place of P_Δ(z)
    "check_simplex": (
        lambda z, mask: project(z, mask) * (1 + 1e-14),
        lambda z, mask: z.softmax(-1),
    ),
    "check_zeros_exact": (lambda z, mask: project(z, mask).clamp_min(1e-18),),
    "check_order_preserved": (lambda z, mask: project(-z, mask),),
    "check_batch_independence": (lambda z, mask: project(z * (1 + 1e-9 * z.mean()), mask),),
    "check_strides": (by_the_size_of_the_batch,),
    "check_dim": (for_matrices_only,),
    "check_dtype": (
        lambda z, mask: project(z.bfloat16().to(z) if z.dtype == torch.float32 else z, mask),
    ),
    "check_deterministic": (tilted,),
    "check_mask": (
        lambda z, mask: project(z),
        lambda z, mask: project(z * (1 if mask is None else 1 + 1e-9), mask),
    ),
    "check_hard_inputs": (
        lambda z, mask: project(z.masked_fill(z < -1e5, torch.nan), mask),
        lambda z, mask: z.exp() / z.exp().sum(-1, keepdim=True),
    ),
    "check_optimality": (lambda z, mask: project(z * SMALL, mask),),
    "check_closed_form": (lambda z, mask: project(z * SMALL, mask),),
}
FAULTS = {
    **{name: [(formula(f), "closed_form") for f in wrong] for name, wrong in FORMULAS.items()},
    "check_value": [
        (SumsTheBatch, "SumsTheBatch.value"),
        (lie(Gini, value=lambda self, y: y.detach().square().sum(-1)), "value"),
        (lie(Gini, value=lambda self, y: (y * y.sub(0.2).log()).sum(-1)), "value"),
    ],
    "check_value_convex": [(Concave, "Concave.value")],
    "check_fused_groups_equal": [(tv_with(prox=ulps), "prox")],
    "check_shift_invariance": [(Counting, "Counting.closed_form")],
    "check_permutation_invariant": [(Ordered, "Ordered.permutation_invariant")],
    "check_gamma_scaling": [
        (lie(Gini, closed_form=lambda self, x, gamma, mask=None: project(x, mask)), "closed_form")
    ],
    "check_kernel": [
        (lie(Gini, kernel=lambda self, x: OffKernel(forward=SMALL)), "kernel"),
        (lie(Gini, kernel=lambda self, x: OffKernel(backward=1.01)), "kernel"),
        (lie(Gini, kernel=lambda self, x: OffKernel(loss=1.01)), "kernel"),
        (lie(Gini, kernel=lambda self, x: OffKernel(operator=1.01)), "kernel"),
    ],
    "check_as_cvxpy": [(lie(Gini, as_cvxpy=scaled(Gini.as_cvxpy)), "as_cvxpy")],
    "check_max": [
        (lie(Entropy, conjugate_at=lambda self, *a: Entropy.conjugate_at(self, *a) - 1e-5), "max")
    ],
    "check_strong_convexity": [(lie(Gini, strong_convexity=SMALL), "strong_convexity")],
    "check_grad": [
        (lie(Gini, grad=scaled(Gini.grad)), "grad"),
        (lie(Entropy, grad=lambda self, y: y.log()), "grad"),
        (lie(Gini, grad=lambda self, y: y.sum(-1)), "grad"),
    ],
    "check_curvature": [
        (lie(Gini, curvature=lambda self, y: Diagonal(SMALL + 0 * y)), "matvec"),
        (hessian(lambda right, v, support: right * SMALL), "jacobian"),
        (lie(Entropy, curvature=lambda self, y: lie_in_lowest(1 / y)), "min_eigenvalue"),
    ],
    "check_prox": [
        (
            tv_with(
                prox=lambda self, v, step, mask=None: ChainTV.prox(self, v, step * SMALL, mask)
            ),
            "prox",
        )
    ],
    "check_lovasz": [
        (tv_with(value=lambda self, y, mask=None: y.diff(dim=-1).square().sum(-1)), "lovasz")
    ],
    "check_groups": [
        (
            tv_with(groups=lambda self, z, mask=None: torch.arange(z.shape[-1]).expand(z.shape)),
            "groups",
        ),
        (tv_with(groups=lambda self, z, mask=None: torch.zeros_like(z).long()), "groups"),
    ],
    "check_subgradient": [
        (tv_with(subgradient=lambda self, y, near, step, mask=None: near), "subgradient")
    ],
    "check_conjugate": [
        (lie(Entropy, conjugate=lambda self, *a: Entropy.conjugate(self, *a) + 1e-5), "conjugate")
    ],
    "check_conjugate_at": [
        (
            lie(Entropy, conjugate_at=lambda self, *a: Entropy.conjugate_at(self, *a) + 1e-5),
            "conjugate_at",
        )
    ],
    "check_inverse": [
        (lie(Gini, inverse=lambda self, u: u.clamp_min(0) * SMALL), "inverse"),
        (lie(Gini, inverse=lambda self, u: u.clamp_min(1e-9)), "inverse"),
    ],
    "check_sharded_form": [
        (
            lie(Gini, sharded_form=lambda self, x, *a: Gini.sharded_form(self, x * SMALL, *a)),
            "sharded_form",
        )
    ],
    "check_ignores_zeros": [(lie(Gini, value=centred), "ignores_zeros")],
    "check_separable": [(lie(PNorm, separable=True), "separable")],
    "check_jacobian": [
        (
            hessian(lambda right, v, support: right + 1e-6 * (v.roll(1, -1) - v.roll(-1, -1))),
            "J = Jᵀ",
        ),
        (hessian(lambda right, v, support: -right), "no negative eigenvalue"),
        (hessian(lambda right, v, support: torch.where(support, v, 0)), "J1 = 0"),
        (hessian(lambda right, v, support: v - v.mean(-1, keepdim=True)), "0 off the support"),
    ],
    "check_jacobian_finite_differences": [
        (hessian(lambda right, v, support: right * SMALL), "curvature")
    ],
    "check_transforms": [
        (
            lie(
                Gini,
                curvature=lambda self, y: Diagonal(
                    torch.ones_like(y) * (1.0 if y.ndim == 2 else 2.0)
                ),
            ),
            "curvature",
        )
    ],
    "check_hyperparameter_gradients": [(lie(Ridge, grad=constant_lam), "lam")],
    "check_hyperparameters_per_row": [(lie(Ridge, closed_form=mean_lam), "lam")],
    "check_double_backward": [
        (lie(Entropy, curvature=lambda self, y: Diagonal(1 / y.detach())), "curvature")
    ],
}
FAULTS["check_closed_form"] += [
    (tv_with(prox=lambda self, v, step, mask=None: v.clone()), "penalty.prox")
]


def lie_in_lowest(h):
    class Lying(Diagonal):
        def min_eigenvalue(self, support):
            return super().min_eigenvalue(support) * 2

    return Lying(h)


@pytest.mark.parametrize(
    ("name", "number"), [(name, k) for name, some in FAULTS.items() for k in range(len(some))]
)
def test_a_planted_fault_is_found(name, number):
    make, where = FAULTS[name][number]
    omega = make()
    check = next(check for check in checks_for(omega) if check.name == name)
    with pytest.raises(AssertionError) as caught:
        check(omega)
    message = str(caught.value)
    assert message.startswith(f"{name} failed for")
    for part in ("expected: ", "found: ", "look at: "):
        assert part in message
    look = re.search("look at: .*", message)
    assert where in look.group() or where in message.partition("expected:")[2], message


def test_every_check_has_a_planted_fault():
    assert set(FAULTS) == set(KINDS)


def test_what_faults_are_planted_in_is_right():
    """And the built-in ones, as test_builtins.py says."""
    omega = Ridge()
    for check in checks_for(omega):
        check(omega)
