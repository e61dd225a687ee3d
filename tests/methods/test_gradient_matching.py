"""Gradient matching: exact gradients, what it is indifferent to, guards, and that it matches and projects."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from small_world import CLASSES, QUICK, SHAPE, World, quick
from torch import Tensor, nn

from fedptr.core.randomness import Key
from fedptr.core.task import Classification
from fedptr.errors import UserError
from fedptr.methods import FedAvg, make_method
from fedptr.methods.ptr.auxiliary import BETA_FLOOR, Auxiliary, MatchingSettings
from fedptr.methods.ptr.by_gradient import GradientMatching, compare_rows
from fedptr.methods.ptr.matching import match_trajectory
from fedptr.methods.ptr.objective import Draws
from fedptr.models.networks import ConvNet
from fedptr.runs.summary import advise_matching
from fedptr.types import Batch, Layer

HOW = MatchingSettings(H=3, R=4, lr_img=1.0, lr_beta=1e-3, momentum=0.5, batch=0, dsa=False, matching="gradient")
VARIANTS = {"whole": HOW, "minibatch": replace(HOW, batch=4), "dsa": replace(HOW, dsa=True)}
LAYERS = (Layer("weight", 0, 6, (2, 3)), Layer("bias", 6, 8, (2,)), Layer("filters", 8, 16, (2, 2, 2)))


class Case:
    """A stretch of a trajectory and an auxiliary set in float64."""

    def __init__(self, model: nn.Module | None = None) -> None:
        with Key(0).fixed("case"):
            smooth = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, CLASSES))
            self.task = Classification((model or smooth).double(), SHAPE, CLASSES)
            self.start = self.task.init()
            self.end = self.start + 0.05 * torch.randn_like(self.start)
            y = torch.arange(CLASSES).repeat_interleave(2)
            X, beta = torch.randn(len(y), *SHAPE, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
            self.aux = Auxiliary(X, y, beta, torch.zeros_like(X), torch.zeros_like(beta))

    def aim(self, how: MatchingSettings = HOW) -> GradientMatching:
        return GradientMatching(self.task, self.start, self.end, how)


@pytest.mark.parametrize("how", VARIANTS.values(), ids=VARIANTS)
def test_its_gradient_equals_central_differences(how: MatchingSettings) -> None:
    case, h = Case(), 1e-6
    aim = case.aim(how)
    steps = aim.draw(case.aux, Draws(Key(0)))
    L, gX, gbeta, _ = aim.gradient(case.aux, steps)
    assert aim.end(case.aux, steps)[1] == pytest.approx(L, rel=1e-12)
    assert not gbeta.any(), "cosines do not see a step size"
    for seed in range(6):
        v = torch.randn(gX.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        up, down = (aim.end(case.aux._replace(X=case.aux.X + s * h * v), steps)[1] for s in (1, -1))
        assert float((gX * v).sum()) == pytest.approx((up - down) / (2 * h), rel=1e-5)


@pytest.mark.parametrize("how", VARIANTS.values(), ids=VARIANTS)
def test_its_gradient_equals_autograd_on_a_convnet(how: MatchingSettings) -> None:
    """The paper's layers (instance norm, ReLU, pooling), every pixel, in float64."""
    with Key(3).fixed("net"):
        case = Case(ConvNet(SHAPE, CLASSES, width=3, depth=2))
    aim = case.aim(how)
    steps = aim.draw(case.aux, Draws(Key(0)))
    got = aim.gradient(case.aux, steps)
    X, w = case.aux.X.clone().requires_grad_(), case.start.clone().requires_grad_()
    (g,) = torch.autograd.grad(case.task.loss(w, steps.steps[0].batch(X, case.aux.y)), w, create_graph=True)
    rows = [
        (g[layer.start : layer.stop].view(layer.shape[0], -1), aim.d[layer.start : layer.stop].view(layer.shape[0], -1))
        for layer in case.task.layers
        if len(layer.shape) > 1
    ]
    apart = torch.cat([1 - (G * D).sum(1) / (G.norm(dim=1) * D.norm(dim=1)) for G, D in rows])
    (expected,) = torch.autograd.grad(apart.mean(), X)
    assert pytest.approx(float(apart.mean().detach()), rel=1e-9) == got.L
    torch.testing.assert_close(got.X, expected, rtol=1e-9, atol=1e-12)
    assert float(expected.norm()) > 1e-6


def test_rows_are_compared_by_direction_alone() -> None:
    d = torch.randn(16, generator=Key(0)("d"), dtype=torch.float64)
    lengths = torch.tensor([3.0, 0.2]).repeat_interleave(3)
    g = d.clone()
    g[:6] *= lengths
    g[6:8] = -7.0  # a bias
    L, a = compare_rows(g, d, LAYERS)
    assert pytest.approx(0, abs=1e-15) == L
    assert float(a.norm()) == pytest.approx(0, abs=1e-14)
    assert compare_rows(-d, d, LAYERS)[0] == pytest.approx(2)
    turned = g.clone()
    turned[:3] *= -1
    assert compare_rows(turned, d, LAYERS)[0] == pytest.approx(2 / 4), "one of four rows"


