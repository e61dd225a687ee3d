"""Scores on the clients' own test data: by round, by client, and how they spread over the clients.

Anybody may have written rounds.jsonl: a round whose scores are not lists of one length counts as not evaluated, and a
client without a sound number has none in that round. Accuracies are in %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedptr.core.client_scores import GLOBAL, PERSONAL, describe_spread
from fedptr.report.find_runs import FoundRun
from fedptr.report.group_runs import Series
from fedptr.report.means_over_seeds import mean_and_band, mean_costs, thin_positions, to_json_numbers
from fedptr.runs.summary import LAST
from fedptr.stats import Floats, mean_with_interval, number_or_nan

MODELS = {"global": GLOBAL, "personal": PERSONAL}
POSITIONS = 20  # rounds that can be chosen for the dots
DOTS = 200  # clients of a series that are drawn
EXTREMES = 20  # the worst and the best clients, which are drawn in any case


@dataclass(frozen=True, eq=False)
class RunScores:
    """A run's scores; NaN where a client has none in a round."""

    run: FoundRun
    rounds: list[int]
    ids: list[int]
    tests: Floats  # test samples by client
    accuracy: dict[str, Floats]  # model -> rounds × clients

    def final(self, model: str) -> Floats:
        """By client, the mean of the last five evaluated rounds."""
        return mean_of_known(self.accuracy[model][-LAST:])


@dataclass(frozen=True, eq=False)
class SeriesScores:
    label: str
    runs: list[RunScores]

    @property
    def models(self) -> list[str]:
        return [model for model in MODELS if all(model in run.accuracy for run in self.runs)]

    @property
    def used(self) -> str:
        """The model that clients would use."""
        return self.models[-1]

    @property
    def same_clients(self) -> bool:
        """Whether a client is the same in all runs: same split, same subset, same test data."""
        return len({clients_key(run) for run in self.runs}) == 1


def clients_key(scores: RunScores) -> tuple[Any, ...]:
    return (*scores.run.seeds[1:], *scores.ids, *scores.tests.tolist())


def collect_scores(shown: Sequence[Series]) -> list[SeriesScores | None]:
    """The scores of every series; None where a run has no scores by client."""
    found: list[SeriesScores | None] = []
    for series in shown:
        runs = [scores for run in series.runs if (scores := read_scores(run))]
        found.append(SeriesScores(series.label, runs) if len(runs) == len(series.runs) else None)
    return found


def read_scores(run: FoundRun) -> RunScores | None:
    told = [(record["round"], record["client_tests"]) for record in run.records if has_scores(record)]
    tests: dict[int, float] = {}
    for _, one in told:
        tests |= dict(zip(one["id"], map(number_or_nan, one["tests"]), strict=True))
    ids = sorted(i for i, n in tests.items() if n > 0)
    place = {i: k for k, i in enumerate(ids)}
    accuracy = {}
    for model, prefix in MODELS.items():
        values = np.full((len(told), len(ids)), math.nan)
        for row, (_, one) in zip(values, told, strict=True):
            column = one.get(f"{prefix}accuracy")
            for i, value in zip(one["id"], column if isinstance(column, list) else (), strict=False):
                if i in place:
                    row[place[i]] = 100 * number_or_nan(value)
        if np.isfinite(mean_of_known(values[-LAST:])).any():
            accuracy[model] = values
    if "global" not in accuracy:
        return None
    return RunScores(run, [t for t, _ in told], ids, np.array([tests[i] for i in ids]), accuracy)


def has_scores(record: dict[str, Any]) -> bool:
    """Whether a round's record has sound lists of the clients' scores."""
    told = record.get("client_tests")
    if not isinstance(told, dict) or not all(isinstance(told.get(name), list) for name in ("id", "tests", "accuracy")):
        return False
    ids = told["id"]
    sound = all(type(i) is int and 0 <= i < 2**53 for i in ids)
    return sound and len(set(ids)) == len(ids) == len(told["tests"]) == len(told["accuracy"])


