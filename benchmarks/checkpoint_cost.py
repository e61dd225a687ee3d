"""What a checkpoint costs, as ratios within one run.

    python benchmarks/checkpoint_cost.py      prints the figures in docs/reliability.md

1. A checkpoint after ten clients took part, out of 100 and out of 10,000 that have a state.
2. Seconds per round of a small run with a checkpoint every round and with none, in turns.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch

from fedptr.core.client_states import ClientStates
from fedptr.core.federation import Run
from fedptr.runs.checkpoint import CheckpointStore

SIZE, COHORT, REPEATS = 20_000, 10, 15


def checkpoint_seconds(clients: int, folder: Path) -> float:
    """Seconds of one checkpoint after ten of `clients` clients took part."""
    states = ClientStates({i: {"c_i": torch.zeros(SIZE)} for i in range(clients)})
    store = CheckpointStore(folder)
    store.states, store.indices = (
        states,
        {1: torch.ones(clients, dtype=torch.int64)},
    )  # as if all had been written before
    taken = []
    for t in range(2, REPEATS + 2):
        states = states.updated({i: {"c_i": torch.full((SIZE,), float(t))} for i in range(COHORT)})
        began = time.perf_counter()
        store.save(Run(t, {"x": torch.zeros(SIZE)}, states), {})
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def seconds_per_round() -> tuple[float, float]:
    from fedptr.runs.experiment import prepare_experiment
    from fedptr.runs.plan import check_plan
    from fedptr.runs.runner import start_run

    taken: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(5):
        for every in (0, 1):
            run = {"rounds": 10, "checkpoint_every": every}
            plan = check_plan({"run": run, "local": {"batch": 32}, "model": {"width": 16}, "machine": {"threads": 1},
                          "method": {"name": "scaffold"}})  # fmt: skip
            with tempfile.TemporaryDirectory() as folder:
                experiment = prepare_experiment(plan)
                began = time.perf_counter()
                start_run(plan, experiment, Path(folder), lambda record: None)
                taken[every].append((time.perf_counter() - began) / 10)
    return statistics.median(taken[0]), statistics.median(taken[1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        few, many = checkpoint_seconds(100, Path(a)), checkpoint_seconds(10_000, Path(b))
    print("a checkpoint after ten clients took part,", end=" ")
    print(f"of 100: {1000 * few:.1f} ms, of 10,000: {1000 * many:.1f} ms ({many / few:.2f}×)")
    without, with_ = seconds_per_round()
    print("SCAFFOLD on digits, ten clients, seconds per round:", end=" ")
    print(f"{with_:.3f} with checkpoints, {without:.3f} without ({with_ / without:.2f}×)")
