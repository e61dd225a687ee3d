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

from fedptr.atomic_files import write_text
from fedptr.core.federation import Run
from fedptr.core.samples import Samples
from fedptr.core.task import Classification

NAME = "class_scores.json"


def count_confusions(task: Classification, run: Run, test: Samples) -> list[list[int]]:
    """Rows are true classes, columns what the model takes them for."""
    predicted = task.predict(run.w, test, run.server.get("buffers"))
    true = torch.cat([y for _, y in test.chunks()])
    counts = torch.bincount(true * task.classes + predicted, minlength=task.classes**2)
    table: list[list[int]] = counts.view(task.classes, task.classes).tolist()
    return table


def write_class_scores(path: Path, task: Classification, names: tuple[str, ...], run: Run, test: Samples) -> None:
    confusion = count_confusions(task, run, test)
    accuracy = [row[k] / sum(row) if sum(row) else None for k, row in enumerate(confusion)]
    content: dict[str, Any] = {"classes": list(names), "accuracy": accuracy, "confusion": confusion}
    write_text(path, json.dumps(content) + "\n")
