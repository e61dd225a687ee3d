"""Recipes at their smallest scale."""

from __future__ import annotations

from pathlib import Path

from fedptr.cli.main import main


def smoke(name: str, out: Path, *more: str) -> int:
    """A recipe at the smallest scale, from the command line."""
    return main(["reproduce", name, "--scale", "smoke", "--out", str(out), *more])
