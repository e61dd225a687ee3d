"""Seconds per round in-process and with Ray on one machine, round by round in turns, and how long Ray takes to start.

    python benchmarks/ray_overhead.py [TURNS]        prints the table; a few minutes

Both federations do the same work from the same start, and must end with the same bits. In-process training uses every
core with threads, Ray has one single-threaded worker per core. `light` clients train for some milliseconds, which shows
what Ray adds to a visit; `medium` ones for about a twentieth of a second, `heavy` ones for about a third.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from timing import quartiles, ratios_by_turn

from fedptr.core.federation import Run, federate
from fedptr.core.visit import VisitCohort, visit_in_process
from fedptr.engines.ray.visits import Workers
from fedptr.runs.experiment import Experiment, prepare_experiment
from fedptr.runs.plan import Plan, check_plan

TURNS = 8
SHARED: dict[str, Any] = {"run": {"rounds": 1000, "eval_every": 1000}, "machine": {"engine": "ray", "compile": "off"}}
KINDS: dict[str, dict[str, Any]] = {
    "light": {"model": {"name": "mlp", "width": 32}, "local": {"batch": 32}, "method": {"name": "scaffold"}},
    "medium": {"model": {"name": "convnet", "width": 32}, "local": {"batch": 32}, "method": {"name": "scaffold"}},
    "heavy": {
        "model": {"name": "convnet", "width": 32},
        "local": {"batch": 32, "epochs": 8},
        "method": {"name": "scaffold"},
    },
}


def main(turns: int) -> None:
    print("| clients | in-process, s per round | Ray, s per round | Ray / in-process | Ray's start, s |")
    print("|---|---|---|---|---|")
    for kind, tables in KINDS.items():
        print(f"| {kind} | {' | '.join(measure_engines(check_plan({**SHARED, **tables}), turns))} |", flush=True)


def measure_engines(plan: Plan, turns: int) -> list[str]:
    experiment = prepare_experiment(plan)
    began = time.perf_counter()
    with Workers(plan, experiment) as workers:
        start = time.perf_counter() - began
        ways = {
            "here": start_federation(plan, experiment, visit_in_process),
            "ray": start_federation(plan, experiment, workers),
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(turns + 1):  # the first is not counted
            ends = {}
            for way in sorted(ways, reverse=bool(turn % 2)):
                began = time.perf_counter()
                ends[way] = next(ways[way]).w
                times[way].append(time.perf_counter() - began)
            assert torch.equal(ends["here"], ends["ray"]), "not the same bits"
    times = {way: taken[1:] for way, taken in times.items()}
    cells = [
        quartiles(times["here"]),
        quartiles(times["ray"]),
        quartiles(ratios_by_turn(times, "ray", "here")),
    ]
    return [*(f"{cell.median:.3g} ({cell.low:.3g} to {cell.high:.3g})" for cell in cells), f"{start:.1f}"]


def start_federation(plan: Plan, e: Experiment, visits: VisitCohort) -> Iterator[Run]:
    return federate(plan.method, e.task, e.clients, e.test, plan.run, plan.local, plan.faults, visits=visits)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TURNS)
