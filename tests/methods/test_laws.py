"""The laws, each tested over every method: adding a method file adds its tests."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from same_bits import equal, same, untimed
from small_world import CLASSES, LOCAL, SHAPE, World, part_for, quick
from torch import nn

from fedptr import atomic_files
from fedptr.core.federation import Rounds, draw_cohort, federate, visit_client
from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import Classification, ExtraLoss
from fedptr.errors import ClientError
from fedptr.methods import all_methods
from fedptr.methods.ptr.trajectory import Trajectory
from fedptr.runs.checkpoint import Store
from fedptr.types import Batch

ALL = list(all_methods())
PARTS = [1.0, 0.5]


def snapshot(tree: object) -> object:
    return copy.deepcopy(tree)


@pytest.mark.parametrize("name", ALL)
def test_purity_no_state_is_changed_after_it_was_handed_out(name: str, world: World) -> None:
    """Law 1. Every state ever yielded is still what it was when the federation is over."""
    runs = world.runs(quick(name), participation=part_for(name, 0.5))
    kept = [(run, snapshot((run.server, dict(run.clients)))) for run in runs]
    for run, was in kept:
        assert equal(was[0], run.server)
        assert equal(was[1], dict(run.clients))


@pytest.mark.parametrize("name", ALL)
def test_purity_data_and_model_are_left_alone(name: str) -> None:
    world = World()
    before = snapshot([(c.x, c.y) for c in world.clients]), snapshot(dict(world.task.model.state_dict()))
    world.runs(quick(name))
    assert all(torch.equal(x, c.x) and torch.equal(y, c.y) for (x, y), c in zip(before[0], world.clients, strict=True))
    assert equal(before[1], dict(world.task.model.state_dict()))


@pytest.mark.parametrize("name", ALL)
def test_keyed_randomness_ignores_global_state(name: str, world: World) -> None:
    """Law 2. Whatever the global generator is at, and whatever is drawn from it meanwhile."""
    method = quick(name, dsa=True) if "dsa" in all_methods()[name].__dataclass_fields__ else quick(name)
    rounds = Rounds(rounds=6, participation=part_for(name, 0.5))
    torch.manual_seed(1)
    first = world.weights(method, participation=rounds.participation)
    torch.manual_seed(2)
    second = []
    for run in federate(method, world.task, world.clients, world.test, rounds, LOCAL):
        second.append(run.w)
        torch.rand(7)
    assert same(first, second)
    assert not same(first, world.weights(method, participation=rounds.participation, seed=1))


@pytest.mark.parametrize("name", ALL)
def test_the_global_generator_is_left_alone(name: str, world: World) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    world.runs(quick(name), rounds=5)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", ALL)
def test_resume_from_a_checkpoint_is_exact(name: str, part: float, world: World, tmp_path) -> None:
    """Law 4 and T15. D̃, β, queues, counters and control variates are all in the checkpoint; randomness is keyed."""
    method = quick(name, dsa=True) if "dsa" in all_methods()[name].__dataclass_fields__ else quick(name)
    part = part_for(name, part)
    whole = world.runs(method, rounds=8, participation=part)
    store = Store(tmp_path)
    for run in whole[:6]:
        store.save(run, {})
    for stop in (5, 6):
        loaded, _ = Store(tmp_path).load(stop)
        rest = world.runs(method, rounds=8, participation=part, start=loaded)
        assert [run.round for run in rest] == list(range(stop + 1, 9))
        assert all(torch.equal(a.w, b.w) for a, b in zip(whole[stop:], rest, strict=True))
        assert equal(dict(whole[-1].clients), dict(rest[-1].clients))
        assert equal(whole[-1].server, rest[-1].server)
        assert untimed(whole[-1].record) == untimed(rest[-1].record)


@pytest.mark.parametrize("name", ALL)
def test_another_engine_comes_to_the_same(name: str, world: World, tmp_path: Path) -> None:
    """Law 3. Messages, states and replies travel as bytes, and clients come in the other order: the same bits."""

    def travelled(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        (tmp_path / "state").write_bytes(atomic_files.pack_tensors(state, {}))
        return atomic_files.read_tensors(tmp_path / "state")[0]

    def elsewhere(method, msg, states, sites, tolerant):
        msg, found = travelled(msg), {}
        for i in reversed(sites):
            state = states.get(i)
            result = visit_client(method, msg, state if state is None else travelled(state), sites[i], i)
            found[i] = result._replace(reply=travelled(result.reply), client=travelled(result.client))
        return found, {}

    rounds = Rounds(rounds=6, participation=part_for(name, 0.5))
    runs = federate(quick(name), world.task, world.clients, world.test, rounds, LOCAL, visits=elsewhere)
    assert same(world.weights(quick(name), participation=rounds.participation), [run.w for run in runs])


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


@pytest.mark.parametrize("name", [name for name in ALL if not issubclass(all_methods()[name], Trajectory)])
def test_effort_is_what_a_visit_computes(name: str, world: World) -> None:
    """What time and memory are estimated from; matching is counted apart."""
    method, task = quick(name), Counted(world.task.model, SHAPE, CLASSES)
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


@pytest.mark.parametrize("how", ["raise", "nan"])
@pytest.mark.parametrize("name", ALL)
def test_a_failure_names_method_round_and_client(name: str, how: str) -> None:
    """Law 5."""
    world = World(Poison(how))
    world.clients[2] = Samples(world.clients[2].x + 100, world.clients[2].y)
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


@pytest.mark.parametrize("name", ALL)
def test_bytes_are_what_the_method_says(name: str, world: World) -> None:
    """The nominal costs of the methods table, once warm-up is over."""
    method = quick(name)
    record = world.runs(method)[-1].record
    model = 4 * len(world.task.init())
    assert record["bytes_down"] == method.cost.down * model * 4
    assert record["bytes_up"] == method.cost.up * model * 4


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


@pytest.mark.parametrize("name", ALL)
def test_batchnorm_statistics_are_averaged_and_counters_are_not(name: str) -> None:
    with pytest.warns(UserWarning, match="BatchNorm"):
        world = World(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, CLASSES)))
    world.clients[1] = Samples(world.clients[1].x[:4], world.clients[1].y[:4])  # BatchNorm cannot train on one sample
    world.clients[2] = Samples(world.clients[2].x[:8], world.clients[2].y[:8])
    world.clients[0] = Samples(world.clients[0].x[:4], world.clients[0].y[:4])
    method = quick(name)
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
