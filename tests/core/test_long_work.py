"""Work that was interrupted goes on where it was kept, ends with the same bits, and is never taken for other work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from small_world import LOCAL, World
from torch import Tensor

from fedptr.core import long_work
from fedptr.core.federation import Rounds, federate, last_run
from fedptr.core.long_work import LongWork, work_through
from fedptr.core.method import Method, Site
from fedptr.core.randomness import Key
from fedptr.core.task import Task
from fedptr.methods.fedavg import FedAvg
from fedptr.types import State

STEPS = 12


class Memory:
    """A workbench that keeps copies, as a disk does."""

    def __init__(self, room: bool = True) -> None:
        self.kept: dict[str, State] = {}
        self.times, self.room = 0, room

    def find(self, name: str, task: Task) -> State | None:
        return self.kept.get(name)

    def keep(self, name: str, task: Task, state: State) -> bool:
        self.times += 1
        if self.room:
            self.kept[name] = {part: value.clone() for part, value in state.items()}
        return self.room


class UnpluggedError(Exception):
    """What a kill is here."""


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is kept after every step, however quick that was."""
    monkeypatch.setattr(long_work, "OFTEN", 0.0)
    monkeypatch.setattr(long_work, "PART", 1e9)


def at(key: Key, bench: Memory | None) -> Site:
    world = World()
    return Site(world.task, LOCAL, key, 3, 4, world.clients[0], bench=bench)


def learn(
    site: Site, optimiser: type[torch.optim.Optimizer], fails_at: int = STEPS, start: float = 0.0, **how: float
) -> tuple[Tensor, list[float], int]:
    """Follows random targets; what it learned, the losses, and how many steps this took."""
    x, generator, taken = torch.full((5,), start), site.key("targets"), 0
    work = LongWork({"x": x}, optimiser([x], lr=0.1, **how), {"targets": generator})

    def step() -> float:
        nonlocal taken
        if taken == fails_at:
            raise UnpluggedError
        taken += 1
        x.grad = x - torch.randn(5, generator=generator)
        work.optimiser.step()
        return float(x.grad.norm())

    work_through(work, step, STEPS, "following", FedAvg(), site, {"start": torch.full((5,), start)})
    return x, work.losses, taken


OPTIMISERS = [(torch.optim.Adam, {}), (torch.optim.SGD, {"momentum": 0.5}), (torch.optim.SGD, {})]


@pytest.mark.parametrize(("optimiser", "how"), OPTIMISERS)
@pytest.mark.parametrize("fails_at", [0, 1, 7])
def test_it_ends_with_the_same_bits_and_repeats_nothing(optimiser, how, fails_at: int) -> None:
    key, bench = Key(0).at("round", 3, "client", 2), Memory()
    x, losses, _ = learn(at(key, None), optimiser, **how)
    with pytest.raises(UnpluggedError):
        learn(at(key, bench), optimiser, fails_at, **how)
    again, others, taken = learn(at(key, bench), optimiser, **how)
    assert torch.equal(x, again)
    assert losses == others
    assert len(losses) == STEPS
    assert taken == STEPS - fails_at
    assert learn(at(key, bench), optimiser, 0, **how)[2] == 0, "what is finished is not done again"


def test_other_work_begins_at_the_start() -> None:
    key, bench = Key(0).at("round", 3, "client", 2), Memory()
    with pytest.raises(UnpluggedError):
        learn(at(key, bench), torch.optim.Adam, 7)
    for other in (Key(1).at("round", 3, "client", 2), Key(0).at("round", 4, "client", 2), Key(0).at("round", 3)):
        assert learn(at(other, bench), torch.optim.Adam)[2] == STEPS
    assert learn(at(key, bench), torch.optim.Adam, start=1.0)[2] == STEPS, "from elsewhere"
    site, x, method = at(key, bench), {"x": torch.ones(3)}, FedAvg()
    name = long_work.name_work("words", 5, method, site, x)
    others = [
        ("other", 5, method, site, x),
        ("words", 6, method, site, x),
        ("words", 5, FedAvg(weighting="uniform"), site, x),
        ("words", 5, method, replace(site, round=4), x),
        ("words", 5, method, site, {"y": torch.ones(3)}),
        ("words", 5, method, site, {"x": torch.ones(3, dtype=torch.float64)}),
        ("words", 5, method, site, {"x": torch.ones(3, 1)}),
    ]
    assert name == long_work.name_work("words", 5, FedAvg(), at(key, None), {"x": torch.ones(3)})
    assert len({name, *(long_work.name_work(*other) for other in others)}) == 1 + len(others)


