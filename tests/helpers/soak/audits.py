"""Audits of a small run; what they find, and their shadows, must be the same."""

from __future__ import annotations

import shutil
from pathlib import Path

from audited_runs import QUICK, noise

from soak.kinds import Kind, read_unmeasured, trained_runs
from soak.processes import start_as_user, wait_for

CASES = ["loss,lira", "lira"]
SHADOWS = ("--shadows", "6")


def prepare(case: str, folder: Path) -> None:
    """A copy of the run that is audited, which is trained once, beside its data."""
    base, log = folder.parent / "audited", folder.parent / "log.txt"
    if not (base / "summary.json").exists():
        data = noise(folder.parent / "noise.npz")
        small = ["--method", "fedavg", "--dataset", str(data), "--alpha", "1", *QUICK, "--rounds", "8", "--lr", "0.1"]
        process = start_as_user(["run", *small, "--out", str(base), "--force"], log)
        assert wait_for(process, "the run") == 0, log.read_text()
    shutil.copytree(base, folder)


def command(case: str, folder: Path) -> list[str]:
    return ["audit", str(folder), "--attack", case, *SHADOWS]


def result(folder: Path) -> object:
    return trained_runs(folder), read_unmeasured(folder / "audit" / "audit.json")


AUDITS = Kind("audit", 0.1, CASES, command, result, prepare, jobs=True, longest=4.0)
