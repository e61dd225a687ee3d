"""class_scores.json: what the final global model takes the test images of every class for.

classes      the names of the classes
accuracy     of each class; null where there are no test images of it
confusion    a row for each class: how many of its test images are taken for each class
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from fedptr.atomic_files import DamagedFileError, write_text
from fedptr.core.federation import Run
from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.regular_files import read_text

NAME = "class_scores.json"
MOST = 2**53  # images of a class, so that every count is exact


def count_confusions(task: Classification, run: Run, test: Samples) -> list[list[int]]:
    """Rows are true classes, columns what the model takes them for."""
    predicted = task.predict(run.w, test, run.server.get("buffers"))
    true = torch.cat([y for _, y in test.chunks()])
    counts = torch.bincount(true * task.classes + predicted, minlength=task.classes**2)
    table: list[list[int]] = counts.view(task.classes, task.classes).tolist()
    return table


def write_class_scores(path: Path, task: Classification, names: tuple[str, ...], run: Run, test: Samples) -> None:
    confusion = count_confusions(task, run, test)
    content = {"classes": list(names), "accuracy": accuracy_by_class(confusion), "confusion": confusion}
    write_text(path, json.dumps(content) + "\n")


def accuracy_by_class(confusion: list[list[int]]) -> list[float | None]:
    """
    >>> accuracy_by_class([[3, 1], [0, 0]])
    [0.75, None]
    """
    return [row[k] / sum(row) if sum(row) else None for k, row in enumerate(confusion)]


def read_class_scores(path: Path) -> dict[str, Any]:
    """The content of the file; raises DamagedFileError where it is not as `write_class_scores` writes it."""
    try:
        content = json.loads(read_text(path))
        names, confusion = content["classes"], content["confusion"]
        sound = bool(names) and all(isinstance(name, str) for name in names)
        sound = sound and [len(row) for row in confusion] == [len(names)] * len(names)
        sound = sound and all(type(count) is int and 0 <= count < MOST for row in confusion for count in row)
        if sound and any(map(any, confusion)) and content["accuracy"] == accuracy_by_class(confusion):
            return {"classes": list(names), "accuracy": content["accuracy"], "confusion": confusion}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    raise DamagedFileError(f"{path} is damaged")
