"""Trajectory matching: exact gradients (T8), fixed points (T7), guards (T9), and that it matches (T14)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from small_world import CLASSES, SHAPE, World
from torch import Tensor, nn

from fedptr.core.randomness import Key
from fedptr.core.task import Classification
from fedptr.methods import FedAvg
from fedptr.methods.ptr import by_trajectory
from fedptr.methods.ptr.auxiliary import BETA_FLOOR, Auxiliary, MatchingSettings, StudentStep, draw_steps
from fedptr.methods.ptr.by_trajectory import fit_beta, meta_gradient, train_student
from fedptr.methods.ptr.matching import match_trajectory, project_model
from fedptr.models.networks import ConvNet
from fedptr.types import Batch

HOW = MatchingSettings(H=3, R=4, lr_img=1.0, lr_beta=1e-3, momentum=0.5, batch=0, dsa=False)


class Case:
    """A start, an end and an auxiliary set in float64."""

    def __init__(self, model: nn.Module | None = None, images: int = 2, seed: int = 0) -> None:
        with Key(seed).fixed("case"):
            smooth = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, CLASSES))
            self.task = Classification((model or smooth).double(), SHAPE, CLASSES)
            self.start = self.task.init()
            self.end = self.start + 0.05 * torch.randn_like(self.start)
            y = torch.arange(CLASSES).repeat_interleave(images)
            X = torch.randn(len(y), *SHAPE, dtype=torch.float64)
            beta = torch.tensor(0.3, dtype=torch.float64)
            self.aux = Auxiliary(X, y, beta, torch.zeros_like(X), torch.zeros_like(beta))

    def steps(self, how: MatchingSettings) -> list[StudentStep]:
        return draw_steps(how, len(self.aux.y), SHAPE, Key(0)("order"), Key(0)("noise"))

    def loss(self, X: Tensor, beta: Tensor, steps: list[StudentStep]) -> Tensor:
        """The straightforward way: one graph over all student steps."""
        w = self.start.clone().requires_grad_()
        for step in steps:
            (g,) = torch.autograd.grad(self.task.loss(w, step.batch(X, self.aux.y)), w, create_graph=True)
            w = w - beta * g
        L = (w - self.end).square().sum() / (self.start - self.end).square().sum()
        return L if X.requires_grad else L.detach()


VARIANTS = [HOW, replace(HOW, batch=4), replace(HOW, R=6, dsa=True), replace(HOW, R=6, batch=2, dsa=True)]


@pytest.mark.parametrize("how", VARIANTS, ids=["whole", "minibatch", "dsa", "dsa-minibatch"])
def test_t8_meta_gradient_equals_central_differences(how: MatchingSettings) -> None:
    case = Case()
    steps = case.steps(how)
    L, gX, gbeta, _ = meta_gradient(case.task, case.start, case.end, case.aux, steps)
    X, beta, h = case.aux.X, case.aux.beta, 1e-6
    assert pytest.approx(float(case.loss(X, beta, steps)), rel=1e-12) == L
    numeric = (case.loss(X, beta + h, steps) - case.loss(X, beta - h, steps)) / (2 * h)
    assert float(gbeta) == pytest.approx(float(numeric), rel=1e-5)
    for _ in range(6):  # along random directions in image space
        v = torch.randn(X.shape, generator=torch.Generator().manual_seed(_), dtype=torch.float64)
        numeric = (case.loss(X + h * v, beta, steps) - case.loss(X - h * v, beta, steps)) / (2 * h)
        assert float((gX * v).sum()) == pytest.approx(float(numeric), rel=1e-5)


@pytest.mark.parametrize("how", VARIANTS, ids=["whole", "minibatch", "dsa", "dsa-minibatch"])
def test_adjoint_equals_the_unrolled_graph(how: MatchingSettings) -> None:
    """On the paper's ConvNet (instance norm, ReLU, pooling), every pixel, in float64."""
    with Key(3).fixed("net"):
        case = Case(ConvNet(SHAPE, CLASSES, width=3, depth=2))
    steps = case.steps(how)
    L, gX, gbeta, _ = meta_gradient(case.task, case.start, case.end, case.aux, steps)
    X, beta = case.aux.X.clone().requires_grad_(), case.aux.beta.clone().requires_grad_()
    expected = case.loss(X, beta, steps)
    wantX, wantbeta = torch.autograd.grad(expected, (X, beta))
    assert pytest.approx(float(expected.detach()), rel=1e-12) == L
    torch.testing.assert_close(gX, wantX, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gbeta, wantbeta, rtol=1e-9, atol=1e-12)
    assert float(gX.norm()) > 1e-6


