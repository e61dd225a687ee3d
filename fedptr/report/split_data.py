"""The splits of a group's runs: samples by client and class, and how different the clients are."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from fedptr.data.split import Split, measure_heterogeneity
from fedptr.errors import UserError
from fedptr.report.find_runs import FoundRun
from fedptr.report.group_runs import Group
from fedptr.runs.experiment import load_data
from fedptr.runs.plan import DataPlan

SHOWN = 150  # clients on a map
DIFFERENT = 5  # splits of a group that are shown
Labels = tuple[np.ndarray[Any, np.dtype[Any]], tuple[str, ...]]


def collect_splits(group: Group) -> tuple[list[dict[str, Any]], list[str]]:
    """The splits that a group's runs use, at most DIFFERENT, and why some cannot be shown."""
    found: dict[str, dict[str, Any]] = {}
    problems: dict[str, None] = {}
    for run in group.runs:
        if len(found) == DIFFERENT:
            break
        try:
            split = Split.load(run.files / "split.json")
            if split.sha256 not in found:
                found[split.sha256] = describe_split(split, run)
        except UserError as error:
            problems[str(error).replace(str(run.files), str(run.folder))] = None
    return list(found.values()), list(problems)


def describe_split(split: Split, run: FoundRun) -> dict[str, Any]:
    train_y, classes = load_labels(run.plan.data)
    if len(train_y) != split.samples:
        raise UserError(f"the split of {run.folder} is for {split.samples} samples but the dataset has {len(train_y)}")
    counts = split.counts(train_y, len(classes))
    return {
        "origin": split.origin,
        "sha256": split.sha256,
        "counts": counts[:SHOWN].tolist(),
        "clients": len(counts),
        "classes": list(classes),
        "heterogeneity": round(measure_heterogeneity(counts), 3),
    }


@lru_cache(maxsize=8)
def load_labels(plan: DataPlan) -> Labels:
    """The labels of the training set, and the names of the classes, or of the groups of other labels."""
    groups = load_data(plan).label_groups()
    return np.asarray(groups.train), groups.names


def load_class_names(plan: DataPlan) -> list[str]:
    try:
        return list(load_labels(plan)[1])
    except UserError:
        return []
