"""The laws, each tested over every method: adding a method file adds its tests."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from same_bits import equal, untimed
from small_plans import TABLES
from small_world import CLASSES, LOCAL, SHAPE, World, part_for, quick
from torch import nn

from fedptr.core.federation import Rounds, draw_cohort, federate
from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import Adjoint, Classification, ExtraLoss
from fedptr.errors import ClientError, UserError
from fedptr.methods import all_methods
from fedptr.methods.ptr.trajectory import Trajectory
from fedptr.runs.checkpoint import CheckpointStore
from fedptr.runs.plan import check_plan
from fedptr.testing import check_method
from fedptr.types import Batch

ALL = list(all_methods())
PARTS = [1.0, 0.5]


@pytest.mark.parametrize("name", ALL)
def test_the_public_laws(name: str) -> None:
    """Purity, keyed randomness, exact resume, engines that agree, declared sizes; with augmentation, which draws."""
    check_method(quick(name, dsa=True) if "dsa" in all_methods()[name].__dataclass_fields__ else quick(name))


@pytest.mark.parametrize("name", ALL)
def test_another_seed_gives_another_run(name: str, world: World) -> None:
    """In what the server or, where nothing is sent, the clients have."""
    first, second = (world.runs(quick(name), rounds=2, seed=seed)[-1] for seed in (0, 1))
    assert not (equal(first.server, second.server) and equal(dict(first.clients), dict(second.clients)))


@pytest.mark.parametrize("name", ALL)
def test_augmentation_changes_the_run_or_is_refused(name: str, world: World) -> None:
    """In a plan and in the library; no method ignores it."""
    method, local = quick(name), replace(LOCAL, augment="flip-crop")
    if not method.no_augment:
        plain, augmented = (world.runs(method, rounds=2, local=how)[-1] for how in (LOCAL, local))
        assert not (equal(plain.server, augmented.server) and equal(dict(plain.clients), dict(augmented.clients)))
        return
    words = f"{name} {method.no_augment}; set local.augment = none, or choose another method"
    with pytest.raises(UserError) as in_plan:
        check_plan({**TABLES, "local": {"augment": "flip-crop"}, "method": {"name": name}})
    with pytest.raises(UserError) as in_library:
        world.runs(method, rounds=1, local=local)
    assert str(in_plan.value) == str(in_library.value) == words


@pytest.mark.parametrize("name", ALL)
def test_the_model_is_left_alone(name: str) -> None:
    world = World()
    model = world.task_for(quick(name)).model
    before = copy.deepcopy(dict(model.state_dict()))
    world.runs(quick(name))
    assert equal(before, dict(model.state_dict()))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", ALL)
def test_resume_from_a_checkpoint_is_exact(name: str, part: float, world: World, tmp_path) -> None:
    """Law 4 and T15. D̃, β, queues, counters and control variates are all in the checkpoint; randomness is keyed."""
    method = quick(name, dsa=True) if "dsa" in all_methods()[name].__dataclass_fields__ else quick(name)
    part = part_for(name, part)
    whole = world.runs(method, rounds=8, participation=part)
    store = CheckpointStore(tmp_path)
    for run in whole[:6]:
        store.save(run, {})
    for stop in (5, 6):
        loaded, _ = CheckpointStore(tmp_path).load(stop)
        rest = world.runs(method, rounds=8, participation=part, start=loaded)
        assert [run.round for run in rest] == list(range(stop + 1, 9))
        assert all(torch.equal(a.w, b.w) for a, b in zip(whole[stop:], rest, strict=True))
        assert equal(dict(whole[-1].clients), dict(rest[-1].clients))
        assert equal(whole[-1].server, rest[-1].server)
        assert untimed(whole[-1].record) == untimed(rest[-1].record)


class Counted(Classification):
    """Counts the images of all gradients, and a third for a forward pass."""

    images = 0.0

    def grad(self, w: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        self.images += len(batch.y)
        return super().grad(w, batch)

    def grad_with_extra(self, w: torch.Tensor, batch: Batch, extra: ExtraLoss) -> tuple[torch.Tensor, torch.Tensor]:
        self.images += len(batch.y)
        return super().grad_with_extra(w, batch, extra)

    def features(self, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        self.images += len(x) / 3
        return super().features(w, x)

    def adjoint(self, w: torch.Tensor, batch: Batch, a: torch.Tensor, by_w: bool = True) -> Adjoint:
        self.images += 2 * len(batch.y)  # a second-order product costs about two gradients
        return super().adjoint(w, batch, a, by_w)


LOCALLY = [name for name in ALL if not all_methods()[name].sends_sets]  # whose clients train models


@pytest.mark.parametrize("name", [name for name in LOCALLY if not issubclass(all_methods()[name], Trajectory)])
def test_effort_is_what_a_visit_computes(name: str, world: World) -> None:
    """What time and memory are estimated from; matching is counted apart."""
    method = quick(name)
    task = Counted(world.task_for(method).model, SHAPE, CLASSES)
    before = 0.0
    for run in federate(method, task, world.clients, None, Rounds(rounds=2), replace(LOCAL, epochs=3)):
        worked, before = task.images - before, task.images
        if run.round == 2:  # on a first visit there may be less to do
            each = 3 * method.effort.step + method.effort.full
            assert worked == pytest.approx(each * sum(map(len, world.clients)))


class Poison(nn.Module):
    """A model that breaks for one client, whose images are marked."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner, self.how = nn.Sequential(nn.Flatten(), nn.Linear(16, CLASSES)), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.inner(x)
        if self.training and bool((x > 90).any()):
            if self.how == "raise":
                raise ValueError("sensor unplugged")
            return out * float("nan")
        return out


