"""A FedAvg round on all cores against ours on one core: clients side by side, and for context blocks of one client."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from bench_results import Goal, Row, make_row
from our_side import endless_rounds, make_fast_task
from scale import Scale
from timing import quartiles, ratios_by_turn, time_in_turns
from workload import make_images

from fedptr.compute.cores import count_cores
from fedptr.compute.side_by_side import SideBySide
from fedptr.core.run import Run
from fedptr.core.samples import Samples
from fedptr.core.visit import visit_in_process
from fedptr.methods.fedavg import FedAvg

CLIENTS, WIDTHS, BATCH = 10, (32, 128), 100
ONE, BLOCKS, SIDE = "ours on one core", "blocks on all cores", "clients side by side"


def measure_rows(scale: Scale) -> Iterator[Row]:
    cores, images = count_cores(), scale(1000)
    x, y = make_images(CLIENTS * images)
    clients = [Samples(*part) for part in zip(x.chunk(CLIENTS), y.chunk(CLIENTS), strict=True)]
    for width in (max(8, scale(w)) for w in WIDTHS):
        ends: dict[str, Run] = {}

        def work(name: str, width: int = width, ends: dict[str, Run] = ends) -> Callable[[], None]:
            visits = SideBySide(cores) if name == SIDE else visit_in_process
            task = make_fast_task(width, threads=1 if name == ONE else cores)
            runs = endless_rounds(FedAvg(), task, clients, scale(BATCH), visits=visits)

            def step() -> None:
                ends[name] = next(runs)

            return step

        times = time_in_turns({name: work(name) for name in (ONE, BLOCKS, SIDE)}, scale.repeats)
        if not all(torch.equal(run.w, ends[ONE].w) for run in ends.values()):
            raise AssertionError("not the same bits")
        for name, goal in ((SIDE, Goal("≥", 0.9 * cores)), (BLOCKS, None)):
            figure = f"FedAvg round, {CLIENTS} clients × {images} images, width {width}: {name}"
            took = f"{quartiles(times[name]).median:.2f} against {quartiles(times[ONE]).median:.2f} s; {cores} cores"
            yield make_row(figure, ONE, ratios_by_turn(times, ONE, name), "×", goal, times, f"{took}; same bits")
