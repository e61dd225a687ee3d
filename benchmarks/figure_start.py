"""`fedptr --help` answers without importing torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from results import Goal, Row, row
from scale import Scale
from timing import interleaved, ratios

HELP = ["-m", "fedptr", "--help"]


def run(*arguments: str) -> str:
    """Runs Python and gives back what it printed as errors."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True).stderr


def figures(scale: Scale) -> Iterator[Row]:
    imported = {line.rpartition("|")[2].strip() for line in run("-X", "importtime", *HELP).splitlines()}
    yield row("fedptr --help: imports of torch", "none", [float("torch" in imported)], "", Goal("=", 0))
    times = interleaved({"help": lambda: run(*HELP), "pass": lambda: run("-c", "pass")}, scale.repeats)
    yield row("fedptr --help: time", "python -c pass", ratios(times, "help", "pass"), times=times)
