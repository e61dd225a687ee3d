"""What a round takes on this machine, from a rehearsal: real rounds of `federate`, with few clients and few samples.

    k   clients of a rehearsal          n   samples of each          h   outer steps in which a set is learned

A rehearsal goes up to the first round that computes all that later rounds compute. Rehearsing with other k, n and h,
one at a time, tells what the round, a visit, a sample and an outer step take.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace

import torch

from fedptr.compute.cores import count_cores
from fedptr.compute.side_by_side import open_visits
from fedptr.core.federation import Rounds, Run, federate
from fedptr.core.round_record import count_bytes
from fedptr.core.samples import Samples
from fedptr.core.task import ModelTask
from fedptr.core.visit import VisitCohort, visit_in_process
from fedptr.runs.experiment import Experiment
from fedptr.runs.plan import Plan
from fedptr.types import Batch

BUDGET = 5.0  # seconds of training that a rehearsal may take, where it can be kept
FEWEST = 8  # samples of a client that say something
EPOCHS = 2  # local ones; more take as many times longer
OFTEN, QUICK = 5, 0.3  # a round is timed this often, if it takes less than this many seconds
TESTED = 1000  # samples


@dataclass(frozen=True)
class UnitCosts:
    """Seconds of the parts of a round, and the bytes of one visit."""

    round: float  # whatever the clients do
    visit: float
    sample: float  # of a client, in one visit
    later: float  # more in a round that is not quick, for each who learns a set, beside the outer steps
    later_sample: float  # and for each sample of a client
    outer: float  # step of learning one set
    test: float  # sample of the test set
    tester: float  # client that scores models on its own test set
    down: float  # bytes to a client
    down_quick: float  # in the first, quick rounds
    up: float
    server: int  # bytes of the server's state
    client: int  # bytes of a client's state


@dataclass(frozen=True)
class Rehearsal:
    quick: float  # seconds of a quick round; of the last one, where none is quick
    seconds: float  # of the last round
    run: Run
    clients: int
    down_quick: float  # bytes to a client in a quick round

    @property
    def later(self) -> float:
        """Seconds that the last round takes more than a quick one."""
        return max(0.0, self.seconds - self.quick)

    def bytes_of(self, what: str) -> float:
        return float(self.run.record[what]) / self.clients


class Stage:
    """The clients of an experiment that can be had for a rehearsal: the largest, cut short."""

    def __init__(self, plan: Plan, experiment: Experiment, visitors: int, visits: VisitCohort) -> None:
        sizes = sorted(((len(data), i) for i, data in enumerate(experiment.clients)), reverse=True)
        self.plan, self.experiment, self.visits = plan, experiment, visits
        self.local = replace(plan.local, epochs=min(plan.local.epochs, EPOCHS))
        self.chosen = [i for size, i in sizes[:visitors] if size]
        self.most = min(len(experiment.clients[i]) for i in self.chosen)

    def rehearse(self, k: int, n: int, h: int = 1) -> Rehearsal:
        plan, whole = self.plan, self.plan.method
        method = whole.shorten(min(h, whole.outer_steps)) if whole.outer_steps else whole
        clients = [first_samples(self.experiment.clients[i], n) for i in self.chosen[:k]]
        rounds = Rounds(rounds=plan.run.rounds, seed=plan.run.seed, eval_every=plan.run.rounds)

        def go_on(start: Run | None, times: list[float]) -> Run:
            asked, began = (None, rounds, self.local, None, start, None, self.visits), time.perf_counter()
            run = next(federate(method, self.experiment.task, clients, *asked))
            times.append(time.perf_counter() - began)
            return run

        before, down, times, last = None, 0.0, list[float](), list[float]()
        for _ in range(min(method.quick_rounds, plan.run.rounds - 1)):
            before = go_on(before, times)
            down = float(before.record["bytes_down"]) / len(clients)
        while len(last) < 2 or (len(last) < OFTEN and last[-1] < QUICK):  # the first may set things up
            run = go_on(before, last)
        seconds = statistics.median(last[1:])
        quick = statistics.median(times[len(times) > 1 :]) if times else seconds
        return Rehearsal(quick, seconds, run, len(clients), down or float(run.record["bytes_down"]) / len(clients))


def measure_units(plan: Plan, experiment: Experiment) -> UnitCosts:
    """Rehearses, for some seconds."""
    with open_visits(experiment.at_once) as visits:
        if experiment.at_once == 1 and have_different_sizes(experiment):
            return rehearse_parts(plan, experiment, visit_in_process)
        return rehearse_parts(plan, experiment, visits)


def have_different_sizes(experiment: Experiment) -> bool:
    """Whether most clients are alone with their number of samples: in a rehearsal, where all have as many, tiny ones
    would train together (`fedptr.compute.together`), which these cannot."""
    sizes = experiment.split.sizes
    return 2 * len(set(sizes)) > len(sizes)


def rehearse_parts(plan: Plan, experiment: Experiment, visits: VisitCohort) -> UnitCosts:
    cohort = plan.run.cohort_size(sum(len(data) > 0 for data in experiment.clients))
    stage = Stage(plan, experiment, min(cohort, 2 * count_cores()), visits)
    k, steps = len(stage.chosen), plan.method.outer_steps
    fewer, n = max(1, k // 2), choose_samples(plan, experiment, stage)
    more = min(stage.most, 3 * n)
    first = stage.rehearse(k, n)
    longer = stage.rehearse(k, more) if more > n else first
    smaller = stage.rehearse(fewer, n).quick if fewer < k else 0.0
    learned = stage.rehearse(k, n, h=3).seconds if steps > 1 else first.seconds
    added = k * max(1, more - n)  # samples
    sample = max(0.0, longer.quick - first.quick) / added
    later_sample = max(0.0, longer.later - first.later) / added
    part = max(0.0, first.quick - smaller) / (k - fewer if fewer < k else k)  # what one more client takes
    visit = max(0.0, part - sample * n)
    sets = k if plan.method.cost.auxiliary != "server" else 1
    outer = max(0.0, learned - first.seconds) / (sets * max(1, min(3, steps) - 1))
    states = [count_bytes(first.run.clients.get(i) or {}) for i in range(k)]
    return UnitCosts(
        round=max(0.0, first.quick - k * (visit + sample * n)),
        visit=visit,
        sample=sample * plan.local.epochs / stage.local.epochs,
        later=max(0.0, first.later - later_sample * k * n) / sets - min(1, steps) * outer,
        later_sample=later_sample * plan.local.epochs / stage.local.epochs,
        outer=outer,
        test=time_test(experiment.task, experiment.test),
        tester=time_testers(plan, experiment, stage),
        down=first.bytes_of("bytes_down"),
        down_quick=first.down_quick,
        up=first.bytes_of("bytes_up"),
        server=count_bytes(first.run.server),
        client=max(states),
    )


def choose_samples(plan: Plan, experiment: Experiment, stage: Stage) -> int:
    """How many samples a client has in a rehearsal: a batch, or fewer where this would take too long."""
    batch = min(plan.local.batch, stage.most)
    rounds = (plan.method.quick_rounds + OFTEN) * 6  # of rehearsals with n, n, n and 3n samples
    step = time_gradient(experiment.task, experiment.clients[stage.chosen[0]], batch) * plan.method.effort.step
    wanted = step * rounds * len(stage.chosen) * stage.local.epochs
    affordable = batch if wanted <= BUDGET else max(FEWEST, int(batch * BUDGET / wanted))
    return min(affordable, batch)


def time_gradient(task: ModelTask, data: Samples, n: int) -> float:
    x, y = data.take(torch.arange(min(n, len(data))))
    batch, buffers, w = Batch(x, y), task.initial_buffers(), task.joint.init()
    batch = batch if buffers is None else batch._replace(buffers=task.unpack_buffers(buffers))
    task.joint.grad(w, batch)  # whatever the first one sets up is not timed
    began = time.perf_counter()
    task.joint.grad(w, batch)
    return time.perf_counter() - began


def time_test(task: ModelTask, test: Samples) -> float:
    """Seconds for a sample of the test set."""
    if not len(test):
        return 0.0
    part = first_samples(test, TESTED)
    began = time.perf_counter()
    task.evaluate(task.init(), part, task.initial_buffers())
    return (time.perf_counter() - began) / len(part)


def time_testers(plan: Plan, experiment: Experiment, stage: Stage) -> float:
    """Seconds for a client that scores models on its own test set."""
    tests = [experiment.client_tests[i] for i in stage.chosen] if experiment.client_tests else []
    if not sum(map(len, tests)):
        return 0.0
    clients = [first_samples(experiment.clients[i], FEWEST) for i in stage.chosen]
    rounds = Rounds(rounds=1, seed=plan.run.seed)
    asked = (None, rounds, stage.local, None, None, None, stage.visits, None, tests)
    run = next(federate(plan.method, experiment.task, clients, *asked))
    return float(run.record["seconds"]["evaluation"]) / len(clients)


def first_samples(data: Samples, n: int) -> Samples:
    return data.part(torch.arange(min(n, len(data))))
