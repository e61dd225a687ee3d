"""Whether a run diverged: its last model is worse than the one it started from."""

from __future__ import annotations

import math

from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.messages import print_notice
from fedptr.runs.rounds_file import Record

LAST = 5  # evaluations, all of which must be bad: early rounds of very different clients often are
AT_CHANCE = 1.2  # times the accuracy of guessing


def find_divergence(task: Classification, test: Samples, records: list[Record]) -> str:
    """In words, or nothing if it did not."""
    evaluated = [record for record in records if "test_accuracy" in record][-LAST:]
    if not evaluated:
        return ""
    loss, accuracy = evaluated[-1].get("test_loss", math.nan), evaluated[-1]["test_accuracy"]
    if not math.isfinite(loss):
        return "the test loss is not finite"
    guessing = AT_CHANCE / task.classes
    if len(evaluated) < LAST or "personal_accuracy" in evaluated[-1] or not len(test):
        return ""  # too short to tell; or clients use models of their own; or nobody here knows the first loss
    if any(record["test_accuracy"] > guessing for record in evaluated):
        return ""
    first = task.evaluate(task.init(), test, task.initial_buffers())["loss"]
    if any(record["test_loss"] < min(first, math.log(task.classes)) for record in evaluated):
        return ""  # it has learned something
    return (
        f"accuracy is {accuracy:.1%}, which is guessing, and the test loss {loss:.3g}; it was {first:.2f} at the start"
    )


def print_divergence(summary: Record) -> None:
    """Says so, if the run did."""
    if "diverged" in summary:
        print_notice(f"{summary['method']} diverged: {summary['diverged']}; try a smaller local.lr, e.g. --lr 0.01")
