"""Means over seeds with 95 % confidence intervals (Student's t): curves by round, final figures, and time by phase."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedptr.report.find_runs import Found
from fedptr.runs.rounds_file import Record
from fedptr.runs.summary import LAST
from fedptr.stats import Floats, mean_with_interval, number_or_nan

POINTS = 250  # a curve has at most so many


def evaluated(run: Found) -> list[Record]:
    return [record for record in run.records if math.isfinite(number_or_nan(record.get("test_accuracy")))]


def thin(count: int) -> list[int]:
    """At most POINTS positions of a curve, evenly spread, with the first and the last."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, POINTS))}) if count else []


def curves(runs: Sequence[Found]) -> dict[str, Any]:
    """Accuracy (%) and loss at the rounds that all these runs evaluated, against rounds, seconds, MB and ε."""
    tables = [{record["round"]: record for record in evaluated(run)} for run in runs]
    common = sorted(set.intersection(*map(set, tables)))
    rounds = [common[i] for i in thin(len(common))]
    at = np.array(rounds, dtype=np.int64) - 1
    return {
        "rounds": rounds,
        "seconds": plain(np.mean([seconds(run)[at] for run in runs], axis=0)),
        "mb": plain(np.mean([megabytes(run)[at] for run in runs], axis=0)),
        "epsilon": plain(np.mean([epsilons(run)[at] for run in runs], axis=0)),
        "accuracy": banded([[100 * number_or_nan(table[t]["test_accuracy"]) for t in rounds] for table in tables]),
        "loss": banded([[number_or_nan(table[t].get("test_loss")) for t in rounds] for table in tables]),
    }


def banded(values: list[list[float]]) -> dict[str, Any]:
    mean, half = mean_with_interval(values)
    if half is None:
        return {"mean": plain(mean)}
    return {"mean": plain(mean), "low": plain(mean - half), "high": plain(mean + half)}


def seconds(run: Found) -> Floats:
    """Spent until after each round."""
    return np.cumsum([number_or_nan(record["seconds"].get("total")) for record in run.records])


def megabytes(run: Found) -> Floats:
    return np.cumsum([(record["bytes_up"] + record["bytes_down"]) / 1e6 for record in run.records])


def epsilons(run: Found) -> Floats:
    """The privacy spent until after each round; not a number where none was promised."""
    return np.array([number_or_nan(record.get("epsilon")) for record in run.records])


def final(runs: Sequence[Found]) -> dict[str, Any]:
    """The mean accuracy (%) of the last five evaluated rounds, and what the runs cost in all."""
    accuracies = [[100 * number_or_nan(record["test_accuracy"]) for record in evaluated(run)] for run in runs]
    mean, half = mean_with_interval([[float(np.mean(row[-LAST:]))] for row in accuracies])
    return {
        "seeds": len(runs),
        "rounds": min(len(run.records) for run in runs),
        "accuracy": float(mean[0]),
        "half": None if half is None else float(half[0]),
        "best": float(np.mean([max(row) for row in accuracies])),
        "seconds": float(np.mean([seconds(run)[-1] for run in runs])),
        "mb": float(np.mean([megabytes(run)[-1] for run in runs])),
        "epsilon": plain([float(np.mean([epsilons(run)[-1] for run in runs]))])[0],
    }


def phases(runs: Sequence[Found]) -> dict[str, float]:
    """Mean seconds of a round by phase; what no phase accounts for is `other`."""
    records = [record["seconds"] for run in runs for record in run.records]
    names = dict.fromkeys(name for record in records for name in record if name != "total")
    spent = {name: sum(number_or_nan(record.get(name, 0.0)) for record in records) / len(records) for name in names}
    total = sum(number_or_nan(record.get("total")) for record in records) / len(records)
    rest = total - sum(spent.values())
    return spent | ({"other": rest} if rest > 0 else {})


def plain(values: Sequence[float] | Floats) -> list[float | None]:
    """For JSON: five digits, and null for what is not a number."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in map(float, values)]
