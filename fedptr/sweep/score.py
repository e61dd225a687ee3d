"""The number that a sweep chooses by: higher is better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedptr.headline import ACCURACY, find_headline


def read_score(summary: Mapping[str, Any], personal: bool = False) -> float:
    """A finished run's score, in percent: accuracy, or R² or F1 where there are no classes.

    `personal`: of the model that each client uses, on the client's own test data, for sweeps in which a method gives
    clients models of their own; otherwise of the global model.
    """
    headline = find_headline(summary)
    if personal and headline is ACCURACY and "clients_global" in summary:
        return 100 * float(summary.get("clients_personal", summary["clients_global"])["weighted"])
    score = summary[headline.key]
    return float("nan") if score is None else 100 * float(score)


def name_score(summary: Mapping[str, Any], personal: bool = False) -> str:
    """What the score of a run with this summary is."""
    headline = find_headline(summary)
    return f"{headline.words} %" + (" of the models that clients use" if personal and headline is ACCURACY else "")
