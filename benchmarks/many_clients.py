"""From 100 to 10,000 clients, and to 100,000, with ten in a round: seconds per round and memory against 100 clients.

    python benchmarks/many_clients.py            prints the table; about ten minutes

Each run is a separate process. With default settings and a checkpoint every round, it resumes from a checkpoint in
which *all* clients have a state; the table has the size of these states. The two runs of a method take turns, one round
each. Seconds are from one round to the next, so they include the checkpoint. Memory is the peak of the whole process,
from its start to its end.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from fedptr.core.client_states import ClientStates
from fedptr.core.federation import Rounds, federate
from fedptr.core.round_record import count_bytes
from fedptr.runs.checkpoint import CheckpointStore
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.folder import CHECKPOINTS
from fedptr.runs.plan import Plan, check_plan, load_plan
from fedptr.runs.rounds_file import RoundsFile
from fedptr.runs.runner import checkpoint_header, resume_run
from fedptr.runs.summary import peak_memory

FEW, COHORT = 100, 10
SAMPLES, TESTS = 5, 200  # images of a client, and of the test set
BEFORE, UNTIMED = 4, 2  # rounds that train the one client whose state all clients get; rounds to warm up
TURNS = 40  # a turn is a round of one run, then of the other
FEDPTR = {"m": 1, "H": 2, "R": 3, "ipc": 1}
# Methods, clients, and the goal for memory; the goal for seconds is SECONDS for all.
RUNS = (("fedavg", 10_000, 1.2), ("scaffold", 10_000, 1.5), ("fedptr", 10_000, 1.5), ("fedavg", 100_000, 1.5))
SECONDS = 1.2


def plan_for(method: str, clients: int, data: Path) -> Plan:
    settings = FEDPTR if method == "fedptr" else {}
    return check_plan({
        "run": {"rounds": BEFORE + UNTIMED + TURNS, "participation": COHORT / clients},
        "data": {"name": str(data)}, "split": {"kind": "iid", "clients": clients, "min_size": 1},
        "model": {"name": "mlp", "width": 48}, "local": {"batch": SAMPLES},
        "machine": {"threads": 1, "device": "cpu"}, "method": {"name": method, **settings},
    })  # fmt: skip


def write_started_run(method: str, clients: int, folder: Path) -> int:
    """Writes a run folder whose checkpoint has a state for every client, copied from one client; returns its bytes."""
    rng, cut = np.random.default_rng(0), clients * SAMPLES
    x = rng.integers(0, 256, (cut + TESTS, 1, 8, 8), dtype=np.uint8)
    y = np.arange(len(x)) % 10
    np.savez(folder / "noise.npz", train_x=x[:cut], train_y=y[:cut], test_x=x[cut:], test_y=y[cut:])
    plan = plan_for(method, clients, folder / "noise.npz")
    e, out = prepare_experiment(plan), folder / "run"
    out.mkdir()
    (out / "plan.toml").write_text(plan.toml(), encoding="utf-8")
    e.split.save(out / "split.json")
    history = RoundsFile(out)
    for run in federate(plan.method, e.task, e.clients[:1], e.test, Rounds(rounds=BEFORE), plan.local):
        history.append(run.record)
    history.close()
    state = run.clients[0]
    run = replace(run, clients=ClientStates(dict.fromkeys(range(clients), state)))
    with mock.patch("os.fsync"):  # two calls for each of 10,000 clients would take longer than the benchmark
        CheckpointStore(out / CHECKPOINTS).save(
            run, {**checkpoint_header(plan, e), **history.header(), "torch": torch.__version__}
        )
    return count_bytes(state)


class SteppedRun:
    """A run in a separate process that trains one round at a time, on request."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, __file__, str(folder / "run")]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def __enter__(self) -> SteppedRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def next_number(self) -> float:
        """Runs the next round, and returns its seconds; after the last round, returns the peak in bytes."""
        into, out = self.process.stdin, self.process.stdout
        assert into is not None
        assert out is not None
        print(file=into, flush=True)
        line = out.readline()
        if not line:
            raise RuntimeError(self.process.communicate()[1])
        return float(line)


def run_rounds_on_request(folder: Path) -> None:
    """Resumes a run; for each line of input it trains a round and prints its seconds, and after the last its peak."""
    began = 0.0

    def show(record: dict[str, Any]) -> None:
        nonlocal began
        print(time.perf_counter() - began, flush=True)
        sys.stdin.readline()
        began = time.perf_counter()

    torch.set_num_threads(1)
    sys.stdin.readline()
    with mock.patch("fedptr.runs.summary.reset_peak_memory"):  # from the start, not the first round
        resume_run(load_plan(folder), folder, show)
    print(peak_memory(), flush=True)


def time_few_and_many(method: str, clients: int) -> tuple[list[tuple[float, float]], tuple[float, float], int]:
    """Seconds per round of both runs, turn by turn; their peaks in bytes; and the bytes of a client's state."""
    with tempfile.TemporaryDirectory() as few, tempfile.TemporaryDirectory() as many:
        size = write_started_run(method, FEW, Path(few))
        write_started_run(method, clients, Path(many))
        os.sync()
        with SteppedRun(Path(few)) as a, SteppedRun(Path(many)) as b:
            for run in (a, b):
                for _ in range(UNTIMED):
                    run.next_number()
            seconds = []
            for turn in range(TURNS):
                taken = {run: run.next_number() for run in ((a, b) if turn % 2 else (b, a))}
                seconds.append((taken[a], taken[b]))
            return seconds, (a.next_number(), b.next_number()), size


def measure_rows() -> list[dict[str, Any]]:
    """Two rows per method: seconds per round and memory with many clients, as multiples of those with few."""
    rows = []
    for method, clients, goal in RUNS:
        seconds, peaks, size = time_few_and_many(method, clients)
        few, many = (statistics.median(side) for side in zip(*seconds, strict=True))
        low, ratio, high = statistics.quantiles([b / a for a, b in seconds], n=4)
        reference = f"{FEW} clients"
        figure = f"{method}, {clients:,} clients, {COHORT} in a round"
        rows += [
            make_row(f"{figure}: seconds per round", reference, ratio, (low, high), SECONDS,
                f"{1000 * few:.0f} and {1000 * many:.0f} ms"),
            make_row(f"{figure}: resident memory", reference, peaks[1] / peaks[0], None, goal,
                f"{peaks[0] / 1e6:.0f} and {peaks[1] / 1e6:.0f} MB; the states have {clients * size / 1e6:.0f} MB"),
        ]  # fmt: skip
    return rows


def make_row(
    figure: str, reference: str, value: float, spread: tuple[float, float] | None, goal: float, note: str
) -> dict[str, Any]:
    reach = f"≤ {goal}×"
    return {"figure": figure, "reference": reference, "value": value, "unit": "×", "spread": spread,
            "reach": reach, "ok": value <= goal, "note": note}  # fmt: skip


def format_table(rows: list[dict[str, Any]]) -> str:
    lines = ["| figure | against | measured | quartiles | goal | reached | |", "|---|---|---:|---:|---:|---|---|"]
    for r in rows:
        between = "–".join(f"{end:.2f}" for end in r["spread"] or ())
        mark = "yes" if r["ok"] else "**no**"
        cells = [r["figure"], r["reference"], f"{r['value']:.2f}×", between, r["reach"], mark, r["note"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_rounds_on_request(Path(sys.argv[1]))
    else:
        print(format_table(measure_rows()))
