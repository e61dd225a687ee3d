"""Whether a run diverged: its last model is worse than the one it started from."""

from __future__ import annotations

import math

from fedptr.core.samples import Samples
from fedptr.core.task import ModelTask
from fedptr.headline import headline_of_rounds
from fedptr.messages import print_notice
from fedptr.runs.rounds_file import Record

AT_CHANCE = 1.2  # times the accuracy of guessing
# Early rounds of very different clients often are this bad, so it takes several, the fewer the worse the loss is:
# number of last evaluations, and how many times the loss at the start each must have.
SIGNS = ((5, 1.5), (10, 1.0))


def find_divergence(task: ModelTask, test: Samples, records: list[Record]) -> str:
    """In words, or nothing if it did not."""
    headline = headline_of_rounds(records)
    evaluated = [record for record in records if headline.test in record]
    if not evaluated:
        return ""
    loss, score = evaluated[-1].get("test_loss", math.nan), evaluated[-1][headline.test]
    if not math.isfinite(loss):
        return "the test loss is not finite"
    chance = AT_CHANCE / task.classes if task.classes else 0.0  # always the mean, or no label, scores 0
    personal = {"personal_accuracy", "personal_loss"} & evaluated[-1].keys()
    if personal or not len(test) or score > chance:
        return ""  # clients use models of their own, or nobody here knows the first loss, or it has learned something
    first = task.evaluate(task.init(), test, task.initial_buffers())["loss"]
    for count, times in SIGNS:
        last = evaluated[-count:]
        guesses = all(record[headline.test] <= chance for record in last)
        if len(last) == count and guesses and all(record["test_loss"] > times * first for record in last):
            worse = f"the test loss is {loss:.3g}, {first:.2f} at the start"
            told = f"{score:.1%}, which is guessing," if headline.percent else headline.write(score)
            return f"{headline.words} is {told} and {worse}"
    return ""


def print_divergence(summary: Record) -> None:
    """Says so, if the run did."""
    if "diverged" in summary:
        print_notice(f"{summary['method']} diverged: {summary['diverged']}; try a smaller local.lr, e.g. --lr 0.01")
