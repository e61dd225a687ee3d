"""Scores by class of the final global models: accuracies as means over seeds, and a confusion matrix for every run.

Anybody may have written class_scores.json: a damaged file is left out, and the page says so. A run without the file is
left out silently: it was made before there was one, or is not finished. Accuracies are in %.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedptr.atomic_files import DamagedFileError
from fedptr.report.client_data import mean_of_known
from fedptr.report.find_runs import FoundRun
from fedptr.report.group_runs import Series
from fedptr.report.means_over_seeds import to_json_numbers
from fedptr.runs.class_scores import NAME, read_class_scores
from fedptr.stats import number_or_nan

FEW_CLASSES = 30  # with more, classes are sorted by accuracy, and there are no confusion matrices
Scores = dict[str, Any]


def collect_classes(shown: Sequence[Series]) -> tuple[dict[str, Any] | None, list[str]]:
    """What the charts of classes need, with a row beside every series; and why some runs cannot be shown."""
    found, problems = read_scores(shown)
    if not found:
        return None, problems
    names = next(iter(found.values()))["classes"]
    accuracy = [[found[run]["accuracy"] for run in series.runs if run in found] for series in shown]
    rows = [mean_of_known(100 * np.array([list(map(number_or_nan, row)) for row in seeds])) for seeds in accuracy]
    order = list(range(len(names)))
    if len(names) > FEW_CLASSES:
        overall = mean_of_known(np.array([row for row, seeds in zip(rows, accuracy, strict=True) if seeds]))
        order = np.argsort(overall, kind="stable").tolist()
    classes = {
        "names": [names[k] for k in order],
        "sorted": len(names) > FEW_CLASSES,
        "series": [
            {"accuracy": to_json_numbers(row[order]), "seeds": len(seeds), "runs": len(series.runs)} if seeds else None
            for series, row, seeds in zip(shown, rows, accuracy, strict=True)
        ],
        "confusions": list_confusions(shown, found) if len(names) <= FEW_CLASSES else [],
    }
    return classes, problems


def read_scores(shown: Sequence[Series]) -> tuple[dict[FoundRun, Scores], list[str]]:
    """The scores of all finished runs that have them. All have the same classes."""
    found: dict[FoundRun, Scores] = {}
    problems = []
    for run in (run for series in shown for run in series.runs):
        if run.summary is None or not (run.files / NAME).exists():
            continue
        try:
            scores = read_class_scores(run.files / NAME)
        except DamagedFileError as error:
            problems.append(str(error).replace(str(run.files), str(run.folder)))
            continue
        first = next(iter(found), run)
        if scores["classes"] == found.get(first, scores)["classes"]:
            found[run] = scores
        else:
            problems.append(f"{run.folder / NAME} is left out: its classes are not those of {first.folder}")
    return found, problems


def list_confusions(shown: Sequence[Series], found: dict[FoundRun, Scores]) -> list[dict[str, Any]]:
    return [
        {
            "label": f"{series.label}, seed {run.plan.run.seed}" if len(series.runs) > 1 else series.label,
            "counts": found[run]["confusion"],
        }
        for series in shown
        for run in series.runs
        if run in found
    ]
