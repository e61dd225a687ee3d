"""Options of matching: soft labels, starts on the segment, averaged and factorised images; exact gradients."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from small_world import CLASSES, QUICK, SHAPE, World, quick
from torch import nn

from fedptr.core.randomness import Key
from fedptr.core.regression import Regression
from fedptr.core.task import Classification
from fedptr.errors import UserError
from fedptr.methods import make_method
from fedptr.methods.ptr.auxiliary import Auxiliary, MatchingSettings, reset_momentum
from fedptr.methods.ptr.matching import WAYS, take_outer_step
from fedptr.methods.ptr.objective import Draws
from fedptr.methods.ptr.styles import derivatives_by_factors, draw_styles, show_bases
from fedptr.types import Batch

HOW = MatchingSettings(H=3, R=4, lr_img=1.0, lr_beta=1e-3, momentum=0.5, batch=0, dsa=True, lr_label=2.0)


def case(soft: bool = True) -> tuple[Classification, torch.Tensor, torch.Tensor, Auxiliary]:
    with Key(0).fixed("case"):
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, CLASSES))
        task = Classification(model.double(), SHAPE, CLASSES)
        start = task.init()
        end = start + 0.05 * torch.randn_like(start)
        y = torch.arange(CLASSES).repeat_interleave(2)
        X, beta = torch.randn(len(y), *SHAPE, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
        Y = torch.randn(len(y), CLASSES, dtype=torch.float64) if soft else None
        velocity = None if Y is None else torch.zeros_like(Y)
    return (
        task,
        start,
        end,
        Auxiliary(X, y, beta, torch.zeros_like(X), torch.zeros_like(beta), Y=Y, Y_velocity=velocity),
    )


@pytest.mark.parametrize("starts", ["first", "segment"])
@pytest.mark.parametrize("batch", [0, 4])
@pytest.mark.parametrize("way", WAYS)
def test_derivatives_by_labels_images_and_beta_equal_central_differences(way: str, batch: int, starts: str) -> None:
    task, start, end, aux = case()
    aim = WAYS[way](task, start, end, replace(HOW, batch=batch, starts=starts))
    steps, h = aim.draw(aux, Draws(Key(1))), 1e-6
    assert (steps.at > 0) == (starts == "segment")
    found = aim.gradient(aux, steps)
    for name, g in (("Y", found.Y), ("X", found.X), ("beta", found.beta)):
        here = getattr(aux, name)
        v = torch.randn(here.shape, generator=Key(1)(name), dtype=torch.float64)
        up, down = (aim.end(aux._replace(**{name: here + s * h * v}), steps)[1] for s in (1, -1))
        assert float((g * v).sum()) == pytest.approx((up - down) / (2 * h), rel=1e-5, abs=1e-12), name
    assert float(found.Y.norm()) > 1e-6


@pytest.mark.parametrize("way", WAYS)
def test_one_hot_labels_are_hard_ones(way: str) -> None:
    task, start, end, hard = case(soft=False)
    soft = hard._replace(Y=nn.functional.one_hot(hard.y, CLASSES).double())
    aim = WAYS[way](task, start, end, HOW)
    steps = aim.draw(hard, Draws(Key(0)))
    one, two = aim.gradient(hard, steps), aim.gradient(soft, steps)
    assert one.Y is None
    assert pytest.approx(two.L, rel=1e-12) == one.L
    torch.testing.assert_close(one.X, two.X, rtol=1e-9, atol=1e-13)


def test_an_outer_step_is_sgd_with_momentum_on_labels_too() -> None:
    task, start, end, aux = case()
    aim, draws = WAYS["gradient"](task, start, end, HOW), Draws(Key(0))
    Y = aux.Y.clone().requires_grad_()
    optimiser = torch.optim.SGD([Y], HOW.lr_label, momentum=HOW.momentum)
    for _ in range(3):
        found = aim.gradient(aux, aim.draw(aux, draws))
        Y.grad = found.Y
        optimiser.step()
        aux = take_outer_step(aux, found, HOW)
    torch.testing.assert_close(aux.Y, Y.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["fedptr", "fedptr-s", "scaffold+ptr"])
def test_methods_learn_labels(name: str, way: str, world: World) -> None:
    method = make_method(name, **QUICK, labels="soft", matching=way, lr_img="auto")
    run = world.runs(method, rounds=5)[-1]
    owner = run.server if method.cost.auxiliary == "server" else run.clients[0]
    hard = nn.functional.one_hot(owner["y"], CLASSES).to(owner["Y"])
    assert 0 < float((owner["Y"] - hard).norm()) < 5
    assert bool(run.w.isfinite().all())


@pytest.mark.parametrize("name", ["fedptr", "fedptr-s"])
def test_labels_that_are_not_moved_are_hard_labels(name: str, world: World) -> None:
    soft, hard = (world.weights(quick(name, labels=labels, lr_label=0.0), rounds=5) for labels in ("soft", "hard"))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(soft, hard, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_a_student_starts_anywhere_on_the_segment(way: str) -> None:
    """At one of R points of the straight line, and with as many steps as are left from there."""
    task, start, end, aux = case()
    draws = Draws(Key(0))
    drawn = [WAYS[way](task, start, end, replace(HOW, starts="segment")).draw(aux, draws) for _ in range(40)]
    assert {draw.at for draw in drawn} == {0, 0.25, 0.5, 0.75}
    for draw in drawn:
        torch.testing.assert_close(draw.start(start, end), start + draw.at * (end - start))
        assert len(draw.steps) == (HOW.R * (1 - draw.at) if way == "trajectory" else 1)


def test_a_late_student_of_the_exact_set_arrives() -> None:
    """Along a straight trajectory of a linear loss, wherever it starts."""
    task, start, _, aux = case()
    g, _ = task.grad(start, Batch(aux.X, aux.labels))
    far = start - HOW.R * aux.beta * 1e-6 * g  # so short that the gradient stays the same
    aux = aux._replace(beta=aux.beta * 1e-6)
    aim = WAYS["trajectory"](task, start, far, replace(HOW, dsa=False, starts="segment"))
    draws = Draws(Key(0))
    assert all(aim.end(aux, aim.draw(aux, draws))[1] < 1e-9 for _ in range(8))


@pytest.mark.parametrize("name", ["fedptr", "fedptr-s", "fedavg+ptr"])
def test_images_are_averaged_over_matchings(name: str, world: World) -> None:
    method = make_method(name, **QUICK, ema=0.25)
    owners = [
        run.server if method.cost.auxiliary == "server" else run.clients[0] for run in world.runs(method, rounds=6)
    ]
    matched = [owner for owner in owners if int(owner["matched"]) >= 0]
    assert torch.equal(matched[0]["X_mean"], matched[0]["X"])
    for before, after in itertools.pairwise(matched):
        torch.testing.assert_close(after["X_mean"], 0.25 * before["X_mean"] + 0.75 * after["X"])
    alone = world.weights(make_method(name, **QUICK), rounds=6)
    averaged = world.weights(method, rounds=6)
    same = [torch.equal(a, b) for a, b in zip(alone, averaged, strict=True)]
    assert same == [True] * 4 + [False] * 2, "the first mean is the images themselves"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["fedptr", "fedptr-s"])
def test_a_resumed_run_has_the_same_bits(name: str, way: str, world: World) -> None:
    method = quick(name, matching=way, labels="soft", starts="segment", ema=0.5, lr_img="auto")
    whole = world.runs(method, rounds=7)
    rest = world.runs(method, rounds=7, start=whole[4])
    assert [torch.equal(run.w, again.w) for run, again in zip(whole[5:], rest, strict=True)] == [True, True]


def test_what_has_no_classes_has_no_soft_labels() -> None:
    task = Regression(nn.Sequential(nn.Flatten(), nn.Linear(16, 1)), SHAPE)
    with pytest.raises(UserError, match="this task has none"):
        quick("fedptr-s", labels="soft").check(task)
    with pytest.raises(UserError, match=r"method\.labels"):
        quick("naive", labels="soft")


def factorised(seed: int = 0, styles: int = 2) -> tuple[Classification, torch.Tensor, torch.Tensor, Auxiliary]:
    """The case whose images are made from one base of each class."""
    task, start, end, aux = case()
    bases = torch.randn(CLASSES, *SHAPE, generator=Key(seed)("bases"), dtype=torch.float64)
    drawn = draw_styles(styles, SHAPE[0], Key(seed)("styles"), bases)
    moved = {"bases_velocity": torch.zeros_like(bases), "styles_velocity": torch.zeros_like(drawn)}
    return task, start, end, aux._replace(X=show_bases(bases, drawn), bases=bases, styles=drawn, **moved)


@pytest.mark.parametrize("way", WAYS)
def test_derivatives_by_bases_and_styles_equal_central_differences(way: str) -> None:
    task, start, end, aux = factorised()
    aim, h = WAYS[way](task, start, end, HOW), 1e-6
    steps = aim.draw(aux, Draws(Key(1)))
    factors = {"bases": aux.bases, "styles": aux.styles}
    found = derivatives_by_factors(aux.bases, aux.styles, aim.gradient(aux, steps).X)
    for (name, here), g in zip(factors.items(), found, strict=True):
        v = torch.randn(here.shape, generator=Key(1)(name), dtype=torch.float64)
        shown = [show_bases(**{**factors, name: here + s * h * v}) for s in (1, -1)]
        up, down = (aim.end(aux._replace(X=X), steps)[1] for X in shown)
        assert float((g * v).sum()) == pytest.approx((up - down) / (2 * h), rel=1e-5), name
        assert float(g.norm()) > 1e-6


def test_every_base_is_shown_in_every_style() -> None:
    """Of three channels; each style is a convolution over these and a shift, and the first does nothing."""
    bases = torch.randn(2, 3, 5, 4, generator=Key(0)("bases"), dtype=torch.float64)
    styles = draw_styles(4, 3, Key(0)("styles"), bases)
    X = show_bases(bases, styles).unflatten(0, (2, 4))
    assert torch.equal(X[:, 0], bases)
    for j in range(1, 4):
        layer = nn.Conv2d(3, 3, 3, padding=1).double()
        layer.weight.data, layer.bias.data = styles[j, :, :-1].reshape(3, 3, 3, 3), styles[j, :, -1]
        torch.testing.assert_close(X[:, j], bases + layer(bases))


@pytest.mark.parametrize(("name", "way", "lr_img"), [
    ("fedptr-s", "trajectory", 0.3), ("fedptr", "gradient", "auto"), ("fedavg+ptr", "trajectory", "auto"),
])  # fmt: skip
def test_one_style_that_is_the_identity_is_the_plain_set(name: str, way: str, lr_img: object, world: World) -> None:
    how = {**QUICK, "matching": way, "lr_img": lr_img, "ema": 0.25, "labels": "soft"}
    factors, plain = (world.weights(make_method(name, **how, **more)) for more in ({"styles": 1, "lr_style": 0.0}, {}))
    assert [torch.equal(a, b) for a, b in zip(factors, plain, strict=True)] == [True] * 6
    learned = world.weights(make_method(name, **how, styles=1))
    assert not torch.equal(learned[-1], plain[-1])


def test_a_step_on_bases_and_styles_is_sgd_with_momentum() -> None:
    task, start, end, aux = factorised()
    how = replace(HOW, lr_img=0.3, lr_style=0.05)
    aim, draws = WAYS["gradient"](task, start, end, how), Draws(Key(0))
    B, S = aux.bases.clone().requires_grad_(), aux.styles.clone().requires_grad_()
    groups = [{"params": [B], "lr": how.lr_img}, {"params": [S], "lr": how.lr_style}]
    optimiser = torch.optim.SGD(groups, momentum=how.momentum)
    for _ in range(3):
        found = aim.gradient(aux, aim.draw(aux, draws))
        optimiser.zero_grad()
        show_bases(B, S).backward(found.X)
        optimiser.step()
        aux = take_outer_step(aux, found, how)
        torch.testing.assert_close(aux.X, show_bases(B, S).detach(), rtol=1e-12, atol=1e-13)
    assert not reset_momentum(aux).styles_velocity.any()
    assert aux.styles_velocity.any()


@pytest.mark.parametrize("name", ["fedptr", "fedptr-s", "naive"])
def test_styles_are_learned_and_carried_over_rounds(name: str, world: World) -> None:
    method = quick(name, styles=2, ipc=4, matching="gradient", lr_img="auto")
    runs = world.runs(method, rounds=6)
    owner = [run.server if method.cost.auxiliary == "server" else run.clients[0] for run in runs]
    assert owner[-1]["bases"].shape == (2 * CLASSES, *SHAPE)
    assert owner[-1]["styles"].shape == (2, 1, 10)
    assert not torch.equal(owner[-1]["styles"], owner[0]["styles"])
    assert owner[-1]["y"].tolist() == [k for k in range(CLASSES) for _ in range(4)]
    torch.testing.assert_close(owner[-1]["X"], show_bases(owner[-1]["bases"], owner[-1]["styles"]))
    rest = world.runs(method, rounds=6, start=runs[3])
    assert torch.equal(rest[-1].w, runs[-1].w)


def test_styles_need_images_and_as_many_as_they_make() -> None:
    rows = Classification(nn.Sequential(nn.Flatten(), nn.Linear(4, CLASSES)), (4,), CLASSES)
    with pytest.raises(UserError, match=r"method\.styles are of images, not of shapes \(4,\)"):
        quick("fedptr-s", styles=2).check(rows)
    with pytest.raises(UserError, match="3 images per class cannot be made from base images in 2 styles each"):
        World().runs(quick("fedptr-s", styles=2, ipc=3), rounds=1)