@pytest.mark.parametrize("R", [5, 16, 17, 20, 40])
def test_a_long_trajectory_is_computed_again_in_stretches(R: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit what keeping all models gives, with few of them in memory."""
    case, how = Case(), replace(HOW, R=R, batch=2, dsa=True)
    steps = case.steps(how)
    monkeypatch.setattr(by_trajectory, "KEPT", 1000)
    expected = meta_gradient(case.task, case.start, case.end, case.aux, steps)
    for kept in (0, 4, 16):
        monkeypatch.setattr(by_trajectory, "KEPT", kept)
        got = meta_gradient(case.task, case.start, case.end, case.aux, steps)
        assert got[0] == expected[0]
        assert all(map(torch.equal, got[1:3], expected[1:3]))


def test_t7_no_step_no_progress() -> None:
    """L = 1 when β = 0: the student stays where it starts."""
    case = Case()
    aux = case.aux._replace(beta=torch.zeros((), dtype=torch.float64))
    L, _, _, _ = meta_gradient(case.task, case.start, case.end, aux, case.steps(HOW))
    assert pytest.approx(1.0, abs=1e-12) == L


def test_t7_own_trajectory_is_matched_exactly() -> None:
    """L = 0, with zero gradient, when w_end was made by the same D̃ and β."""
    case = Case()
    steps = case.steps(HOW)
    end = train_student(case.task, case.start, case.aux, steps)
    L, gX, gbeta, _ = meta_gradient(case.task, case.start, end, case.aux, steps)
    assert pytest.approx(0.0, abs=1e-12) == L
    assert float(gX.norm()) == pytest.approx(0.0, abs=1e-12)
    assert float(gbeta) == pytest.approx(0.0, abs=1e-12)


def test_t9_no_outer_steps_change_nothing() -> None:
    case = Case()
    aux, report = match_trajectory(
        case.task, case.start, case.end, case.aux, MatchingSettings(0, 4, 1.0, 1e-3, 0.5, 0, False), Key(0)
    )
    assert all(torch.equal(a, b) for a, b in zip(aux[:6], case.aux[:6], strict=True))
    assert not report.skipped


@pytest.mark.parametrize("broken", [0.0, math.nan, math.inf])
def test_t9_nothing_to_match_is_skipped(broken: float) -> None:
    case = Case()
    end = case.start + broken
    aux, report = match_trajectory(case.task, case.start, end, case.aux, HOW, Key(0))
    assert report.skipped
    assert all(torch.equal(a, b) for a, b in zip(aux[:6], case.aux[:6], strict=True))


def test_guard_keeps_the_last_sound_set() -> None:
    """A step that blows the images up is taken back: the student still arrives with what is kept."""
    case = Case(nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, CLASSES)))
    aux, report = match_trajectory(
        case.task, case.start, case.end, case.aux, MatchingSettings(5, 4, 1e300, 0.0, 0.5, 0, False), Key(0)
    )
    assert report.stopped
    assert bool(aux.X.isfinite().all())
    assert math.isfinite(report.after)
    assert bool(train_student(case.task, case.start, aux, case.steps(HOW)).isfinite().all())


def test_guard_keeps_beta_positive() -> None:
    case = Case()
    aux, report = match_trajectory(
        case.task, case.start, case.end, case.aux, MatchingSettings(5, 4, 0.0, 1e3, 0.5, 0, False), Key(0)
    )
    assert report.clamped
    assert float(aux.beta) >= BETA_FLOOR


def test_outer_steps_are_sgd_with_momentum() -> None:
    """Against torch.optim.SGD on images and β."""
    case = Case()
    aux, _ = match_trajectory(case.task, case.start, case.end, case.aux, HOW, Key(0))
    X, beta = case.aux.X.clone().requires_grad_(), case.aux.beta.clone().requires_grad_()
    optimisers = torch.optim.SGD([X], HOW.lr_img, momentum=0.5), torch.optim.SGD([beta], HOW.lr_beta, momentum=0.5)
    for _ in range(HOW.H):
        for optimiser in optimisers:
            optimiser.zero_grad()
        case.loss(X, beta, case.steps(HOW)).backward()
        for optimiser in optimisers:
            optimiser.step()
    torch.testing.assert_close(aux.X, X.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(aux.beta, beta.detach(), rtol=1e-9, atol=1e-12)


def test_t14_matching_lowers_its_loss_on_a_real_trajectory() -> None:
    world = World()
    runs = world.runs(FedAvg(), rounds=4)
    X = torch.randn(6, *SHAPE, generator=Key(0)("images"))
    beta = torch.tensor(0.01)
    aux = Auxiliary(X, torch.arange(CLASSES).repeat_interleave(2), beta, X * 0, beta * 0)
    _, report = match_trajectory(
        world.task, runs[1].w, runs[3].w, aux, MatchingSettings(40, 5, 300.0, 1e-5, 0.5, 0, False), Key(0)
    )
    assert report.after < 0.8 * report.before


def still(world: World, beta: float) -> tuple[torch.Tensor, torch.Tensor, Auxiliary]:
    """A real trajectory, and a set of noise for it."""
    runs = world.runs(FedAvg(), rounds=4)
    X, b = torch.randn(6, *SHAPE, generator=Key(0)("images")), torch.tensor(beta)
    return runs[1].w, runs[3].w, Auxiliary(X, torch.arange(CLASSES).repeat_interleave(2), b, X * 0, b * 0)


def test_careful_steps_match_where_bold_ones_blow_up(world: World) -> None:
    start, end, aux = still(world, 0.1)
    bold = MatchingSettings(16, 5, 1e5, 1e-5, 0.5, 0, False)
    careful = replace(bold, careful=True, pace=True)
    _, failed = match_trajectory(world.task, start, end, aux, bold, Key(0))
    kept, report = match_trajectory(world.task, start, end, aux, careful, Key(0))
    assert not failed.after < 1
    assert report.after < 0.9
    again, later = match_trajectory(world.task, start, end, kept, careful, Key(1))
    assert later.after < report.after  # it continues with the step length it has found
    assert float(again.gain) == pytest.approx(later.gain)


def test_careful_steps_grow_where_they_may(world: World) -> None:
    start, end, aux = still(world, 0.01)
    timid = MatchingSettings(12, 5, 1.0, 1e-5, 0.5, 0, False)
    _, slow = match_trajectory(world.task, start, end, aux, timid, Key(0))
    _, report = match_trajectory(world.task, start, end, aux, replace(timid, careful=True), Key(0))
    assert report.gain > 5
    assert report.after < slow.after


def test_beta_takes_its_first_value_from_the_trajectory(world: World) -> None:
    start, end, aux = still(world, 0.0)
    steps = draw_steps(HOW, len(aux.y), SHAPE, Key(0)("a"), Key(0)("b"))
    found, walk = fit_beta(world.task, start, end, aux, steps)
    assert walk is None
    g, _ = world.task.grad(start, steps[0].batch(aux.X, aux.y))
    whole = float((end - start).norm() / (len(steps) * g.norm()))
    missed = {
        part * whole: float(
            (train_student(world.task, start, aux._replace(beta=torch.tensor(part * whole)), steps) - end).norm()
        )
        for part in (1.0, 0.5, 0.25)
    }
    assert float(found.beta) == pytest.approx(min(missed, key=lambda beta: missed[beta]), rel=1e-5)


def test_a_beta_that_does_is_left_alone(world: World) -> None:
    start, end, aux = still(world, 0.01)
    steps = draw_steps(HOW, len(aux.y), SHAPE, Key(0)("a"), Key(0)("b"))
    own = train_student(world.task, start, aux, steps)  # a trajectory that this very set has made
    assert torch.equal(fit_beta(world.task, start, own, aux, steps)[0].beta, aux.beta)
    far = aux._replace(beta=torch.tensor(50.0))
    assert float(fit_beta(world.task, start, end, far, steps)[0].beta) < 50


@pytest.mark.parametrize("R", [4, 20])
def test_the_way_that_tried_beta_is_not_gone_again(R: int, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is too long to be kept; either way the bits are the same."""
    start, end, aux = still(world, 0.01)
    how = MatchingSettings(2, R, 1e-3, 0.0, 0.5, 0, False, pace=True, careful=True)
    steps = draw_steps(how, len(aux.y), SHAPE, Key(0)("a"), Key(0)("b"))
    end = 0.9 * train_student(world.task, start, aux, steps) + 0.1 * end
    found, taken = [], []
    grad = world.task.grad
    monkeypatch.setattr(world.task, "grad", lambda w, batch: taken.append(len(batch.y)) or grad(w, batch))
    for kept in (16, 1):
        monkeypatch.setattr(by_trajectory, "KEPT", kept)
        found.append(match_trajectory(world.task, start, end, aux, how, Key(0)))
        if kept == 16 and R == 4:
            assert len(taken) == 3 * R, "the walk that two outer steps begin with, that of the second, and the last"
    (mine, report), (other, expected) = found
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(mine, other, strict=True))
    assert report == expected
    assert report.steps == 2