def mean_of_known(rows: Floats, weights: Floats | None = None, axis: int = 0) -> Floats:
    """The mean of the finite values along an axis; NaN where there are none."""
    known = np.isfinite(rows)
    weighted = known * (1.0 if weights is None else weights)
    count = weighted.sum(axis=axis)
    return np.where(
        count > 0, (np.where(known, rows, 0.0) * weighted).sum(axis=axis) / np.maximum(count, 1e-300), np.nan
    )


def quantiles_by_round(values: Floats) -> dict[str, Floats]:
    """The tenth and the ninetieth percentile and the worst over the clients, for every round."""
    rows = [row[np.isfinite(row)] for row in values]
    cuts = [np.quantile(row, [0.1, 0.9, 0.0]) if len(row) else np.full(3, math.nan) for row in rows]
    low, high, worst = np.array(cuts).reshape(-1, 3).T
    return {"p10": low, "p90": high, "worst": worst}


def chart_data(found: Sequence[SeriesScores | None]) -> dict[str, Any] | None:
    """What the charts of clients need, a list beside the series of the group; None if no series has scores."""
    known = [one for one in found if one]
    if not known:
        return None
    union = sorted({t for one in known for run in one.runs for t in run.rounds})
    rounds = [union[i] for i in thin_positions(len(union), POSITIONS)]
    return {"rounds": rounds, "series": [one and series_chart(one, rounds) for one in found]}


def series_chart(one: SeriesScores, rounds: Sequence[int]) -> dict[str, Any]:
    """Of one series: a dot a client at every one of the rounds and over the last five evaluated ones, and curves."""
    at = {model: dots_by_position(one, model, rounds) for model in one.models}
    names, tests = name_dots(one)
    kept = choose_dots(at[one.used])
    return {
        "ids": [names[k] for k in kept],
        "tests": [int(tests[k]) for k in kept],
        "all": len(names),
        "seeds": len(one.runs),
        "same": one.same_clients,
        "used": one.used,
        "dots": {model: [to_json_row(row[kept]) for row in rows] for model, rows in at.items()},
        "mean": {model: weighted_means(one, model, rounds) for model in one.models},
        "curves": spread_curves(one),
    }


def name_dots(one: SeriesScores) -> tuple[list[str], Floats]:
    """The names of the dots, and the test samples of each."""
    if one.same_clients:
        return [str(i) for i in one.runs[0].ids], one.runs[0].tests
    names = [f"{i}, split {run.run.plan.split.seed}" for run in one.runs for i in run.ids]
    return names, np.concatenate([run.tests for run in one.runs])


def dots_by_position(one: SeriesScores, model: str, rounds: Sequence[int]) -> Floats:
    """Accuracies by position and dot. A client that is the same in all seeds is one dot, with its mean over them."""
    parts = [at_positions(run, model, rounds) for run in one.runs]
    return mean_of_known(np.array(parts)) if one.same_clients else np.concatenate(parts, axis=1)


def at_positions(run: RunScores, model: str, rounds: Sequence[int]) -> Floats:
    """By round, and at the end of the list over the last five evaluated rounds."""
    place = {t: k for k, t in enumerate(run.rounds)}
    blank = np.full(len(run.ids), math.nan)
    return np.array([*(run.accuracy[model][place[t]] if t in place else blank for t in rounds), run.final(model)])


def choose_dots(rows: Floats) -> list[int]:
    """All clients, or of many the worst, the best, the worst at each position and some evenly ranked between."""
    final = np.where(np.isfinite(rows[-1]), rows[-1], np.inf)
    ranked = np.argsort(final, kind="stable")
    if len(ranked) <= DOTS:
        return list(range(len(ranked)))
    between = np.linspace(0, len(ranked) - 1, DOTS - 2 * EXTREMES).round().astype(int)
    worst = np.argmin(np.where(np.isfinite(rows), rows, np.inf), axis=1)
    return sorted(
        {*ranked[:EXTREMES].tolist(), *ranked[-EXTREMES:].tolist(), *ranked[between].tolist(), *worst.tolist()}
    )


