"""Comparisons of a few methods, with two seeds."""

from __future__ import annotations

from pathlib import Path

from soak.kinds import Kind, read_unmeasured, trained_runs

CASES = ["fedavg,scaffold,fedptr", "fedprox,feddyn,mime", "ditto,moon,fedptr-s", "feddc,fedadam,fedsam"]
SMALL = ("--model", "mlp", "--width", "8", "--batch", "32", "--rounds", "6", "--participation", "0.4", "--seeds", "2")


def command(case: str, folder: Path) -> list[str]:
    if (folder / "compare.toml").exists():
        return ["resume", str(folder)]
    return ["compare", "--methods", case, *SMALL, "--set", "machine.threads=1", "--out", str(folder), "--force"]


def result(folder: Path) -> object:
    return trained_runs(folder), read_unmeasured(folder / "compare.json")


COMPARISONS = Kind("compare", 0.15, CASES, command, result, longest=4.0)
