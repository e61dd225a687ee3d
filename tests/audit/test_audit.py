"""The audit's statistics: against scikit-learn, against what theory says, and at the edges."""

from __future__ import annotations

from dataclasses import replace
from math import erf
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, roc_auc_score, roc_curve

from fedptr.audit import lira, scores
from fedptr.audit.examples import choose_examples
from fedptr.audit.loss_attack import run_loss_attack
from fedptr.audit.metrics import accuracy_at, calibrated_accuracy, find_best_threshold, measure_attack
from fedptr.audit.neighbours import compute_distances
from fedptr.audit.roc import Ranking, area_under_curve, oracle_accuracy, thin_curve, tpr_at_fpr
from fedptr.audit.shadows import draw_halves, plan_shadows
from fedptr.data.split import Split
from fedptr.runs.plan import check_plan

N = 2000
MEMBER = np.arange(2 * N) < N


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def measured(values: np.ndarray, member: np.ndarray = MEMBER, seed: int = 0) -> dict:
    return measure_attack(values, member, rng(seed), draws=100)


# What section 6 of the protocol asks for


def test_random_scores_are_at_chance() -> None:
    found = measured(rng(1).normal(size=2 * N))
    assert found["auc"] == pytest.approx(0.5, abs=0.02)
    assert found["auc_ci95"][0] < 0.5 < found["auc_ci95"][1]
    assert found["accuracy"] == pytest.approx(0.5, abs=0.03)
    assert found["tpr"]["0.01"] < 0.02


def test_constant_scores_are_exactly_at_chance() -> None:
    found = measured(np.full(2 * N, 0.3))
    assert (found["auc"], found["accuracy"], found["accuracy_oracle"]) == (0.5, 0.5, 0.5)
    assert found["tpr"] == {"0.001": 0.0, "0.01": 0.0}


def test_separated_scores_are_perfect() -> None:
    found = measured(MEMBER + rng().uniform(-0.4, 0.4, 2 * N))
    assert (found["auc"], found["accuracy"], found["accuracy_oracle"]) == (1.0, 1.0, 1.0)
    assert found["tpr"] == {"0.001": 1.0, "0.01": 1.0}
    assert found["auc_ci95"] == [1.0, 1.0]


def test_phi_is_the_log_odds_and_stays_finite() -> None:
    z, y = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)).double(), torch.arange(50) % 7
    p = z.softmax(1)[torch.arange(50), y]
    assert torch.allclose(scores.compute_phi(z, y), p.log() - (1 - p).log(), rtol=1e-9)
    extreme = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]])
    found = scores.compute_phi(extreme, torch.tensor([0, 0]))
    assert bool(found.isfinite().all())
    assert found.tolist() == [1e4, -2e4]
    assert torch.allclose(scores.cross_entropy(z, y), -p.log())


@pytest.mark.parametrize("variance", ["shared", "example"])
def test_lira_on_gaussians_reaches_the_known_auc(variance: lira.Variance) -> None:
    """φ ~ N(μ_e + Δ·member, σ²) with μ_e of each example unknown: the best attack has AUC = Φ(Δ/(σ√2))."""
    n, s, delta, sigma, r = 20_000, 128, 1.0, 1.0, rng(3)
    centre = r.normal(0, 3, n)
    member = np.arange(n) < n // 2
    inside = draw_halves(n, s, seed=0)
    phi = (centre + delta * inside + sigma * r.normal(size=(s, n))).astype(np.float32)
    target = centre + delta * member + sigma * r.normal(size=n)
    expected = (1 + erf(delta / (2 * sigma))) / 2  # Φ(Δ/(σ√2))
    for attack in (lira.score_online, lira.score_offline):
        scores = attack(target, phi, inside, variance)
        assert area_under_curve(Ranking.from_scores(scores, member).roc()) == pytest.approx(expected, abs=0.01)
    plain = area_under_curve(Ranking.from_scores(target, member).roc())
    assert plain < expected - 0.1, "without shadows the examples' own centres drown it"


def test_swapped_labels_mirror_the_auc() -> None:
    values = rng(2).normal(size=2 * N) + 0.5 * MEMBER
    assert measured(values, ~MEMBER)["auc"] == pytest.approx(1 - measured(values)["auc"], abs=1e-12)


