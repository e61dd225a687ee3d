"""What the numbers of a recipe measure: each is computed from a run's summary and its rounds.

`accuracy` is the global model's on the common test set. The others need clients with test data of their own, and are
of the model that a client would use: its own where the method gives it one, else the global one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedptr.runs.rounds_file import Record
from fedptr.runs.summary import LAST


class Score(NamedTuple):
    words: str  # {mean} stands for the rounds that are averaged
    compute: Callable[[Record, Sequence[Record]], float]  # of the summary and the rounds; a fraction


def mean_of_last(records: Sequence[Record], of_round: Callable[[Record], float]) -> float:
    """The mean over the last evaluated rounds that have clients' scores; NaN if none has."""
    values = [of_round(record) for record in records if "client_tests" in record]
    return statistics.fmean(values[-LAST:]) if values else float("nan")


def used_accuracy(record: Record) -> float:
    """The size-weighted mean over clients."""
    return float(record["personal_accuracy" if "personal_accuracy" in record else "client_accuracy"])


def worst_accuracy(record: Record) -> float:
    """The lowest of all clients."""
    tests = record["client_tests"]
    return float(min(tests.get("personal_accuracy", tests["accuracy"])))


SCORES = {
    "accuracy": Score("Accuracy (%), {mean}", lambda summary, _: float(summary["accuracy"])),
    "personal": Score(
        "Accuracy (%) of the model that each client uses on its own test data, weighted by size, {mean}",
        lambda _, records: mean_of_last(records, used_accuracy),
    ),
    "worst": Score(
        "Accuracy (%) of the worst client, {mean}",
        lambda _, records: mean_of_last(records, worst_accuracy),
    ),
}
GLOBAL_MODEL = "Accuracy (%) of the global model on the common test set, {mean}"
