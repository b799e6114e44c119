"""Numbers about attention weights, against counts by hand and loops over rows."""

import copy
import itertools
import math

import pytest
import torch
from mapping_checks import normal as drawn
from omegas import Weighted

import regmax
import regmax.nn
from regmax import analysis
from regmax.functional import entmax15, fusedmax, oscarmax, softmax

F64 = torch.float64
nan = math.nan


def masked(*shape, seed=1):
    """A mask with rows of few, many and no participants."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    mask[..., 0, :] = False
    return mask


class TestSupport:
    def test_by_hand(self):
        y = torch.tensor([[0.5, 0.0, 0.5, 0.0], [0.25] * 4, [0.0] * 4])
        assert analysis.support_size(y).tolist() == [2, 4, 0]
        assert analysis.density(y).tolist() == [0.5, 1.0, 0.0]

    def test_only_participants_count(self):
        y = torch.tensor([[0.5, 0.0, 0.5, nan], [9.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
        mask = torch.tensor([[1, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]).bool()
        assert analysis.support_size(y, mask=mask).tolist() == [2, 1, 0]
        share = analysis.density(y, mask=mask)
        assert share[:2].tolist() == pytest.approx([2 / 3, 1.0])
        assert share[2].isnan()

    def test_a_row_with_a_nan(self):
        y = torch.tensor([[0.5, nan], [1.0, 0.0]])
        assert analysis.support_size(y).tolist() == [1, 1]
        assert analysis.density(y).isnan().tolist() == [True, False]

    @pytest.mark.parametrize("dim", [0, 1, -1])
    def test_any_dim_and_a_mask_that_broadcasts(self, dim):
        y, mask = entmax15(2 * drawn(3, 4, 5), dim=dim), masked(4, 5)
        turned = y.movedim(dim, -1).contiguous()
        same = mask.expand(3, 4, 5).movedim(dim, -1)
        for count in (analysis.support_size, analysis.density, analysis.group_count):
            found, wanted = count(y, dim=dim, mask=mask), count(turned, mask=same)
            assert torch.equal(found.nan_to_num(-1), wanted.nan_to_num(-1))


def runs_of(row, on):
    """The groups of one row, by itertools."""
    ids, count = [-1] * len(row), 0
    part = [k for k in range(len(row)) if on[k]]
    for weight, members in itertools.groupby(part, key=lambda k: row[k]):
        if weight > 0:
            for k in members:
                ids[k] = count
            count += 1
    return ids


def clusters_of(row, on):
    heavy = sorted({w for w, part in zip(row, on, strict=True) if part and w > 0}, reverse=True)
    pairs = zip(row, on, strict=True)
    return [heavy.index(w) if part and w > 0 else -1 for w, part in pairs]


class TestGroups:
    def test_by_hand(self):
        y = torch.tensor([0.2, 0.2, 0.0, 0.2, 0.3, 0.0, 0.1])
        assert analysis.groups(y).tolist() == [0, 0, -1, 1, 2, -1, 3]
        assert analysis.groups(y, "clusters").tolist() == [1, 1, -1, 1, 0, -1, 2]
        assert analysis.group_count(y).item() == 4
        assert analysis.group_count(y, "clusters").item() == 3

    @pytest.mark.parametrize(("kind", "slow"), [("runs", runs_of), ("clusters", clusters_of)])
    def test_against_loops(self, kind, slow):
        y = (drawn(4, 3, 9).abs() * 2).round()  # many ties, and zeros
        for mask in (None, masked(4, 3, 9)):
            on = torch.ones_like(y, dtype=torch.bool) if mask is None else mask
            flat = zip(y.reshape(-1, 9).tolist(), on.reshape(-1, 9).tolist(), strict=True)
            wanted = torch.tensor([slow(*row) for row in flat]).reshape(4, 3, 9)
            assert torch.equal(analysis.groups(y, kind, mask=mask), wanted)
            assert torch.equal(analysis.group_count(y, kind, mask=mask), wanted.amax(-1) + 1)

    @pytest.mark.parametrize(
        ("mapping", "name", "kind"), [(fusedmax, "tv", "runs"), (oscarmax, "oscar", "clusters")]
    )
    def test_an_omega_tells(self, mapping, name, kind):
        x, mask = drawn(40, 12), masked(40, 12)
        y = mapping(x, lam=0.05, mask=mask)
        ids = analysis.groups(y, kind, mask=mask)
        assert bool((analysis.group_count(y, kind, mask=mask) < (y > 0).sum(-1)).any())
        by_omega = analysis.groups(y, regmax.regularizer(name), mask=mask)
        # the same groups, numbered in another order
        assert torch.equal(ids[:, None] == ids[..., None], by_omega[:, None] == by_omega[..., None])
        assert torch.equal(by_omega < 0, ids < 0)
        counted = analysis.group_count(y, regmax.regularizer(name), mask=mask)
        assert torch.equal(counted, ids.amax(-1) + 1)

    def test_an_omega_on_a_grid_and_one_without_a_penalty(self):
        y = torch.tensor([0.25, 0.0, 0.25, 0.5, 0.0, 0.0])  # a column of two, beside nothing
        omega = regmax.regularizer("gini") + regmax.penalty("grid_tv", shape=(3, 2))
        assert analysis.group_count(y, omega).item() == 2
        assert analysis.group_count(y).item() == 3
        assert analysis.group_count(y, regmax.regularizer("gini")).item() == 2
        apart = torch.tensor([0.25, 0.0, 0.0, 0.25, 0.5, 0.0])
        columns = torch.stack([y, apart], -1).bfloat16()
        assert analysis.group_count(columns, omega, dim=0).tolist() == [2, 3]


def js(rows):
    """Eq. 11 of Correia et al. (2019), one query at a time, with logarithms to the base d."""
    d = rows.shape[-1]
    if d == 1:
        return 0.0

    def entropy(p):
        return -sum(w * math.log(w, d) for w in p if w > 0)

    mean = [sum(column) / len(rows) for column in zip(*rows.tolist(), strict=True)]
    return entropy(mean) - sum(entropy(p) for p in rows.tolist()) / len(rows)


class TestHeadDiversity:
    def test_against_a_loop(self):
        p = entmax15(2 * drawn(2, 4, 3, 6))
        found = analysis.head_diversity(p)
        assert found.shape == (2, 3)
        for b, q in itertools.product(range(2), range(3)):
            assert found[b, q].item() == pytest.approx(js(p[b, :, q]), abs=1e-14)

    def test_ends_of_the_scale(self):
        apart, alike = torch.eye(5, dtype=F64)[:, None], softmax(drawn(1, 1, 7)).expand(5, 1, 7)
        assert analysis.head_diversity(apart).tolist() == pytest.approx([1.0])
        assert analysis.head_diversity(alike).tolist() == pytest.approx([0.0], abs=1e-15)
        assert bool((analysis.head_diversity(alike) >= 0).all())

    def test_masked_rows_are_the_shorter_rows(self):
        mask = torch.tensor([[1, 1, 0, 1, 0], [0, 0, 1, 0, 0], [0] * 5]).bool()
        p = softmax(drawn(4, 3, 5), mask=mask)
        p = torch.where(mask, p, nan)
        found = analysis.head_diversity(p, mask=mask)
        assert found[0].item() == pytest.approx(js(p[:, 0, [0, 1, 3]]))
        assert found[1].item() == 0
        assert found[2].isnan()


class TestSummary:
    def test_does_not_depend_on_the_batches(self):
        p, mask = entmax15(2 * drawn(6, 2, 4, 5)), torch.ones(6, 1, 4, 5, dtype=torch.bool)
        mask[2:, :, :, 3:] = mask[4:, :, 2:] = False
        p = torch.where(mask, p, 0)
        whole, parts = analysis.AttentionSummary(), analysis.AttentionSummary()
        whole.add("encoder 1", p, mask)
        for k in (slice(0, 1), slice(1, 6)):
            parts.add("encoder 1", p[k], mask[k])
        assert torch.equal(whole.density["encoder 1"], parts.density["encoder 1"])
        assert torch.equal(whole.diversity["encoder 1"], parts.diversity["encoder 1"])
        assert whole.density["encoder 1"].shape == (6, 2)
        last = analysis.density(p[5, :, :2, :3]).mean(-1)
        assert torch.allclose(whole.density["encoder 1"][5], last)
        js = analysis.head_diversity(p[5, :, :2, :3]).mean(-1)
        assert torch.allclose(whole.diversity["encoder 1"][5], js)

    def test_a_nan_in_the_weights_shows(self):
        p = softmax(drawn(2, 2, 3, 4))
        p[0, 1, 2, 3] = nan
        summary = analysis.AttentionSummary()
        summary.add("a", p)
        assert summary.density["a"].isnan().tolist() == [[False, True], [False, False]]
        assert summary.diversity["a"].isnan().tolist() == [True, False]

    def test_refuses(self):
        with pytest.raises(ValueError, match=r"shape \(batch, head, query, key\); got \(2, 3\)"):
            analysis.AttentionSummary().add("a", torch.ones(2, 3))


class Learned(regmax.Regularizer):
    """Ω of entmax, with α = 1 + sigmoid(a)."""

    hyperparameters = ("alpha",)

    def __init__(self, heads):
        self.a = torch.nn.Parameter(torch.zeros(heads, 1, 1))

    @property
    def alpha(self):
        return 1 + self.a.sigmoid()

    def value(self, y):
        alpha = self.per_row("alpha")
        return (y.pow(alpha.unsqueeze(-1)).sum(-1) - 1) / (alpha * (alpha - 1))


def model():
    lam = torch.nn.Parameter(torch.tensor(0.1, dtype=F64))
    return torch.nn.ModuleDict(
        {
            "learned": regmax.RegularizedMax(Learned(3)),
            "fixed": regmax.RegularizedMax(regmax.regularizer("tsallis")),
            "sum": regmax.RegularizedMax(
                2.0 * regmax.regularizer("entropy") + lam * regmax.penalty("tv"),
                gamma=torch.nn.Parameter(torch.ones(2, 1)),
            ),
            "priced": regmax.RegularizedMax(Weighted(torch.ones(5, requires_grad=True))),
            "heads": regmax.nn.MultiheadAttention(
                6, 3, omega=regmax.nn.AdaptiveEntmax(3), gamma=regmax.nn.Positive()
            ),
        }
    )


NAMES = {
    "learned.omega.alpha",
    "sum.omega.lam",
    "sum.gamma",
    "priced.omega.w",
    "heads.omega.alpha",
    "heads.gamma",
}


class TestTrajectories:
    def test_what_learns_is_recorded_as_it_was(self):
        net = model()
        record = analysis.Trajectories(net)
        for n in (0, 10, 20):
            with torch.no_grad():
                net["learned"].omega.a.fill_(n)
                net["sum"].omega.lam.fill_(n)
                net["heads"].omega.a.fill_(n)
            record.step(n)
        assert record.steps == [0, 10, 20]
        values = record.values
        assert set(values) == NAMES
        assert values["learned.omega.alpha"].shape == (3, 3, 1, 1)
        assert values["sum.gamma"].shape == (3, 2, 1)
        assert values["sum.omega.lam"].tolist() == [0, 10, 20]
        at = torch.tensor([0.0, 10.0, 20.0]).sigmoid() + 1
        assert values["learned.omega.alpha"][:, 1, 0, 0].tolist() == pytest.approx(at.tolist())
        assert torch.equal(values["heads.omega.alpha"], values["learned.omega.alpha"])
        assert values["heads.gamma"].flatten().tolist() == pytest.approx([1.0] * 3)
        assert not any(table.requires_grad for table in values.values())

    def test_a_resumed_run_goes_on(self, tmp_path):
        net = model()
        record = analysis.Trajectories(net)
        record.step(1)
        record.step(2)
        torch.save(record.state_dict(), tmp_path / "record.pt")
        resumed = analysis.Trajectories(copy.deepcopy(net))
        resumed.load_state_dict(torch.load(tmp_path / "record.pt", weights_only=True))
        with torch.no_grad():
            net["sum"].gamma.fill_(3)
        record.step(3)
        with pytest.raises(ValueError, match="n must be > 2, the last step recorded; got 2"):
            resumed.step(2)
        resumed.step(3)
        assert resumed.steps == record.steps == [1, 2, 3]
        assert record.values["sum.gamma"][-1].tolist() == [[3], [3]]
        for name, table in resumed.values.items():
            assert torch.equal(table[:2], record.values[name][:2])

    def test_refuses_the_state_of_another_model(self):
        record = analysis.Trajectories(model())
        with pytest.raises(ValueError, match="state must hold values of the shapes"):
            record.load_state_dict({"steps": [], "values": {}})


@pytest.mark.parametrize("call", [analysis.support_size, analysis.density, analysis.groups])
@pytest.mark.parametrize(
    ("y", "more", "error", "words"),
    [
        ([0.5], {}, TypeError, "y must be a torch.Tensor; got list"),
        (torch.ones(2).long(), {}, TypeError, "y must be floating .*; got torch.int64"),
        (torch.ones(2, 3), {"dim": 2}, ValueError, r"dim must be in .* for y of shape \(2, 3\)"),
        (torch.ones(2, 0), {}, ValueError, "y must not be empty along dim=-1"),
        (torch.ones(2), {"mask": torch.ones(2)}, TypeError, "mask must be bool .*torch.float32"),
        (torch.ones(2), {"mask": [True, True]}, TypeError, "mask must be a bool .*got list"),
        (torch.ones(2), {"mask": torch.ones(3).bool()}, ValueError, r"must broadcast to y.*\(3,\)"),
    ],
)
def test_refuses(call, y, more, error, words):
    with pytest.raises(error, match=words):
        call(y, **more)


def test_refuses_kinds_and_head_dims():
    y = torch.ones(2, 3)
    with pytest.raises(ValueError, match='kind must be "runs", "clusters" or'):
        analysis.groups(y, "rows")
    for head_dim in (-1, 1, 2, -3):
        with pytest.raises(ValueError, match=f"head_dim must be a dimension of p.*got {head_dim}"):
            analysis.head_diversity(y, head_dim)