# Against scikit-learn


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=4, max_size=60).filter(
        lambda pairs: 0 < sum(member for _, member in pairs) < len(pairs)
    )
)
def test_as_scikit_learn(pairs: list[tuple[int, bool]]) -> None:
    """With many ties."""
    values, member = (np.array(part) for part in zip(*pairs, strict=True))
    curve = Ranking.from_scores(values, member).roc()
    fpr, tpr, thresholds = roc_curve(member, values, drop_intermediate=False)
    assert np.allclose(curve.fpr, fpr)
    assert np.allclose(curve.tpr, tpr)
    assert area_under_curve(curve) == pytest.approx(roc_auc_score(member, values))
    assert tpr_at_fpr(curve, 0.3) == pytest.approx(max(tpr[fpr <= 0.3 + 1e-12]))
    accuracies = [balanced_accuracy_score(member, values >= t) for t in thresholds]
    assert oracle_accuracy(curve) == pytest.approx(max(accuracies))
    assert accuracy_at(
        values.astype(float), member, find_best_threshold(values.astype(float), member)
    ) == pytest.approx(oracle_accuracy(curve))


def test_weights_count_examples() -> None:
    values, member = rng(4).integers(0, 20, 300).astype(float), rng(5).random(300) < 0.4
    weights = rng(6).integers(0, 4, 300)
    again = Ranking.from_scores(np.repeat(values, weights), np.repeat(member, weights)).roc()
    assert area_under_curve(Ranking.from_scores(values, member).roc(weights.astype(float))) == pytest.approx(
        area_under_curve(again)
    )


def test_the_interval_covers_the_truth() -> None:
    """95 % of the intervals should; of 60 at least 50 do, but for one audit in a thousand."""
    expected, hits = (1 + erf(0.5)) / 2, 0
    for seed in range(60):
        r = rng(100 + seed)
        member = np.arange(400) < 200
        found = measure_attack(r.normal(size=400) + member, member, r, draws=200)
        low, high = found["auc_ci95"]
        hits += low <= expected <= high
        for rate, (least, most) in found["tpr_ci95"].items():
            assert least <= found["tpr"][rate] <= most
            assert least < most
    assert hits >= 50


# The headline is not optimistic


def test_the_oracle_is_optimistic_and_the_headline_is_not() -> None:
    found = [measured(rng(k).normal(size=60), np.arange(60) < 30, k) for k in range(200)]
    assert np.mean([one["accuracy"] for one in found]) == pytest.approx(0.5, abs=0.02)
    assert np.mean([one["accuracy_oracle"] for one in found]) > 0.55
    assert calibrated_accuracy(np.arange(60.0), np.arange(60) < 30, rng()) == pytest.approx(0.5, abs=0.05), (
        "never below by sign"
    )


