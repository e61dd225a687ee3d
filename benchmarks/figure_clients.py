"""From 100 to 10,000 clients; measured by clients.py, which can also be run alone."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from results import Row, missing
from scale import Scale


def figures(scale: Scale) -> Iterator[Row]:
    title, reference = "100 → 10,000 clients", "our 100-client run"
    if scale.quick:
        yield missing(title, reference, "not in a quick run: it has no small version")
        return
    try:
        clients = importlib.import_module("clients")
    except ModuleNotFoundError as error:
        yield missing(title, reference, error)
        return
    for row in clients.measure():
        yield Row(**row)
