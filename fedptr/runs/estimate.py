"""What a run will take, before it starts: seconds, messages, memory and disk."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedptr.compute.available_memory import available_bytes
from fedptr.compute.choose import count_gradients
from fedptr.compute.memory_estimate import client_state_budget, estimate_memory, measure_footprint
from fedptr.core.federation import expected_reply, first_run, site_of_round
from fedptr.core.method import Method, Site
from fedptr.core.randomness import Key
from fedptr.core.round_record import count_bytes, split_log
from fedptr.messages import count_noun, format_duration
from fedptr.runs.experiment import Experiment
from fedptr.runs.plan import Plan
from fedptr.runs.rehearse import UnitCosts, measure_units, time_gradient
from fedptr.runs.summary import peak_memory, reset_peak_memory, used_memory

CHECKPOINTS = 2  # are kept while a run goes on
RECORD = 150  # bytes of a round's record, and of each client in it
LONG = 60.0  # seconds; of such a run it is said how long it takes before it starts


@dataclass(frozen=True)
class RunEstimate:
    """Of a whole run, by one process. A run that ends early takes less."""

    rounds: int
    cohort: float  # clients that are visited in a round
    clients: int
    parameters: int
    quick: float  # seconds of the first rounds
    round: float  # seconds of a later round, and of its evaluation where each has one
    seconds: float
    down: float  # bytes
    up: float
    memory: float
    free: float | None
    disk: float

    def in_lines(self) -> list[str]:
        """For a terminal: a word and what is to be said of it."""
        first = f", {format_seconds(self.quick)} in the first ones" if self.quick < 0.8 * self.round else ""
        down, up = (format_size(size / self.rounds) for size in (self.down, self.up))
        free = "" if self.free is None else f" of {format_size(self.free)} that are free"
        visited = f"{format_cohort(self.cohort)} of {count_noun(self.clients, 'client')} in each"
        return [
            f"rounds  {self.rounds}, {visited}; {count_noun(self.parameters, 'parameter')}",
            f"time    {format_duration(self.seconds)}: {format_seconds(self.round)} a round{first}",
            f"sent    {format_size(self.down + self.up)}: {down} down and {up} up in a round",
            f"memory  {format_size(self.memory)}{free}",
            f"disk    {format_size(self.disk)}",
        ]

    def in_words(self) -> str:
        """For the first line of a long run."""
        time, sent = format_duration(self.seconds), format_size(self.down + self.up)
        memory, disk = format_size(self.memory), format_size(self.disk)
        return f"this run will take about {time}, send {sent}, and need {memory} of memory and {disk} of disk"


def estimate_run(plan: Plan, experiment: Experiment) -> RunEstimate:
    """Rehearses for some seconds, and counts."""
    free = available_bytes(experiment.task.device)
    needed = used_memory() + needed_memory(plan, experiment, free)
    reset_peak_memory()
    unit = measure_units(plan, experiment)
    return count_up(plan, experiment, unit, max(needed, peak_memory()), free)


def count_up(plan: Plan, experiment: Experiment, unit: UnitCosts, memory: float, free: float | None) -> RunEstimate:
    """From the costs of the parts to those of the run."""
    T, method, sizes = plan.run.rounds, plan.method, [len(data) for data in experiment.clients]
    N = sum(size > 0 for size in sizes)
    cohort = count_cohort(plan, N)
    quick_rounds = min(method.quick_rounds, T)
    evaluations = T // plan.run.eval_every + bool(T % plan.run.eval_every)
    evaluation = unit.test * len(experiment.test) + unit.tester * sum(len(test) > 0 for test in experiment.client_tests)
    samples = cohort * sum(sizes) / N  # of a round
    quick = unit.round + cohort * unit.visit + samples * unit.sample
    learners = 1 if method.cost.auxiliary == "server" else cohort
    sets = count_sets(method, T, cohort / N, N)
    later = learners * unit.later + samples * unit.later_sample
    learning = (T - quick_rounds) * later + sets * unit.outer * method.outer_steps
    seconds = T * quick + max(0.0, learning) + evaluations * evaluation
    rest, parameters = max(1, T - quick_rounds), experiment.task.joint.layers[-1].stop
    weights = 4 * parameters
    down, up = quick_rounds * unit.down_quick + (T - quick_rounds) * unit.down, T * unit.up
    if type(method).silent is not Method.silent:
        down, up = count_messages(plan, experiment)
    each = (seconds - quick_rounds * quick - evaluations * evaluation * quick_rounds / T) / rest
    return RunEstimate(
        rounds=T,
        cohort=cohort,
        clients=len(sizes),
        parameters=parameters,
        quick=quick + evaluation * evaluations / T if quick_rounds else each,
        round=each,
        seconds=seconds,
        down=cohort * down,
        up=cohort * up,
        memory=memory,
        free=free,
        disk=CHECKPOINTS * unit.server + N * unit.client + weights + T * RECORD * (1 + cohort),
    )


def count_messages(plan: Plan, experiment: Experiment) -> tuple[float, float]:
    """Bytes to and from a client that is there in every round, where rounds differ in what they send."""
    method, clients = plan.method, experiment.clients
    server = Site(experiment.task, plan.local, Key(plan.run.seed), 0, len(clients), numbers=len(clients))
    run, down, up = first_run(method, server), 0, 0
    for t in range(plan.run.rounds):
        site = site_of_round(server, plan.local, plan.run, t)
        msg, _ = split_log(method.broadcast(run.server, site)[0])
        down += count_bytes(msg) + ("buffers" in run.server and count_bytes({"buffers": run.server["buffers"]}))
        for entry in expected_reply(method, run, site, max(map(len, clients))).values():
            assert entry.dtype is not None
            up += math.prod(entry.shape) * entry.dtype.itemsize
    return down, up


def count_cohort(plan: Plan, clients: int) -> float:
    """Clients that are visited in a round, on average."""
    if plan.run.sampling == "bernoulli":
        return max(1.0, plan.run.participation * clients)
    return plan.run.cohort_size(clients)


def count_sets(method: Method, rounds: int, participation: float, clients: int) -> float:
    """The sets that are learned in a run."""
    if method.cost.auxiliary == "server":
        return method.count_sets(rounds)
    return clients * method.count_sets(round(participation * rounds))


def needed_memory(plan: Plan, experiment: Experiment, free: float | None) -> float:
    """Bytes that the run adds to what the process has."""
    task, tests = experiment.task, len(experiment.test)
    budget, sizes = client_state_budget(plan.machine, free), [len(data) for data in experiment.clients]
    foot = measure_footprint(task.joint)
    return estimate_memory(plan, foot, task.groups, sizes, tests, budget, experiment.at_once).total


def takes_long(plan: Plan, experiment: Experiment) -> bool:
    """Whether the gradients of training and of matching take more than a minute, by the time of one gradient."""
    task, largest = experiment.task, max(experiment.clients, key=len)
    batch = min(plan.local.batch, len(largest))
    images = sum(map(len, experiment.clients))
    return time_gradient(task, largest, batch) / batch * count_gradients(plan, task.classes, images) > LONG


def format_seconds(seconds: float) -> str:
    """
    >>> format_seconds(0.034), format_seconds(3.21), format_seconds(321)
    ('0.034 s', '3.2 s', '5 min')
    """
    return f"{seconds:.2g} s" if seconds < 10 else format_duration(seconds)


def format_cohort(cohort: float) -> str:
    """
    >>> format_cohort(10), format_cohort(2.5)
    ('10', '2.5')
    """
    return f"{cohort:.4g}"


def format_size(size: float) -> str:
    """
    >>> format_size(1_230), format_size(45_600_000), format_size(7.89e9)
    ('1.2 kB', '46 MB', '7.9 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.2g} {unit}" if size < 100 else f"{size:.0f} {unit}"
