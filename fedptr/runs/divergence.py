"""Whether a run diverged: its last model is worse than the one it started from."""

from __future__ import annotations

import math

from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.messages import print_notice
from fedptr.runs.rounds_file import Record

AT_CHANCE = 1.2  # times the accuracy of guessing
# Early rounds of very different clients often are this bad, so it takes several, the fewer the worse the loss is:
# number of last evaluations, and how many times the loss at the start each must have.
SIGNS = ((5, 1.5), (10, 1.0))


def find_divergence(task: Classification, test: Samples, records: list[Record]) -> str:
    """In words, or nothing if it did not."""
    evaluated = [record for record in records if "test_accuracy" in record]
    if not evaluated:
        return ""
    loss, accuracy = evaluated[-1].get("test_loss", math.nan), evaluated[-1]["test_accuracy"]
    if not math.isfinite(loss):
        return "the test loss is not finite"
    if "personal_accuracy" in evaluated[-1] or not len(test) or accuracy > AT_CHANCE / task.classes:
        return ""  # clients use models of their own, or nobody here knows the first loss, or it has learned something
    first = task.evaluate(task.init(), test, task.initial_buffers())["loss"]
    for count, times in SIGNS:
        last = evaluated[-count:]
        guesses = all(record["test_accuracy"] <= AT_CHANCE / task.classes for record in last)
        if len(last) == count and guesses and all(record["test_loss"] > times * first for record in last):
            worse = f"the test loss is {loss:.3g}, {first:.2f} at the start"
            return f"accuracy is {accuracy:.1%}, which is guessing, and {worse}"
    return ""


def print_divergence(summary: Record) -> None:
    """Says so, if the run did."""
    if "diverged" in summary:
        print_notice(f"{summary['method']} diverged: {summary['diverged']}; try a smaller local.lr, e.g. --lr 0.01")
