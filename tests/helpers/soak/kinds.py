"""What is soaked: for every kind of job its cases, the commands, and what must be the same in the end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from same_bits import outcome

# A run's own files that must be the same, byte for byte; the others hold times, or are for this run only.
KEPT = ("plan.toml", "split.json", "model.json", "class_scores.json", "weights.safetensors", "auxiliary/*")


@dataclass(frozen=True)
class Kind:
    """`command` gives the arguments that start or continue a case in its folder."""

    name: str
    share: float  # of the time
    cases: Sequence[str]
    command: Callable[[str, Path], list[str]]
    result: Callable[[Path], object]
    prepare: Callable[[str, Path], None] = lambda case, folder: None  # what must be there before the first start
    jobs: bool = False  # whether it takes --jobs
    longest: float = 1.5  # seconds until the latest kill at any time


def trained_runs(folder: Path) -> dict[str, Any]:
    """Weights, rounds and files of all runs in a folder."""
    runs = sorted(path.parent for path in folder.rglob("plan.toml"))
    return {str(run.relative_to(folder)): (*outcome(run), hash_files(run)) for run in runs}


def hash_files(run: Path) -> dict[str, str]:
    found = [path for pattern in KEPT for path in run.glob(pattern) if path.is_file() and path.suffix != ".tmp"]
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(found)}


def read_unmeasured(path: Path) -> object:
    """JSON without how long things took and how much memory, and without checksums of files that tell it."""
    return unmeasured(json.loads(path.read_text()))


def unmeasured(value: object) -> object:
    if isinstance(value, dict):
        return {key: unmeasured(inner) for key, inner in value.items() if not is_measured(key)}
    return [unmeasured(inner) for inner in value] if isinstance(value, list) else value


def is_measured(key: str) -> bool:
    return "seconds" in key or key in ("sha256", "rounds_sha256", "peak_memory_bytes")
