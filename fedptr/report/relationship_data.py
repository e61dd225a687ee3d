"""MOCHA's learned relationship of the clients, as correlations."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedptr.report.find_runs import FoundRun
from fedptr.report.group_runs import Group
from fedptr.stats import number_or_nan


def collect_relationships(one: Group) -> list[dict[str, Any]]:
    """The last relationship that the first run of each series recorded."""
    return [{"label": series.label, **found} for series in one.series if (found := read_relationship(series.runs[0]))]


def read_relationship(run: FoundRun) -> dict[str, Any] | None:
    for record in reversed(run.records):
        server = record.get("server")
        rows = server.get("relationship") if isinstance(server, dict) else None
        if isinstance(rows, list) and rows and all(isinstance(row, list) and len(row) == len(rows) for row in rows):
            sigma = np.array([[number_or_nan(value) for value in row] for row in rows])
            scale = np.sqrt(np.where(np.diag(sigma) > 0, np.diag(sigma), np.nan))
            shares = (sigma / scale[:, None] / scale).tolist()
            z = [[round(value, 3) if np.isfinite(value) else None for value in row] for row in shares]
            learned = bool(np.any(sigma[~np.eye(len(sigma), dtype=bool)]))
            return {"round": record["round"], "z": z, "learned": learned}
    return None