def test_minibatches_cover_the_set_before_repeating() -> None:
    steps = draw_steps(MatchingSettings(1, 6, 1, 1, 0, 4, False), 10, SHAPE, Key(0)("a"), Key(0)("b"))
    assert [len(step.rows) for step in steps] == [4, 4, 2, 4, 4, 2]
    for epoch in (steps[:3], steps[3:]):
        assert sorted(torch.cat([step.rows for step in epoch]).tolist()) == list(range(10))


def test_projection_is_plain_gradient_descent() -> None:
    case = Case()
    w = case.start
    for _ in range(5):
        w = w - 0.1 * case.task.grad(w, Batch(case.aux.X, case.aux.y))[0]
    ours = project_model(case.task, case.start, case.aux.X, case.aux.y, 5, 0.1, 0.0, False, Key(0))
    torch.testing.assert_close(ours, w)
    assert torch.equal(
        project_model(case.task, case.start, case.aux.X, case.aux.y, 0, 0.1, 0.0, False, Key(0)), case.start
    )


def test_match_leaves_its_arguments_alone() -> None:
    case = Case()
    before = [t.clone() for t in (case.start, case.end, *case.aux[:6])]
    match_trajectory(case.task, case.start, case.end, case.aux, HOW, Key(0))
    assert all(torch.equal(a, b) for a, b in zip(before, (case.start, case.end, *case.aux[:6]), strict=True))
    assert not case.start.requires_grad


def test_matching_ends_when_it_does_not_improve() -> None:
    case = Case()
    how = replace(HOW, H=12, lr_img=0.0, lr_beta=0.0)  # nothing moves, so nothing improves
    _, all_of_them = match_trajectory(case.task, case.start, case.end, case.aux, how, Key(0))
    assert all_of_them.steps == 12
    _, few = match_trajectory(case.task, case.start, case.end, case.aux, replace(how, stop=0.01), Key(0))
    assert few.steps == 3
    moving = replace(HOW, H=12, stop=1e-9)
    aux, on = match_trajectory(case.task, case.start, case.end, case.aux, moving, Key(0))
    same, off = match_trajectory(case.task, case.start, case.end, case.aux, replace(moving, stop=0.0), Key(0))
    assert on.steps == off.steps == 12, "it improves all the way"
    assert torch.equal(aux.X, same.X)
