"""Means over seeds with 95 % confidence intervals (Student's t): curves by round, final figures, and time by phase."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedptr.headline import Headline, headline_of_rounds
from fedptr.report.find_runs import FoundRun
from fedptr.runs.rounds_file import Record
from fedptr.runs.summary import LAST
from fedptr.stats import Floats, mean_with_interval, number_or_nan

POINTS = 250  # of a curve, at most


def evaluated_rounds(run: FoundRun) -> list[Record]:
    name = headline_of_rounds(run.records).test
    return [record for record in run.records if math.isfinite(number_or_nan(record.get(name)))]


def headline_of_runs(runs: Iterable[FoundRun]) -> Headline:
    """What these runs are known by; runs of one group have the same."""
    return headline_of_rounds(record for run in runs for record in run.records)


def thin_positions(count: int, most: int = POINTS) -> list[int]:
    """At most `most` positions of a curve, evenly spread, including the first and the last."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, most))}) if count else []


def mean_curves(runs: Sequence[FoundRun]) -> dict[str, Any]:
    """Accuracy (%), or another headline score under its name, and loss at the rounds that all these runs evaluated.

    With the seconds, MB and ε spent by then.
    """
    headline = headline_of_runs(runs)
    by_round = [{record["round"]: record for record in evaluated_rounds(run)} for run in runs]
    common = sorted(set.intersection(*map(set, by_round)))
    rounds = [common[i] for i in thin_positions(len(common))]
    return {
        **mean_costs(runs, rounds),
        "accuracy": mean_and_band(
            [[headline.factor * number_or_nan(by[t].get(headline.test)) for t in rounds] for by in by_round],
            highest=headline.highest,
        ),
        "loss": mean_and_band([[number_or_nan(by[t].get("test_loss")) for t in rounds] for by in by_round]),
    }


def mean_costs(runs: Sequence[FoundRun], rounds: list[int]) -> dict[str, Any]:
    """The rounds, and the seconds, MB and ε spent by each of them."""
    at = np.array(rounds, dtype=np.int64) - 1
    return {
        "rounds": rounds,
        "seconds": to_json_numbers(np.mean([cumulative_seconds(run)[at] for run in runs], axis=0)),
        "mb": to_json_numbers(np.mean([cumulative_megabytes(run)[at] for run in runs], axis=0)),
        "epsilon": to_json_numbers(np.mean([epsilon_by_round(run)[at] for run in runs], axis=0)),
    }


def mean_and_band(values: list[list[float]], highest: float = math.inf) -> dict[str, Any]:
    """The mean and its interval, of which only what is possible is shown: nothing below 0, nothing above `highest`."""
    mean, half = mean_with_interval(values)
    if half is None:
        return {"mean": to_json_numbers(mean)}
    low, high = np.maximum(mean - half, np.minimum(mean, 0)), np.minimum(mean + half, np.maximum(mean, highest))
    return {"mean": to_json_numbers(mean), "low": to_json_numbers(low), "high": to_json_numbers(high)}


def cumulative_seconds(run: FoundRun) -> Floats:
    """Seconds spent up to the end of each round."""
    return np.cumsum([number_or_nan(record["seconds"].get("total")) for record in run.records])


def cumulative_megabytes(run: FoundRun) -> Floats:
    return np.cumsum([(record["bytes_up"] + record["bytes_down"]) / 1e6 for record in run.records])


def epsilon_by_round(run: FoundRun) -> Floats:
    """ε spent up to the end of each round; NaN without differential privacy."""
    return np.array([number_or_nan(record.get("epsilon")) for record in run.records])


def final_results(runs: Sequence[FoundRun]) -> dict[str, Any]:
    """The mean accuracy (%), or other headline score, of the last five evaluated rounds, and the total cost."""
    headline = headline_of_runs(runs)
    name, factor = headline.test, headline.factor
    accuracies = [[factor * number_or_nan(record.get(name)) for record in evaluated_rounds(run)] for run in runs]
    mean, half = mean_with_interval([[float(np.mean(row[-LAST:]))] for row in accuracies])
    return {
        "seeds": len(runs),
        "rounds": float(np.mean([len(run.records) for run in runs])),  # seeds may stop early
        "averaged": max(len(row[-LAST:]) for row in accuracies),
        "accuracy": float(mean[0]),
        "half": None if half is None else float(half[0]),
        "best": float(np.mean([max(row) for row in accuracies])),
        "seconds": float(np.mean([cumulative_seconds(run)[-1] for run in runs])),
        "mb": float(np.mean([cumulative_megabytes(run)[-1] for run in runs])),
        "epsilon": to_json_numbers([float(np.mean([epsilon_by_round(run)[-1] for run in runs]))])[0],
    }


def seconds_by_phase(runs: Sequence[FoundRun]) -> dict[str, float]:
    """Mean seconds of a round by phase; the rest is `other`."""
    records = [record["seconds"] for run in runs for record in run.records]
    names = dict.fromkeys(name for record in records for name in record if name != "total")
    spent = {name: sum(number_or_nan(record.get(name, 0.0)) for record in records) / len(records) for name in names}
    total = sum(number_or_nan(record.get("total")) for record in records) / len(records)
    rest = total - sum(spent.values())
    return spent | ({"other": rest} if rest > 0 else {})


def to_json_numbers(values: Sequence[float] | Floats) -> list[float | None]:
    """Numbers for JSON: five digits, and null for NaN."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in map(float, values)]
