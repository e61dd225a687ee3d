"""A progress bar with round, accuracy, seconds per round and time left; plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LINES = 10  # about this many lines per run where there is no terminal


@contextmanager
def show_progress(label: str, rounds: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yields the function to call with every round's record."""
    began = time.perf_counter()
    accuracy, done = "     –", 0  # until the first evaluation; rounds seen here, which after a resume are not all

    def words(record: dict[str, Any]) -> str:
        nonlocal accuracy, done
        done += 1
        if "test_accuracy" in record:
            accuracy = f"{record['test_accuracy']:6.1%}"
        per_round = (time.perf_counter() - began) / done
        spent = f"  ε {record['epsilon']:.2f}" if "epsilon" in record else ""
        return f"accuracy {accuracy}{spent}  {per_round:.2f} s/round"

    if not sys.stderr.isatty():
        step = -(-rounds // LINES)

        def line(record: dict[str, Any]) -> None:
            text = words(record)
            if record["round"] % step == 0 or record["round"] in (1, rounds):
                left = (time.perf_counter() - began) / done * (rounds - record["round"])
                print(f"{label}: round {record['round']}/{rounds}  {text}  {left:.0f} s left", file=sys.stderr)

        yield line
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(None),  # what the others leave of the line
        TextColumn("round"),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}"),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), expand=True) as bar:
        task = bar.add_task(label, total=rounds, words="")
        yield lambda record: bar.update(task, completed=record["round"], words=words(record))
