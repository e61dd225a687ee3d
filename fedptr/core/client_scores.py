"""How well models do on the clients' own test data: the global model, and the one that each client would use.

A client sends counts and sums only. Entries of its reply, each a single number:

    tests              its test samples
    right, loss        of the global model: correct predictions, where there are classes, and the sum of the losses
    personal_right, personal_loss     the same of the client's own model, for methods that give it one
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedptr.core.method import Entry
from fedptr.core.own_part import find_own_model, gives_own_models
from fedptr.errors import ReplyError

if TYPE_CHECKING:
    from fedptr.core.method import Method, Site
    from fedptr.core.task import Task
    from fedptr.types import State

GLOBAL, PERSONAL = "", "personal_"  # the prefixes of what is known of each model
LARGEST_LOSS = 1e6  # of a sample, that a client elsewhere is believed


def score_models(method: Method, msg: State, client: State, site: Site) -> State:
    """What a client says of the models: see above."""
    assert site.test is not None, "there is no test data at this site"
    models = {GLOBAL: (site.task, msg["x"])}
    if gives_own_models(method, site.task):
        models[PERSONAL] = find_own_model(method, msg, client, site)
    counts = {"tests": float(len(site.test))}
    for prefix, (task, w) in models.items():
        scores = task.evaluate(w, site.test, msg.get("buffers"))
        if site.task.classes:
            counts[f"{prefix}right"] = round(scores["accuracy"] * len(site.test))
        counts[f"{prefix}loss"] = scores["loss"] * len(site.test)
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in counts.items()}


def expected_scores(method: Method, task: Task) -> dict[str, Entry]:
    """The entries of a client's scores."""
    prefixes = (GLOBAL, PERSONAL) if gives_own_models(method, task) else (GLOBAL,)
    kinds = ("right", "loss") if task.classes else ("loss",)
    names = ["tests", *(f"{prefix}{what}" for prefix in prefixes for what in kinds)]
    return {name: Entry((), torch.float64) for name in names}


def check_scores(scores: Mapping[str, Tensor], tests: int) -> None:
    """Raises unless the scores can be those of a client with this many test samples.

    >>> check_scores({"tests": torch.tensor(4.0), "right": torch.tensor(5.0), "loss": torch.tensor(1.0)}, 4)
    Traceback (most recent call last):
        ...
    fedptr.errors.ReplyError: says that 5 of 4 predictions are right
    """
    for name, tensor in scores.items():
        value = float(tensor)
        if name == "tests" and value != tests:
            raise ReplyError(f"says that it has {value:g} test samples, not {tests}")
        if name.endswith("right") and not (0 <= value <= tests and value.is_integer()):
            raise ReplyError(f"says that {value:g} of {tests} predictions are right")
        if name.endswith("loss") and not 0 <= value <= LARGEST_LOSS * tests:
            raise ReplyError(f"says that its {tests} losses have the sum {value:g}")


def record_scores(scores: Mapping[int, Mapping[str, Tensor]]) -> dict[str, Any]:
    """What a round's record holds of the clients' scores: lists in client order, and the means weighted by size."""
    if not scores:
        return {}
    clients = sorted(scores)
    columns = {name: [float(scores[i][name]) for i in clients] for name in scores[clients[0]]}
    sizes = columns["tests"]
    record: dict[str, Any] = {"id": clients, "tests": [int(n) for n in sizes]}
    means: dict[str, float] = {}
    for prefix in (GLOBAL, PERSONAL):
        for name, what in (("accuracy", "right"), ("loss", "loss")):
            if f"{prefix}{what}" in columns:
                sums = columns[f"{prefix}{what}"]
                record[f"{prefix}{name}"] = [value / n for value, n in zip(sums, sizes, strict=True)]
                means[f"{prefix or 'client_'}{name}"] = sum(sums) / sum(sizes)
    return {**means, "client_tests": record}


def describe_spread(accuracies: Sequence[float], sizes: Sequence[float]) -> dict[str, float]:
    """How a score is spread over clients.

    >>> describe_spread([0.0, 0.5, 1.0], [1, 1, 2])["weighted"]
    0.625
    """
    values = torch.tensor(accuracies, dtype=torch.float64)
    weights = torch.tensor(sizes, dtype=torch.float64)
    low, middle, high = torch.quantile(values, torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)).tolist()
    return {
        "weighted": float(values @ weights / weights.sum()),
        "mean": float(values.mean()),
        "std": float(values.std(correction=0)) if len(values) else math.nan,
        "p10": low,
        "p50": middle,
        "p90": high,
        "worst": float(values.min()),
    }
