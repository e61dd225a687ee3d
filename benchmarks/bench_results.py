"""Rows of the table, and the two files that hold them."""

from __future__ import annotations

import datetime
import json
import math
import operator
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from timing import Times, gemm_speed, quartiles

HERE = Path(__file__).parent
JSON, MARKDOWN = HERE / "results.json", HERE / "RESULTS.md"
SIGNS = {"≥": operator.ge, "≤": operator.le, "<": operator.lt, "=": operator.eq}
Entry = dict[str, Any]  # a figure's rows, with the date, the commit and the machine

INTRODUCTION = """# Benchmarks

Written by `make bench`; the files in this folder say exactly what is measured. Every value is a ratio: within each
repeat, our code, the reference and a float32 matrix product (2048³) run in turns, and the table has the median over
repeats. The spread is the range between the quartiles. A value without a goal is context for the others. Our side
computes a block of images on every core; references run in separate processes, with PyTorch's default settings.
"""


class Goal(NamedTuple):
    """What a value should reach."""

    sign: str
    bound: float


@dataclass(frozen=True)
class Row:
    figure: str
    reference: str
    value: float | None  # None: it could not be measured, and `note` says why
    unit: str
    spread: tuple[float, float] | None = None
    reach: str = ""
    ok: bool | None = None
    gemm: float | None = None  # GFLOP/s of the calibration in the same turns
    note: str = ""
    values: tuple[float, ...] = ()  # one per repeat


def make_row(
    figure: str,
    reference: str,
    values: Sequence[float],
    unit: str = "×",
    goal: Goal | None = None,
    times: Times | None = None,
    note: str = "",
) -> Row:
    median, low, high = quartiles(values)
    return Row(
        figure, reference, median, unit, (low, high),
        reach=f"{goal.sign} {format_value(goal.bound, unit)}" if goal else "",
        ok=SIGNS[goal.sign](median, goal.bound) if goal else None,
        gemm=gemm_speed(times).median if times else None,
        note=note,
        values=tuple(values),
    )  # fmt: skip


def missing_row(figure: str, reference: str, why: object) -> Row:
    return Row(figure, reference, None, "", note=" ".join(str(why).split()))


def make_entry(rows: Sequence[Row], seconds: float) -> Entry:
    return {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "commit": measured_commit(),
        "seconds": round(seconds, 1),
        "machine": describe_machine(),
        "rows": [asdict(r) for r in rows],
    }


def measured_commit() -> str:
    """The commit that was measured, with a + if files differ from it."""
    try:
        command = ["git", "-C", str(HERE), "describe", "--always", "--exclude=*", "--dirty=+"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def describe_machine() -> dict[str, str]:
    return {
        "CPU": cpu_name(),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "torch": torch.__version__,
    }


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def read_results(path: Path = JSON) -> dict[str, Entry]:
    """The figures measured so far; those that are not measured again are kept."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_results(figures: dict[str, Entry], json_path: Path = JSON, markdown_path: Path = MARKDOWN) -> None:
    json_path.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    markdown_path.write_text(results_markdown(figures), encoding="utf-8")


def results_markdown(figures: dict[str, Entry]) -> str:
    """A table per machine and commit; usually that is one table."""
    lines = [INTRODUCTION]
    places: dict[str, list[Entry]] = {}
    for name in figures:
        found = figures[name]
        place = ", ".join(f"{key} {value}" for key, value in found["machine"].items())
        places.setdefault(f"Commit {found['commit']} on {place}.", []).append(found)
    for place, entries in places.items():
        lines += [place, ""]
        lines += ["| figure | reference | measured | spread | goal | reached | GEMM, GFLOP/s | date | note |"]
        lines += ["|---|---|---:|---:|---:|---|---:|---|---|"]
        lines += [row_markdown(Row(**r), found["date"][:10]) for found in entries for r in found["rows"]]
        lines += [""]
    return "\n".join(lines)


def row_markdown(r: Row, date: str) -> str:
    value = "not measured" if r.value is None else format_value(r.value, r.unit)
    between = "" if r.spread is None else " – ".join(format_value(end, r.unit) for end in r.spread)
    mark = {True: "yes", False: "**no**", None: ""}[r.ok]
    calibration = "" if r.gemm is None else f"{r.gemm:.0f}"
    cells = [r.figure, r.reference, value, between, r.reach, mark, calibration, date, r.note]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def format_value(value: float, unit: str) -> str:
    """
    >>> format_value(2.5, "×"), format_value(75, "%"), format_value(3.2e-10, ""), format_value(0, " imports")
    ('2.5×', '75%', '3.2e-10', '0 imports')
    """
    if value == 0 or not math.isfinite(value) or 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}{unit}"
    return f"{value:.1e}{unit}"