def weighted_means(one: SeriesScores, model: str, rounds: Sequence[int]) -> list[float | None]:
    """Means over clients, weighted by their test samples, by position; the mean over seeds."""
    rows = [mean_of_known(at_positions(run, model, rounds), run.tests, axis=1) for run in one.runs]
    return to_json_numbers(mean_of_known(np.array(rows)))


def spread_curves(one: SeriesScores) -> dict[str, Any]:
    """By round: the weighted mean, 10 and 90 % quantiles and the worst client, each as mean and interval over seeds."""
    common = sorted(set.intersection(*(set(run.rounds) for run in one.runs)))
    rounds = [common[i] for i in thin_positions(len(common))]
    curves = mean_costs([run.run for run in one.runs], rounds)
    for model in one.models:
        by_seed = []
        for run in one.runs:
            place = {t: k for k, t in enumerate(run.rounds)}
            values = run.accuracy[model][[place[t] for t in rounds]]
            by_seed.append({"mean": mean_of_known(values, run.tests, axis=1), **quantiles_by_round(values)})
        columns = {name: [seed[name].tolist() for seed in by_seed] for name in by_seed[0]}
        curves[model] = {name: mean_and_band(rows, highest=100) for name, rows in columns.items()}
    return curves


def to_json_row(values: Floats) -> list[float | None] | None:
    """Two decimals are enough for a dot; None where there is nothing at all."""
    row = [round(value, 2) if math.isfinite(value) else None for value in values.tolist()]
    return row if any(value is not None for value in row) else None


@dataclass(frozen=True)
class Spread:
    """How a model's accuracy spreads over clients, by name: the mean over seeds, and its 95 % interval if several."""

    mean: dict[str, float]
    half: dict[str, float] | None
    worst: list[list[int]]  # for every seed, the clients with the lowest accuracy
    best: list[list[int]]


def describe_final(one: SeriesScores, model: str) -> Spread:
    """Of the clients' means over the last five evaluated rounds."""
    rows, worst, best = [], [], []
    for run in one.runs:
        final = run.final(model)
        known = np.isfinite(final)
        values = final[known]
        rows.append({**describe_spread(values.tolist(), run.tests[known].tolist()), "best": float(values.max())})
        worst.append([run.ids[k] for k in np.flatnonzero(final == values.min())])
        best.append([run.ids[k] for k in np.flatnonzero(final == values.max())])
    names = list(rows[0])
    mean, half = mean_with_interval([[row[name] for name in names] for row in rows])
    return Spread(
        dict(zip(names, mean.tolist(), strict=True)),
        None if half is None else dict(zip(names, half.tolist(), strict=True)),
        worst,
        best,
    )


def describe_gain(one: SeriesScores) -> dict[str, tuple[float, float | None]]:
    """What personal models bring: the gain in weighted mean, and how many clients of how many are worse off."""
    rows = []
    for run in one.runs:
        before, after = run.final("global"), run.final("personal")
        gain = mean_of_known(after, run.tests) - mean_of_known(before, run.tests)
        rows.append(
            [float(gain), float(np.sum(after < before)), float(np.sum(np.isfinite(after) & np.isfinite(before)))]
        )
    mean, half = mean_with_interval(rows)
    halves = [None] * 3 if half is None else half.tolist()
    return dict(zip(("gain", "worse", "clients"), zip(mean.tolist(), halves, strict=True), strict=True))


def shared_clients(found: Iterable[SeriesScores]) -> bool:
    """Whether a client is the same in all these series."""
    return len({clients_key(run) for one in found for run in one.runs}) == 1


def final_by_client(one: SeriesScores, model: str) -> Floats:
    """The mean over seeds, of clients that are the same in all of them."""
    return mean_of_known(np.array([run.final(model) for run in one.runs]))
