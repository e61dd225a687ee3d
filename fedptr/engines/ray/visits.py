"""Ray: the clients of a round train in worker processes, on this machine or on a cluster.

Each worker builds the plan's experiment itself, so data is never sent. The server's message is put into Ray's
object store once a round; a client's state goes with its visit and comes back with the reply, so checkpoints are the
same as in-process. Quick clients are sent in groups, because a call to Ray would take longer than their training. A
visit is pure: when a worker dies, another repeats its visits with the same result.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fedptr.core.method import Method, Site
from fedptr.core.visit import Request, Visit, VisitResults, check_reply, name_failures
from fedptr.engines.ray.pool import Pool, last_line_of_error
from fedptr.engines.ray.worker import Failed, Order, Trained, describe_experiment, describe_site
from fedptr.errors import ClientError, UserError
from fedptr.messages import print_notice
from fedptr.runs.experiment import Experiment
from fedptr.runs.plan import Plan
from fedptr.tensor_bytes import pack_state, unpack_state
from fedptr.types import State

DEATHS = 3  # workers that may die with one client, or in a row while they start
PATIENCE = 60  # seconds without any worker before a notice
GROUP = 0.1  # seconds of training that are worth a call


class Lost(NamedTuple):
    """A worker died, or its answer did."""

    reason: str


@dataclass
class Round:
    """The state of a round: who waits, who trains, what came back."""

    method: Method
    request: Request
    sent: Any  # the message to every client, in the object store
    states: Mapping[int, State]
    sites: Mapping[int, Site]
    waiting: collections.deque[int]
    visiting: dict[Any, tuple[Any, list[int]]] = field(default_factory=dict)  # -> the worker and its clients
    visits: dict[int, Visit] = field(default_factory=dict)
    failures: dict[int, Failed] = field(default_factory=dict)
    deaths: collections.Counter[int] = field(default_factory=collections.Counter)
    suspects: set[int] = field(default_factory=set)

    def make_order(self, i: int) -> Order:
        state, own = self.states.get(i), self.request.own.get(i, {})
        return Order(pack_state(own), None if state is None else pack_state(state), describe_site(self.sites[i]), i)

    def take_result(self, i: int, result: Trained | Failed) -> None:
        if isinstance(result, Trained):
            try:
                with name_failures(self.method, self.sites[i].round, f"client {i}"):
                    reply, client, log = (unpack_state(part) for part in result[:3])
                    check_reply(reply, self.request.expected)
                    self.visits[i] = Visit(reply, client, log, result.seconds)
                    return
            except ClientError as error:
                result = Failed(str(error), False, "")
        self.failures[i] = result

    def next_group(self, size: int) -> list[int]:
        """The next clients for one worker. Clients whose worker died go alone, to find the one that caused it."""
        taken = [self.waiting.popleft()]
        while len(taken) < size and self.waiting and not {taken[0], self.waiting[0]} & self.suspects:
            taken.append(self.waiting.popleft())
        return taken

    def return_clients(self, clients: list[int], reason: str) -> None:
        """Their worker died. Another takes over, unless a single client has killed `DEATHS` workers."""
        self.suspects |= set(clients)
        if len(clients) > 1:
            self.waiting.extendleft(reversed(clients))
            return
        (i,) = clients
        self.deaths[i] += 1
        if self.deaths[i] < DEATHS:
            self.waiting.appendleft(i)
            return
        words = f"{self.method.name}, round {self.sites[i].round + 1}, client {i}: {DEATHS} workers died ({reason})"
        self.failures[i] = Failed(words, False, "")

    def fatal_failures(self, tolerant: bool) -> list[int]:
        """The clients whose failure ends the run."""
        return [i for i, failure in self.failures.items() if failure.user or not tolerant]


class Workers:
    """The worker processes of one run; called like `visit_in_process`.

    They come from a pool that other runs use too, or from a pool of their own.
    """

    def __init__(self, plan: Plan, experiment: Experiment, pool: Pool | None = None) -> None:
        if experiment.task.device != "cpu":
            raise UserError("machine.engine = ray computes on CPUs only; add --device cpu")
        self.plan, self.experiment = plan, experiment
        self.pool, self.own = pool or Pool(plan.machine), pool is None
        self.idle: collections.deque[Any] = collections.deque()
        self.starting: dict[Any, Any] = {}  # -> worker
        self.count = self.stillborn = 0
        self.seconds = GROUP  # of a visit, the average of the last round

    def __enter__(self) -> Workers:
        """Returns when the first worker is ready; raises before any round if workers cannot start."""
        self.ray = self.pool.ray
        machine = replace(self.plan.machine, threads=self.pool.threads, device="cpu")
        self.order = replace(self.plan, machine=machine).toml(), self.ray.put(self.experiment.split)
        clients = sum(size > 0 for size in self.experiment.split.sizes)
        try:
            while not self.idle:
                self.start_workers(max(1, round(self.plan.run.participation * clients)))
                for ref, result in self.finished_calls([*self.starting]):
                    self.accept_worker(ref, result)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.workers += [*self.idle, *self.starting.values()]
        if self.own:
            self.pool.__exit__()

    def __call__(
        self,
        method: Method,
        request: Request,
        states: Mapping[int, State],
        sites: Mapping[int, Site],
        tolerant: bool,
    ) -> VisitResults:
        """The same visits as in-process, in any order; the run fails at the same client."""
        if method != self.plan.method:
            raise UserError(f"the workers were made for {self.plan.method}, not for {method}; make new ones")
        sent = self.ray.put(pack_state(request.msg))
        now = Round(method, request, sent, states, sites, collections.deque(sites))
        try:
            while now.waiting or now.visiting:
                self.assign_clients(now)
                self.wait_for_results(now)
                if fatal := now.fatal_failures(
                    tolerant
                ):  # clients after it need not be asked; one before it may fail yet
                    now.waiting = collections.deque(i for i in now.waiting if i < min(fatal))
        finally:
            self.idle += [worker for worker, _ in now.visiting.values()]  # after an interruption
        if fatal := now.fatal_failures(tolerant):
            raise now.failures[min(fatal)].error
        if now.visits:
            self.seconds = sum(visit.seconds for visit in now.visits.values()) / len(now.visits)
        dropped = {i: failure.words for i, failure in now.failures.items()}
        return dict(sorted(now.visits.items())), dict(sorted(dropped.items()))

    def start_workers(self, wanted: int) -> None:
        """Starts workers until `wanted` are on their way, as far as the cluster has room."""
        while self.count < self.pool.limit and len(self.starting) < wanted:
            worker = self.pool.take_worker()
            self.starting[worker.prepare.remote(*self.order)] = worker
            self.count += 1

    def assign_clients(self, now: Round) -> None:
        """Gives every idle worker clients, in client order, and starts workers while there are clients for them."""
        while now.waiting and self.idle:
            fair = math.ceil(len(now.waiting) / (2 * self.count))  # small last groups, so workers end together
            worker, clients = self.idle.popleft(), now.next_group(min(fair, int(GROUP / max(self.seconds, 1e-4))))
            call = worker.visit_clients.remote(now.request.purpose, now.sent, [now.make_order(i) for i in clients])
            now.visiting[call] = worker, clients
        self.start_workers(len(now.waiting))

    def wait_for_results(self, now: Round) -> None:
        """Waits until something finishes, and takes the result."""
        for ref, result in self.finished_calls([*now.visiting, *self.starting]):
            if ref in self.starting:
                self.accept_worker(ref, result)
                continue
            worker, clients = now.visiting.pop(ref)
            if isinstance(result, Lost):
                self.discard_worker(worker)
                now.return_clients(clients, result.reason)
                continue
            self.idle.append(worker)
            for i, outcome in zip(clients, result, strict=True):
                now.take_result(i, outcome)

    def finished_calls(self, refs: list[Any]) -> Iterator[tuple[Any, Any]]:
        """The calls that have finished, with their results."""
        done, _ = self.ray.wait(refs, num_returns=1, timeout=PATIENCE)
        if not done and len(self.starting) == len(refs):
            free = self.ray.available_resources().get("CPU", 0)
            print_notice(f"still waiting for Ray to start a worker; its cluster has {free:g} CPUs free")
        for ref in done:
            try:
                yield ref, self.ray.get(ref)
            except self.ray.exceptions.RayTaskError:
                raise  # no lost worker but a bug in this package
            except self.ray.exceptions.RayError as error:
                yield ref, Lost(last_line_of_error(error))

    def accept_worker(self, ref: Any, told: dict[str, str] | Failed | Lost) -> None:
        """Takes a worker that is ready, if it would compute the same as this process."""
        worker = self.starting.pop(ref)
        if isinstance(told, Lost):
            self.discard_worker(worker)
            self.stillborn += 1
            if self.stillborn >= DEATHS:
                raise UserError(f"Ray cannot start workers: {told.reason}")
            return
        self.idle.append(worker)
        if isinstance(told, Failed):
            raise told.error
        for what, ours in describe_experiment(self.experiment).items():
            if told[what] != ours:
                raise UserError(f"a Ray worker has another {what} than this process: {told[what]}, not {ours}")
        self.stillborn = 0

    def discard_worker(self, worker: Any) -> None:
        """Makes room for another worker; one that was only out of reach must not come back."""
        self.ray.kill(worker)
        self.count -= 1
