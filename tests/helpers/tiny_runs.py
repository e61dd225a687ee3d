"""Runs of a second or two from the command line, and how far they are."""

from __future__ import annotations

from pathlib import Path

# The paper's settings with a tiny model.
MLP = ["--preset", "paper", "--model", "mlp", "--width", "8"]
# Five of ten clients a round.
HALF = ["--model", "mlp", "--width", "8", "--batch", "32", "--participation", "0.5", "--set", "machine.threads=1"]


def rounds_written(out: Path) -> int:
    try:
        return (out / "rounds.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0
