"""Where a kill hit, judged by what the process left in its folder."""

from __future__ import annotations

import os
from pathlib import Path

from fedptr.runs.rounds_file import whole_lines


def files_below(folder: Path) -> set[str]:
    return {os.path.join(place, name) for place, _, names in os.walk(folder) for name in names}


def temporary(files: set[str]) -> set[str]:
    return {name for name in files if name.endswith(".tmp")}


def count_lines(files: set[str]) -> int:
    """Of all rounds.jsonl among them."""
    return sum(read_bytes(name).count(b"\n") for name in files if name.endswith("/rounds.jsonl"))


def read_bytes(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError:  # it was moved or removed meanwhile
        return b""


def tell_place(folder: Path, before: set[str]) -> str:
    """Of the run that was written to last; `before`: the files that were there when the process was started."""
    files = files_below(folder)
    if new := temporary(files) - before:
        return "within the write of a checkpoint" if any("/checkpoint/" in name for name in new) else "within a write"
    runs = [Path(name).parent for name in files if name.endswith("/plan.toml")]
    if not runs:
        return "before there was a plan"
    run = max(runs, key=newest_change)
    written = read_bytes(str(run / "rounds.jsonl"))
    if written and not written.endswith(b"\n"):
        return "within a line"
    if (run / "summary.json").exists():
        return "after the last round"
    lines = len(whole_lines(run))
    if not lines:
        return "before the first round"
    saved = [int(path.stem.partition("-")[2]) for path in (run / "checkpoint").glob("server-*.safetensors")]
    return "between a line and its checkpoint" if lines > max(saved, default=0) else "between writes"


def newest_change(folder: Path) -> float:
    return max((os.stat(name).st_mtime for name in [folder, *files_below(folder)]), default=0.0)
