"""Clients at the same time, in threads: nothing comes out that one after another would not give."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedptr.compute import clients_at_once, memory_estimate
from fedptr.compute.blocks import BlockedTask
from fedptr.compute.clients_at_once import choose_clients_at_once
from fedptr.compute.side_by_side import Cohort, SideBySide, open_visits
from fedptr.core.federation import Rounds, Run, federate, last_run
from fedptr.core.local_training import Local
from fedptr.core.method import Method, Site
from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import Classification, ModelTask
from fedptr.core.visit import VisitCohort, visit_in_process
from fedptr.errors import ClientError, UserError
from fedptr.methods import find_method
from fedptr.methods.fedavg import FedAvg
from fedptr.models.networks import ConvNet
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.plan import Plan, check_plan
from fedptr.types import Batch, State

SHAPE, CLASSES, SIZES = (1, 8, 8), 4, (7, 30, 12, 18, 9)
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "scaffold": {},
    "fedsam": {},
    "moon": {},
    "mimelite": {},
    "ditto": {},
    "fedptr": {"H": 2, "R": 3, "ipc": 1, "m": 1},
    "fedptr-s": {"H": 2, "R": 3, "ipc": 1, "m": 1},
}


def small_task(local: str = "") -> BlockedTask:
    """In blocks of four images, on two threads."""
    torch.manual_seed(0)
    return BlockedTask(ConvNet(SHAPE, CLASSES, width=8, depth=2), SHAPE, CLASSES, block=4, threads=2, local=local)


def plain_task(*layers: nn.Module) -> Classification:
    torch.manual_seed(0)
    return Classification(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), *layers, nn.Linear(8, CLASSES)), SHAPE, CLASSES)


def clients() -> list[Samples]:
    g = torch.Generator().manual_seed(1)
    return [Samples(torch.randn(n, *SHAPE, generator=g), torch.randint(CLASSES, (n,), generator=g)) for n in SIZES]


def run(method: Method, task: ModelTask, visits: VisitCohort = visit_in_process, **more: Any) -> Run:
    rounds = Rounds(rounds=3, participation=1.0 if method.everyone else 0.8, **more)
    data = clients()
    return last_run(federate(method, task, data, data[0], rounds, Local(batch=6), visits=visits, client_tests=data))


@pytest.fixture
def three() -> Iterator[SideBySide]:
    with open_visits(3) as visits:
        assert isinstance(visits, SideBySide)
        yield visits


def is_same(a: Run, b: Run) -> bool:
    """The same bits of the models, of all that clients keep, and of the record but for the seconds."""
    states = [(a.server, b.server), *((a.clients[i], b.clients[i]) for i in range(len(SIZES)) if i in a.clients)]
    without = [
        str({**r.record, "seconds": 0, "clients": [dict(c, seconds_matching=0) for c in r.record["clients"]]})
        for r in (a, b)
    ]
    same = all(s.keys() == t.keys() and all(torch.equal(s[name], t[name]) for name in s) for s, t in states)
    return same and list(a.clients) == list(b.clients) and without[0] == without[1]


@pytest.mark.parametrize("name", METHODS)
def test_no_bit_changes(name: str, three: SideBySide) -> None:
    method = find_method(name)(**METHODS[name])
    assert is_same(run(method, small_task()), run(method, small_task(), three))
    assert not three.alone


def test_parts_that_clients_keep(three: SideBySide) -> None:
    task = small_task(local="*bias")
    assert is_same(run(FedAvg(), small_task(local="*bias")), run(FedAvg(), task, three))
    assert task.company.clients == task.joint.company.clients == 1


def test_running_statistics(three: SideBySide) -> None:
    with pytest.warns(UserWarning, match="BatchNorm"):
        one, side = (plain_task(nn.BatchNorm1d(8)) for _ in range(2))
    ends = []
    for task, visits in ((one, visit_in_process), (side, three)):
        data = clients()
        rounds = Rounds(rounds=3)
        ends.append(last_run(federate(FedAvg(), task, data, data[0], rounds, Local(batch=10), visits=visits)))
    assert is_same(*ends)
    assert not three.alone


def test_dropout_has_a_seed_for_every_client(three: SideBySide, capsys: pytest.CaptureFixture[str]) -> None:
    """Which threads cannot give it, so clients go one after another from then on."""
    assert is_same(run(FedAvg(), plain_task(nn.Dropout())), run(FedAvg(), plain_task(nn.Dropout()), three))
    assert three.alone
    assert capsys.readouterr().err.count("one after another") == 1


@dataclass(frozen=True)
class Seeded(FedAvg):
    """Draws where its own seed was set, and leaves the generator as it was."""

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        with site.key.fixed("noise"):
            return {"w": w + torch.randn(len(w))}, client


def test_a_method_that_seeds_the_global_generator(three: SideBySide) -> None:
    assert is_same(run(Seeded(), small_task()), run(Seeded(), small_task(), three))
    assert three.alone


class Failing(FedAvg):
    """Two clients fail, known by their sizes; in threads the first in order waits until the later one has."""

    error: ClassVar[type[Exception]] = RuntimeError
    later_failed = threading.Event()

    def prepare(self, msg: State, client: State, site: Site) -> tuple[State, State]:
        if site.size == SIZES[3]:
            self.later_failed.set()
            raise self.error("the later one")
        if site.size == SIZES[1]:
            assert threading.current_thread() is threading.main_thread() or self.later_failed.wait(60)
            raise self.error("the first")
        return msg, client


class Misused(Failing):
    error = UserError


@pytest.mark.parametrize(("method", "error"), [(Failing(), ClientError), (Misused(), UserError)])
def test_the_first_failure_in_client_order_stops_the_run(method: Failing, error: type, three: SideBySide) -> None:
    with pytest.raises(error, match="the first") as found:
        last_run(federate(method, small_task(), clients(), rounds=Rounds(rounds=1), visits=three))
    if error is ClientError:
        assert "round 1, client 1" in str(found.value)


def test_failures_can_be_dropped(three: SideBySide) -> None:
    ends = [run(Failing(), small_task(), visits, on_failure="drop") for visits in (visit_in_process, three)]
    assert is_same(*ends)
    with pytest.raises(UserError, match="the first"):  # a wrong setting is not a client's failure
        run(Misused(), small_task(), three, on_failure="drop")


class Endless(FedAvg):
    """The largest client does not end by itself; when it has begun, another does something."""

    began, ended, asked = threading.Event(), threading.Event(), threading.Event()

    def prepare(self, msg: State, client: State, site: Site) -> tuple[State, State]:
        if site.size < max(SIZES):
            assert self.began.wait(60)
            self.do()
            return msg, client
        self.began.set()
        try:
            for _ in range(10**6):
                site.task.grad(msg["x"], Batch(*site.samples.take(torch.arange(2))))
        finally:
            self.ended.set()
        raise AssertionError("nobody stopped it")

    def do(self) -> None:
        """As a second Ctrl-C does."""
        if not self.asked.is_set():
            self.asked.set()
            _thread.interrupt_main()


class EndlessAndFailing(Endless):
    def do(self) -> None:
        raise RuntimeError("an earlier client")


@pytest.mark.parametrize(
    ("method", "error", "words"),
    [(Endless(), KeyboardInterrupt, None), (EndlessAndFailing(), ClientError, "client 0: RuntimeError: an earlier")],
)
def test_running_visits_end_when_nobody_waits_for_them(
    method: Endless, error: Any, words: str | None, request: pytest.FixtureRequest
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what starts in the background ignores it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    task = small_task()
    for event in (method.began, method.ended, method.asked):
        event.clear()
    with open_visits(2) as visits:
        with pytest.raises(error, match=words):
            last_run(federate(method, task, clients(), rounds=Rounds(rounds=1), visits=visits))
        assert method.ended.is_set()
        assert task.company.clients == 1
        assert is_same(run(FedAvg(), small_task()), run(FedAvg(), task, visits)), "both can be used again"


def test_those_that_are_left_share_all_cores() -> None:
    """Five clients, two at once: the largest are first, and the last is alone."""
    site, failed = Site(small_task(), Local(), Key(0), 0, 5), ClientError("")
    cohort = Cohort({i: replace(site, size=n) for i, n in enumerate(SIZES)}, True, 2)
    assert (cohort.begin(), cohort.begin()) == (1, 3)
    seen = []
    for done, following in ((1, 2), (3, 4), (2, 0), (0, None)):
        cohort.end(done, failed)
        seen.append(cohort.clients)
        assert cohort.begin() == following
    assert seen == [2, 2, 2, 1]


def plan(at_once: int | str = "auto", method: dict[str, Any] | None = None, width: int = 32, **more: Any) -> Plan:
    machine = {"threads": 2, "clients_at_once": at_once, "compile": "off", **more}
    tables = {
        "run": {"rounds": 2}, "data": {"subset": 200, "subset_test": 50}, "model": {"width": width, "depth": 2},
        "split": {"kind": "iid", "clients": 4}, "local": {"batch": 50}, "machine": machine,
        "method": method or {"name": "fedavg"},
    }  # fmt: skip
    return check_plan(tables)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (plan(), 2),
        (plan(threads=3), 3),
        (plan(threads=9), 4),  # no more than there are clients
        (plan(threads=1), 1),
        (plan(width=2), 1),  # too little work for a thread
        (plan(1), 1),
        (plan(3, width=2), 3),
        (plan(9), 4),
        (plan(2, engine="ray"), 1),
    ],
)
def test_the_plan_says_how_many(asked: Plan, expected: int) -> None:
    assert prepare_experiment(asked).at_once == expected


def test_models_in_whole_batches_only_where_they_are_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(clients_at_once, "WORTH", 0)
    threads = torch.get_num_threads()
    try:
        for make, asked, expected in ((nn.GroupNorm, "auto", 1), (nn.GroupNorm, 2, 2), (nn.Dropout, 2, 1)):
            layer = nn.GroupNorm(2, 8) if make is nn.GroupNorm else nn.Dropout()
            assert choose_clients_at_once(plan(asked), plain_task(layer), [50] * 4, 50) == expected
    finally:
        torch.set_num_threads(threads)
    assert capsys.readouterr().err.count("dropout") == 1


def test_memory_is_counted_for_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    paper = plan(method={"name": "fedptr", "H": 1, "R": 4, "ipc": 2})
    foot = memory_estimate.measure_footprint(prepare_experiment(paper).task)
    one, two = (memory_estimate.estimate_memory(paper, foot, 10, [50] * 4, 50, 0, n) for n in (1, 2))
    for phase in ("training", "projection", "matching"):
        assert one.phases[phase] < two.phases[phase] <= 2 * one.phases[phase]
    assert two.states == one.states
    server = replace(paper, method=find_method("fedptr-s")(H=1, R=4, ipc=2))
    one, two = (memory_estimate.estimate_memory(server, foot, 10, [50] * 4, 50, 0, n) for n in (1, 2))
    assert one.phases["matching"] == two.phases["matching"], "the server matches, and it is alone"


def test_what_does_not_fit_trains_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    e, sizes = prepare_experiment(plan()), [50] * 4
    foot = memory_estimate.measure_footprint(e.task)
    needed = [memory_estimate.estimate_memory(plan(), foot, 10, sizes, 50, 0, n).total for n in (1, 2)]
    free = sum(needed) / 2
    monkeypatch.setattr(memory_estimate, "available_bytes", lambda device: free)
    monkeypatch.setattr(memory_estimate, "client_state_budget", lambda machine, there: 0)
    assert choose_clients_at_once(plan(), e.task, sizes, 50) == 1
    with pytest.raises(UserError, match=r"lower machine\.clients_at_once or "):
        memory_estimate.check_memory(plan(2), e.task, sizes, 50, choose_clients_at_once(plan(2), e.task, sizes, 50))


def test_from_the_command_line(tmp_path: Path) -> None:
    from fedptr.cli.main import main

    for n in (1, 2):
        argv = "run --dataset digits --subset 200 --partition iid --clients 4 --width 8 --rounds 2 --method scaffold"
        more = ["--set", f"machine.clients_at_once={n}", "--out", str(tmp_path / str(n)), "--force"]
        assert main([*argv.split(), *more]) == 0
    one, two = ((tmp_path / str(n) / "weights.safetensors").read_bytes() for n in (1, 2))
    assert one == two


def test_gradients_with_batches(three: SideBySide) -> None:
    """The loss itself, which a method may differentiate, is computed with the thread's own module."""

    @dataclass(frozen=True)
    class Direct(FedAvg):
        def gradient(self, w: Tensor, batch: Batch, msg: State, client: State, site: Site) -> tuple[Tensor, Tensor]:
            v = w.detach().requires_grad_()
            loss = site.task.loss(v, batch)
            return torch.autograd.grad(loss, v)[0], loss.detach()

    assert is_same(run(Direct(), small_task()), run(Direct(), small_task(), three))
