"""Whether two runs came to the same, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import torch


def same(a: list[torch.Tensor], b: list[torch.Tensor], still: bool = False) -> bool:
    """Bit for bit, and not broken; nor at rest, unless the global model may be still."""
    assert all(bool(w.isfinite().all()) for w in a)
    assert still or not torch.equal(a[0], a[-1]), "nothing was trained"
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def equal(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    return a == b


def untimed(record: object) -> object:
    """A round's record without how long things took."""
    if isinstance(record, dict):
        return {key: untimed(value) for key, value in record.items() if key != "seconds"}
    return [untimed(item) for item in record] if isinstance(record, list) else record


def outcome(folder: Path) -> tuple[str, list[object]]:
    """The weights' hash and the rounds of a finished run."""
    summary = json.loads((folder / "summary.json").read_text())
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return summary["weights_sha256"], [untimed(json.loads(line)) for line in lines]