class Unplugged(Samples):
    """Samples that cannot be read."""

    def take(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise ValueError("sensor unplugged")


@pytest.mark.parametrize("how", ["raise", "nan"])
@pytest.mark.parametrize("name", ALL)
def test_a_failure_names_method_round_and_client(name: str, how: str) -> None:
    """Law 5."""
    world = World(Poison(how))
    world.clients[2] = Samples(world.clients[2].x + 100, world.clients[2].y)
    if name not in LOCALLY or all_methods()[name].needs_linear:  # images alone matter, with another model or none
        broken = world.clients[2]
        world.clients[2] = Unplugged(broken.x, broken.y) if how == "raise" else Samples(broken.x * math.nan, broken.y)
    with pytest.raises(ClientError) as caught:
        world.runs(quick(name))
    words = str(caught.value)
    assert name in words
    assert "round 1" in words
    assert "client 2" in words
    assert ("sensor unplugged" in words) == (how == "raise")


def test_a_failure_on_the_server_says_so(world: World) -> None:
    class Broken(all_methods()["fedptr-s"]):
        def broadcast(self, server, site):
            raise ValueError("out of matches")

    with pytest.raises(ClientError, match=r"fedptr-s, round 1, server: ValueError: out of matches"):
        world.runs(Broken())


@pytest.mark.parametrize("name", ALL)
def test_clients_without_data_are_never_drawn(name: str) -> None:
    world = World(sizes=(7, 0, 9, 0))
    full, partial = (world.runs(quick(name), participation=part_for(name, part)) for part in (1.0, 0.5))
    assert all(run.record["cohort"] == [0, 2] for run in full)
    assert {i for run in partial for i in run.record["cohort"]} == {0, 2}
    assert all(len(run.record["cohort"]) == max(1, round(2 * part_for(name, 0.5))) for run in partial)


def test_every_method_sees_the_same_cohorts_and_batches(world: World) -> None:
    some = [name for name in ALL if not all_methods()[name].everyone]
    cohorts = {name: [run.record["cohort"] for run in world.runs(quick(name), participation=0.5)] for name in some}
    assert all(c == cohorts["fedavg"] for c in cohorts.values())
    assert len({tuple(c) for c in cohorts["fedavg"]}) > 1


@pytest.mark.parametrize(
    ("part", "n", "size"), [(0.5, 10, 5), (0.3, 10, 3), (0.25, 40, 10), (0.29, 100, 29), (0.01, 10, 1)]
)
def test_cohort_size(part: float, n: int, size: int) -> None:
    cohort = draw_cohort(range(n), Rounds(participation=part), Key(0).at("round", 3))
    assert len(set(cohort)) == size
    assert cohort == sorted(cohort)


def test_bernoulli_cohorts_vary_in_size_and_are_never_empty() -> None:
    rounds = Rounds(participation=0.1, sampling="bernoulli")
    sizes = [len(draw_cohort(range(10), rounds, Key(0).at("round", t))) for t in range(400)]
    assert min(sizes) == 1
    assert 1.1 < sum(sizes) / len(sizes) < 1.7  # mean of max(1, Binomial(10, 0.1)) is 1.35


@pytest.mark.parametrize("name", sorted(set(ALL) - set(LOCALLY)))
def test_a_method_that_sends_sets_refuses_running_statistics(name: str) -> None:
    with pytest.warns(UserWarning, match="BatchNorm"):
        world = World(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, CLASSES)))
    with pytest.raises(UserError, match=rf"{name} sends sets of samples.*does not work with running statistics"):
        world.runs(quick(name), rounds=1)


@pytest.mark.parametrize("name", [name for name in LOCALLY if not all_methods()[name].personalised])
def test_batchnorm_statistics_are_averaged_and_counters_are_not(name: str) -> None:
    with pytest.warns(UserWarning, match="BatchNorm"):
        world = World(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, CLASSES)))
    world.clients[1] = Samples(world.clients[1].x[:4], world.clients[1].y[:4])  # BatchNorm cannot train on one sample
    world.clients[2] = Samples(world.clients[2].x[:8], world.clients[2].y[:8])
    world.clients[0] = Samples(world.clients[0].x[:4], world.clients[0].y[:4])
    method = quick(name)
    if method.personalised:  # a client's own model would need statistics of its own
        with pytest.raises(UserError, match=rf"{name} keeps a model for every client, but not its running statistics"):
            world.runs(method, rounds=1)
        return
    (run,) = world.runs(method, rounds=1)
    sizes = [len(c) for c in world.clients] if method.weighting == "samples" else [1] * 4
    expected = torch.zeros(16)
    for i, (data, m) in enumerate(zip(world.clients, sizes, strict=True)):
        running = torch.zeros(16)
        order = Key(0).at("round", 0, "client", i)("batch-order")
        for index in torch.randperm(len(data), generator=order).split(4):
            running = 0.9 * running + 0.1 * data.x[index].flatten(1).mean(0)
        expected += running * (m / sum(sizes))
    torch.testing.assert_close(run.server["buffers"][:16], expected)
    assert run.server["buffers"].shape == (32,)  # mean and variance; num_batches_tracked is not among them
