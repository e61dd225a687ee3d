"""What is shown while a queue runs: a table that fills in, or, without a terminal, a line for every finished run."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from fedptr.jobs.run_queue import QueueState
from fedptr.messages import format_duration, print_notice
from fedptr.runs.rounds_file import Record
from fedptr.runs.summary import cut_to_plan

PAUSE = 0.5  # seconds between two tables


@contextlib.contextmanager
def show_queue(
    make_table: Callable[[QueueState], Table],
    compute_score: Callable[[Record, list[Record]], float],
    name_run: Callable[[Path], str],
    printed: set[Path] | None = None,
) -> Iterator[Callable[[QueueState], None]]:
    """`compute_score`: of a run's summary and rounds, in percent. `printed`: runs that are not told again."""
    if not sys.stderr.isatty():
        told: set[Path] = set() if printed is None else printed

        def print_finished(board: QueueState) -> None:
            for folder in [path for path in (*board.done, *board.failed) if path not in told]:
                told.add(folder)
                plan = board.plans[folder]
                what = board.failed.get(folder)
                what = what or f"{compute_score(*cut_to_plan(plan, *board.done[folder])):.2f} %"
                left = "" if board.left is None else f", {format_duration(board.left)} left"
                counted = f"{len(board.done) + len(board.failed)}/{len(board.plans)}"
                print_notice(f"{counted} {name_run(folder)} seed {plan.run.seed}: {what}{left}")

        yield print_finished
        return
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        last = 0.0

        def refresh(board: QueueState) -> None:
            nonlocal last
            if time.perf_counter() - last > PAUSE:
                live.update(make_table(board), refresh=True)
                last = time.perf_counter()

        yield refresh
