"""From 100 to 100,000 clients; measured by many_clients.py, which can also be run alone."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from bench_results import Row, missing_row
from scale import Scale


def measure_rows(scale: Scale) -> Iterator[Row]:
    title, reference = "100 → 100,000 clients", "our 100-client run"
    if scale.quick:
        yield missing_row(title, reference, "not in a quick run: it has no small version")
        return
    try:
        clients = importlib.import_module("many_clients")
    except ModuleNotFoundError as error:
        yield missing_row(title, reference, error)
        return
    for row in clients.measure_rows():
        yield Row(**row)
