"""A progress bar with round, accuracy, seconds per round and time left; plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedptr.headline import find_headline
from fedptr.messages import BARS, format_duration

LINES = 10  # about this many lines per run where there is no terminal


class Clock:
    """Seconds per round, and time left. Rounds before FedPTR's first matching say nothing about those after it."""

    def __init__(self, rounds: int, warmup: int, now: Callable[[], float] = time.perf_counter) -> None:
        self.rounds, self.warmup, self.now = rounds, warmup, now
        self.last, self.spent, self.counted = now(), 0.0, 0  # rounds seen here, which after a resume are not all

    def count(self, done: int) -> None:
        """Round number `done` has ended."""
        if self.counted and done == self.warmup + 1:
            self.spent, self.counted = 0.0, 0
        now = self.now()
        self.spent, self.counted, self.last = self.spent + now - self.last, self.counted + 1, now

    @property
    def per_round(self) -> float:
        return self.spent / max(1, self.counted)

    def time_left(self, done: int) -> str:
        """In words.

        >>> clock = Clock(rounds=100, warmup=3, now=iter([0.0, 1.0, 2.0, 3.0, 13.0]).__next__)
        >>> for done in (1, 2, 3, 4):
        ...     clock.count(done)
        ...     print(clock.time_left(done))
        time left: known after round 4
        time left: known after round 4
        time left: known after round 4
        16 min left
        """
        if done <= self.warmup < self.rounds:
            return f"time left: known after round {self.warmup + 1}"
        return f"{format_duration(self.per_round * (self.rounds - done))} left"


@contextmanager
def show_progress(label: str, rounds: int, warmup: int = 0) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yields the function to call with every round's record. The first `warmup` rounds are quicker than the others."""
    clock = Clock(rounds, warmup)
    score = "accuracy      –"  # until the first evaluation

    def words(record: dict[str, Any]) -> str:
        nonlocal score
        clock.count(record["round"])
        headline = find_headline(record)
        if headline.test in record:
            value = record[headline.test]
            score = f"{headline.words} {value:6.1%}" if headline.percent else f"{headline.words} {value:6.3f}"
        spent = f"  ε {record['epsilon']:.2f}" if "epsilon" in record else ""
        return f"{score}{spent}  {clock.per_round:.2f} s/round  {clock.time_left(record['round'])}"

    if not sys.stderr.isatty():
        step = -(-rounds // LINES)

        def line(record: dict[str, Any]) -> None:
            text = words(record)
            if record["round"] % step == 0 or record["round"] in (1, rounds):
                print(f"{label}: round {record['round']}/{rounds}  {text}", file=sys.stderr)

        yield line
        return

    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(None),  # what the others leave of the line
        TextColumn("{task.fields[unit]}"),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}"),
    )
    with BARS.open(columns) as bars:
        task = bars.add_task(label, total=rounds, unit="round", words="")
        yield lambda record: bars.update(task, completed=record["round"], words=words(record))
