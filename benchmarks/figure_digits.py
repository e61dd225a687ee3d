"""What a new user waits for: a round of FedPTR on digits with the defaults, evaluated, beside one of FedAvg."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bench_results import Goal, Row, make_row
from scale import Scale
from timing import ratios_by_turn, time_in_turns

from fedptr.core.federation import Run, federate
from fedptr.runs.dataset_defaults import settle_method, with_dataset_defaults
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.plan import check_plan

WARM = 5  # rounds before: matching has begun, and has found its β


def later_round(method: str, rounds: int) -> Callable[[], Run]:
    """Each call is one more round, in-process, as `fedptr run` computes it."""
    tables: dict[str, Any] = {"data": {"name": "digits"}, "method": {"name": method}, "run": {"rounds": rounds}}
    plan = check_plan(settle_method(with_dataset_defaults(tables)[0]))
    e = prepare_experiment(plan)
    runs = iter(federate(plan.method, e.task, e.clients, e.test, plan.run, plan.local))
    for _ in range(WARM):
        next(runs)
    return lambda: next(runs)


def measure_rows(scale: Scale) -> Iterator[Row]:
    repeats = 3 * scale.repeats  # a round takes a moment
    works = {name: later_round(name, 30) for name in ("fedavg", "fedptr", "fedptr-s")}
    times = time_in_turns(works, repeats)
    reference = "our FedAvg round"
    for name, goal in (("fedptr", Goal("≤", 5)), ("fedptr-s", None)):
        ratios = ratios_by_turn(times, name, "fedavg")
        yield make_row(f"{name} round on digits, the defaults", reference, ratios, "×", goal, times)
    for name, goal in (("fedptr", Goal("<", 2)), ("fedavg", None)):
        yield make_row(f"{name} round on digits, the defaults: time", "none", times[name], " s", goal, times)
