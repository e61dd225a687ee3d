"""DynaFed: FedAvg until its set is learned, an exact gradient of the set, and a server that trains on it."""

from __future__ import annotations

import pytest
import torch
from small_world import CLASSES, SHAPE, World, quick

from fedptr.methods.dynafed import draw_stretch
from fedptr.methods.ptr.soft_labels import SoftSet, soft_gradient, soft_loss, soft_meta_gradient
from fedptr.types import Batch


def make_set(dtype: torch.dtype = torch.float64) -> SoftSet:
    g = torch.Generator().manual_seed(3)
    X = torch.randn(5, *SHAPE, generator=g, dtype=dtype)
    return SoftSet(X, torch.randn(5, CLASSES, generator=g, dtype=dtype), torch.tensor(0.1, dtype=dtype))


def test_the_gradient_is_that_of_finite_differences() -> None:
    task = World(dtype=torch.float64).task
    start = task.init()
    end = start + 0.1 * torch.randn(len(start), generator=torch.Generator().manual_seed(1), dtype=start.dtype)
    learned, augments = make_set(), [lambda x: x, lambda x: 0.9 * x, lambda x: x]
    _, gradient = soft_meta_gradient(task, start, end, learned, augments)
    step = 1e-6
    for name in SoftSet._fields:
        here = getattr(learned, name)
        direction = torch.randn(here.shape, generator=torch.Generator().manual_seed(2), dtype=here.dtype)
        up, down = (
            soft_meta_gradient(task, start, end, learned._replace(**{name: here + s * direction}), augments)[0]
            for s in (step, -step)
        )
        slope = float((getattr(gradient, name) * direction).sum())
        assert slope == pytest.approx((up - down) / (2 * step), rel=1e-6), name


def test_a_certain_label_is_a_hard_one() -> None:
    task, learned = World(dtype=torch.float64).task, make_set()
    y = torch.tensor([0, 1, 2, 1, 0])
    certain = 100 * torch.nn.functional.one_hot(y, CLASSES).double()
    w = task.init()
    torch.testing.assert_close(soft_gradient(task, w, learned.X, certain), task.grad(w, Batch(learned.X, y))[0])
    torch.testing.assert_close(soft_loss(task, w, learned.X, certain), task.loss(w, Batch(learned.X, y)))


@pytest.mark.parametrize("off", [{"H": 0}, {"E": 0}])
def test_without_learning_or_training_it_is_fedavg(off: dict[str, int]) -> None:
    world = World()
    ours, plain = world.weights(quick("dynafed", **off)), world.weights(quick("fedavg"))
    assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))


def test_it_is_fedavg_until_the_set_is_learned() -> None:
    world = World()
    runs, plain = world.runs(quick("dynafed", L=3)), world.weights(quick("fedavg"))
    same = [torch.equal(run.w, w) for run, w in zip(runs, plain, strict=True)]
    assert same == [True, True, True, False, False, False]
    assert ["X" in run.server for run in runs] == [False, False, False, True, True, True]
    assert [len(run.server["trail"]) for run in runs[:3]] == [2, 3, 4], "the first model and one a round"
    assert all("trail" not in run.server for run in runs[3:]), "what is not needed any more is not kept"
    assert "match_after" in runs[3].record["server"]
    assert "server" not in runs[4].record
    assert all(torch.equal(runs[3].server["X"], run.server["X"]) for run in runs[4:]), "learned once"


def test_the_server_trains_as_torchs_adam_does() -> None:
    """One epoch, one batch: the aggregate is one Adam step of size server_lr from the mean."""
    world = World()
    method = quick("dynafed", L=2, E=1, server_lr=0.01)
    runs = world.runs(method, rounds=3)
    server = runs[2].server
    mean = world.runs(quick("dynafed", L=2, E=1, server_lr=1e-12), rounds=3)[2].w
    g = soft_gradient(world.task, mean, server["X"], server["Y"])
    torch.testing.assert_close(server["x"], mean - 0.01 * g / (g.abs() + 1e-8), rtol=1e-4, atol=1e-6)


def test_learning_makes_the_student_follow_the_trajectory() -> None:
    world = World(dtype=torch.float64)
    method = quick("dynafed", L=4, H=150, R=5, beta=0.3, lr_img=0.1, lr_label=0.1, lr_beta=0.01)
    record = world.runs(method, rounds=5)[4].record["server"]
    assert record["match_steps"] == 150
    assert record["match_after"] < 0.8 * record["match_before"]


def test_a_stretch_ends_in_the_mean_of_what_follows() -> None:
    trail = torch.arange(10.0)[:, None] ** 2
    means = set()
    for seed in range(200):
        start, end = draw_stretch(trail, torch.Generator().manual_seed(seed))
        s = int(start.sqrt())
        following = [(s + k) ** 2 for k in (1, 2, 3)]
        a, b, c = following
        assert 0 <= s <= 6
        assert any(abs(float(end) - m) < 1e-3 for m in ((a + b) / 2, (a + c) / 2, (b + c) / 2, (a + b + c) / 3))
        means.add((s, round(float(end), 3)))
    assert len(means) > 20
