"""Recipes of `fedptr reproduce` at their smallest scale; the table must be the same."""

from __future__ import annotations

from pathlib import Path

from soak.kinds import Kind, read_unmeasured, trained_runs

CASES = ["figure5", "table7", "controls", "sweep-m"]


def command(case: str, folder: Path) -> list[str]:
    return ["reproduce", case, "--scale", "smoke", "--seeds", "1", "--out", str(folder)]


def result(folder: Path) -> object:
    (told,) = folder.glob("*/reproduce.json")
    lines = (told.parent / "table.md").read_text().splitlines()
    return trained_runs(folder), read_unmeasured(told), [line for line in lines if " MB |" not in line]  # with seconds


RECIPES = Kind("reproduce", 0.1, CASES, command, result, jobs=True, longest=5.0)