def test_yeoms_threshold() -> None:
    losses, member = np.array([0.1, 0.2, 0.9, 0.3, 1.0, 2.0] * 4), np.array([True] * 3 + [False] * 3).repeat(1)
    found = run_loss_attack(losses, np.tile(member, 4), 0.4, rng())["yeom"]
    assert (found["tpr"], found["fpr"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert found["accuracy"] == pytest.approx(2 / 3)


def test_a_thinned_curve_is_on_the_curve() -> None:
    curve = Ranking.from_scores(rng(1).normal(size=2 * N) + MEMBER, MEMBER).roc()
    few = thin_curve(curve)
    assert len(few.fpr) == 120
    assert few.fpr[0] == pytest.approx(1 / N)
    assert few.tpr[-1] == 1
    assert all(t == tpr_at_fpr(curve, f) for f, t in zip(few.fpr, few.tpr, strict=True))


# LiRA's Gaussians


def test_each_side_has_its_own_spread() -> None:
    """The authors' code takes σ_out from the IN scores."""
    inside = draw_halves(500, 64, seed=1)
    phi = np.where(inside, rng(1).normal(4, 0.5, (64, 500)), rng(2).normal(0, 2.0, (64, 500)))
    own, other = lira.fit_gaussians(phi, inside, "shared"), lira.fit_gaussians(phi, ~inside, "shared")
    assert own.sigma == pytest.approx(0.5, rel=0.02)
    assert other.sigma == pytest.approx(2.0, rel=0.02)
    assert lira.fit_gaussians(phi, inside, "example").sigma.shape == (500,)


def test_the_shared_spread_is_not_that_between_examples() -> None:
    inside = draw_halves(2000, 8, seed=1)
    phi = rng(1).normal(0, 10, 2000) + rng(2).normal(0, 1.0, (8, 2000))
    assert lira.fit_gaussians(phi, inside, "shared").sigma == pytest.approx(1.0, rel=0.1)


def test_two_shadows_are_enough_to_be_finite() -> None:
    inside = draw_halves(40, 2, seed=0)
    phi, target = rng(1).normal(size=(2, 40)), rng(2).normal(size=40)
    for attack in (lira.score_online, lira.score_offline):
        for variance in ("shared", "example"):
            assert np.isfinite(attack(target, phi, inside, variance)).all()


def test_more_shadows_keep_the_first() -> None:
    few, many = draw_halves(101, 4, seed=7), draw_halves(101, 16, seed=7)
    assert (many[:4] == few).all()
    assert (many.sum(axis=0) == 8).all()
    assert not (many[0] == many[2]).all()
    assert not (draw_halves(101, 4, seed=8) == few).all()


# The examples


def test_examples_are_balanced_and_have_a_client() -> None:
    labels = rng(0).integers(0, 5, 300)
    train = np.arange(200)
    split = Split((train[labels[:200] < 2], train[labels[:200] >= 2]), 200)
    found = choose_examples(split, labels, 0, rng(1))
    for k in range(5):
        here = labels[found.rows] == k
        n = min((labels[:200] == k).sum(), (labels[200:] == k).sum())
        assert found.member[here].sum() == (~found.member[here]).sum() == n
    assert (found.member == (found.rows < 200)).all()
    assert (found.client == (labels[found.rows] >= 2)).all(), "a class one client has goes to that client"
    background = np.concatenate(found.background)
    assert set(background) | set(found.rows[found.member]) == set(range(200))
    few = choose_examples(split, labels, 20, rng(1))
    assert few.member.sum() == 20
    assert choose_examples(split, labels, 0, rng(1)).sha256 == found.sha256 != few.sha256


def test_a_shadows_split() -> None:
    labels = np.tile(np.arange(4), 30)
    split = Split(tuple(np.arange(80).reshape(4, 20)), 80)
    found = choose_examples(split, labels, 0, rng(2))
    inside = rng(3).random(len(found.rows)) < 0.5
    made = found.split(inside, 4, "test")
    assert set(np.concatenate(made.clients)) == set(np.concatenate(found.background)) | set(found.rows[inside])
    for i, indices in enumerate(made.clients):
        kept = set(split.clients[i]) - set(found.rows[~inside])
        assert {row for row in indices if row < 80} == kept, "members stay with their client"
    assert made.dropped == 120 - sum(made.sizes)
    (all_,) = found.split(inside, 1, "test").clients
    assert set(all_) == set(np.concatenate(made.clients))


def test_equal_images_have_no_distance() -> None:
    x = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    d = compute_distances(x, x)
    assert float(d.diagonal().abs().max()) == 0
    assert float(compute_distances(x, x + 0.5).diagonal()[0]) == pytest.approx(0.5, rel=1e-6)


def test_centralised_shadows_are_the_same_for_all_methods(tmp_path: Path) -> None:
    """So that several methods can share them; those of the method itself are its own."""
    labels = np.tile(np.arange(4), 30)
    found = choose_examples(Split(tuple(np.arange(80).reshape(4, 20)), 80), labels, 0, rng(2))
    inside = draw_halves(len(found.rows), 2, seed=0)
    plans = [check_plan({"split": {"clients": 4}, "method": {"name": name}}) for name in ("fedavg", "fedptr")]
    one, two = (list(plan_shadows(plan, "data", found, inside, 0, "centralised", tmp_path)) for plan in plans)
    assert one == two
    one, two = (list(plan_shadows(plan, "data", found, inside, 0, "federated", tmp_path)) for plan in plans)
    assert not set(one) & set(two)
    again = replace(plans[0], run=replace(plans[0].run, seed=5))
    assert list(plan_shadows(again, "data", found, inside, 0, "federated", tmp_path)) == one, (
        "seeds of a run share them"
    )