def test_what_was_kept_of_other_tensors_is_not_taken_over() -> None:
    work = LongWork({"x": torch.zeros(3)}, None, {"g": torch.Generator()})
    for wrong in ({"x": torch.ones(4)}, {"x": torch.ones(3, dtype=torch.float64)}, {"y": torch.ones(3)}):
        assert not work.unpack(LongWork(wrong, None, {"g": torch.Generator()}, [1.0], 1).pack())
    assert not work.unpack(LongWork({"x": torch.ones(3)}).pack())
    assert torch.equal(work.learned["x"], torch.zeros(3))
    assert work.done == 0
    assert work.unpack(LongWork({"x": torch.ones(3)}, None, {"g": torch.Generator()}, [1.0], 1).pack())
    assert work.done == 1


def test_a_last_step_stays_the_last() -> None:
    bench, key, calls = Memory(), Key(0).at("round", 1), []

    def run() -> list[float]:
        x = torch.zeros(1)
        work = LongWork({"x": x})

        def step() -> float | None:
            calls.append(1)
            x.add_(1)
            return float(x) if x < 4 else None

        work_through(work, step, STEPS, "counting", FedAvg(), at(key, bench), {})
        return work.losses

    assert run() == run() == [1.0, 2.0, 3.0]
    assert len(calls) == 4


def test_without_room_it_goes_on_and_asks_no_more() -> None:
    key, bench = Key(0).at("round", 3), Memory(room=False)
    assert torch.equal(learn(at(key, bench), torch.optim.Adam)[0], learn(at(key, None), torch.optim.Adam)[0])
    assert bench.times == 1


def test_short_work_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_work, "OFTEN", 1e9)
    monkeypatch.setattr(long_work, "WORTH", 1e9)
    bench = Memory()
    learn(at(Key(0), bench), torch.optim.Adam)
    assert not bench.times


@dataclass(frozen=True)
class Followers(FedAvg):
    """Clients work long before they train."""

    name: ClassVar[str] = "followers"
    fails: ClassVar[int] = 10**9
    taken: ClassVar[list[str]] = []

    def prepare(self, msg: State, client: State, site: Site) -> tuple[State, State]:
        x, generator = msg["x"].clone(), site.key("targets")
        work = LongWork({"x": x}, torch.optim.Adam([x], lr=0.1), {"targets": generator})

        def step() -> float:
            if len(self.taken) == self.fails:
                raise KeyboardInterrupt
            self.taken.append(str(site.key.path))
            x.grad = x - torch.randn(len(x), generator=generator)
            work.optimiser.step()
            return float(x.grad.norm())

        work_through(work, step, STEPS, "following", self, site, {"x": msg["x"]})
        return {**msg, "x": x}, client


def test_clients_of_a_round_repeat_only_what_they_had_not_done() -> None:
    world, bench, method = World(), Memory(), Followers()

    def train(bench: Memory | None) -> Tensor:
        Followers.taken.clear()
        rounds = Rounds(rounds=2)
        return last_run(federate(method, world.task, world.clients, rounds=rounds, local=LOCAL, bench=bench)).w

    whole = train(None)
    Followers.fails = 2 * STEPS + 5  # in the third client
    with pytest.raises(KeyboardInterrupt):
        train(bench)
    Followers.fails = 10**9
    assert torch.equal(train(bench), whole)
    assert len(Followers.taken) == (2 * 4 - 2) * STEPS - 5


def test_a_method_is_named_by_its_settings() -> None:
    """The name of work rests on this."""
    assert issubclass(Followers, Method)
    assert repr(Followers()) != repr(Followers(weighting="uniform"))
