"""Sweeps of a second or two, and what came out of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedptr.cli.main import main

TINY = [
    "--method", "fedavg", "--model", "mlp", "--width", "8", "--rounds", "3", "--jobs", "1", "--batch", "32",
    "--set", "data.subset=300", "--set", "split.min_size=5", "--alpha", "1", "--clients", "3",
    "--set", "machine.threads=1",
]  # fmt: skip
GRID = [*TINY, "--lr", "0.3,0.01", "--seeds", "2"]


def sweep(*options: str, out: Path) -> int:
    return main(["sweep", *options, "--out", str(out)])


def results(out: Path) -> dict[str, Any]:
    """sweep.json without what differs from one time to the next."""
    found: dict[str, Any] = json.loads((out / "sweep.json").read_text())
    for entry in [*found["settings"], found["best"] or {}]:
        entry.pop("seconds", None)
    return found