def test_rows_without_a_direction_say_nothing() -> None:
    """A row that did not move is left out; one whose gradient is zero has no cosine."""
    d, g = torch.ones(16), torch.ones(16)
    d[:3], g[8:12] = 0, 0
    L, a = compare_rows(g, d, LAYERS)
    assert pytest.approx(1 / 3) == L
    assert bool(a.isfinite().all())
    assert not a[:3].any()
    assert not a[6:12].any()
    assert compare_rows(g, torch.zeros(16), LAYERS)[0] == 0.0


def test_beta_makes_r_steps_as_long_as_least_squares_wants() -> None:
    case = Case()
    aim = case.aim()
    steps = aim.draw(case.aux, Draws(Key(0)))
    g, _ = case.task.grad(case.start, steps.steps[0].batch(case.aux.X, case.aux.y))
    towards = case.end
    for sign in (1, -1):
        case.end = case.start - sign * 0.7 * g  # a trajectory that this very gradient has made, or the opposite
        aux, L = case.aim().end(case.aux, steps)
        assert pytest.approx(1 - sign, abs=1e-12) == L
        assert float(aux.beta) == pytest.approx(0.7 / HOW.R if sign > 0 else BETA_FLOOR)
    case.end = towards
    shorter = case.aim(replace(HOW, R=8)).end(case.aux, steps)[0].beta
    assert float(shorter) == pytest.approx(max(float(case.aim().end(case.aux, steps)[0].beta) / 2, BETA_FLOOR))


def test_it_leaves_its_arguments_alone_and_skips_what_did_not_move() -> None:
    case = Case()
    before = [t.clone() for t in (case.start, case.end, *case.aux[:6])]
    match_trajectory(case.task, case.start, case.end, case.aux, HOW, Key(0))
    assert all(torch.equal(a, b) for a, b in zip(before, (case.start, case.end, *case.aux[:6]), strict=True))
    aux, report = match_trajectory(case.task, case.start, case.start, case.aux, HOW, Key(0))
    assert report.skipped
    assert all(torch.equal(a, b) for a, b in zip(aux[:6], case.aux[:6], strict=True))


def test_a_step_that_goes_wrong_is_taken_back() -> None:
    case = Case(nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, CLASSES)))
    aux, report = match_trajectory(case.task, case.start, case.end, case.aux, replace(HOW, lr_img=math.inf), Key(0))
    assert report.stopped
    assert math.isfinite(report.after)
    assert bool(aux.X.isfinite().all())


@pytest.mark.parametrize("careful", [False, True])
def test_matching_lowers_its_loss_on_a_real_trajectory(careful: bool, world: World) -> None:
    runs = world.runs(FedAvg(), rounds=4)
    X, beta = torch.randn(6, *SHAPE, generator=Key(0)("images")), torch.tensor(0.01)
    aux = Auxiliary(X, torch.arange(CLASSES).repeat_interleave(2), beta, X * 0, beta * 0)
    how = replace(HOW, H=40, careful=careful)
    aux, report = match_trajectory(world.task, runs[1].w, runs[3].w, aux, how, Key(0))
    assert report.after < 0.8 * report.before
    d, (g, _) = runs[1].w - runs[3].w, world.task.grad(runs[1].w, Batch(aux.X, aux.y))
    assert float((d - HOW.R * aux.beta * g).norm()) < float(d.norm())


@pytest.mark.parametrize("name", ["fedptr", "fedptr-s", "scaffold+ptr", "naive"])
def test_methods_run_with_it(name: str, world: World) -> None:
    ours, other = (make_method(name, **QUICK, matching=way) for way in ("gradient", "trajectory"))
    runs = world.runs(ours, rounds=6)
    assert bool(runs[-1].w.isfinite().all())
    assert not torch.equal(runs[-1].w, world.runs(other, rounds=6)[-1].w)


@pytest.mark.parametrize("name", ["fedptr", "fedptr-s"])
def test_a_model_without_rows_is_refused(name: str) -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(16))

        def forward(self, x: Tensor) -> Tensor:
            return (x.flatten(1) * self.scale)[:, :CLASSES]

    with pytest.raises(UserError, match="compares the rows of weights"):
        World(model=Scale()).runs(quick(name, matching="gradient"), rounds=2)


def test_a_failed_matching_is_advised_what_helps() -> None:
    assert advise_matching(make_method("fedptr")) == "--set method.beta=auto --set method.lr_img=auto"
    assert advise_matching(make_method("fedptr", matching="gradient")) == "--set method.lr_img=auto"
    assert advise_matching(make_method("fedavgm+ptr", matching="gradient", lr_img="auto", H=3)).startswith(
        "--set method.H=6"
    )
