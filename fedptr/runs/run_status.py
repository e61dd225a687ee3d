"""How far the runs below a folder are, for `fedptr status`. It reads files only, quickly: torch is not imported.

A run is
    finished   its summary has the rounds that its plan asks for, or says that it stopped early; or it is in an archive
    running    a process holds its folder
    failed     its last process wrote down why it failed (failure.txt)
    stopped    none of these: it was stopped or killed, and `fedptr resume` continues it
    waiting    nobody has begun it yet: a comparison or a queue will
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fedptr import regular_files
from fedptr.core.early_stopping import has_enough_rounds
from fedptr.errors import UserError
from fedptr.headline import ACCURACY, HEADLINES, Headline, find_headline
from fedptr.runs.folder import CHECKPOINTS, FAILURE, MOST_SEEDS
from fedptr.runs.lock import NAME as LOCK
from fedptr.runs.lock import is_folder_in_use, read_holder
from fedptr.runs.rounds_file import whole_lines

State = Literal["finished", "running", "failed", "stopped", "waiting"]
STATES: tuple[State, ...] = ("finished", "running", "failed", "stopped", "waiting")
ASIDE = re.compile(r"^\.|\.(damaged|shorter|leftover)\d*$")  # hidden, or renamed by `rename_aside`
RECENT = 10  # rounds from whose seconds the time left is estimated: early ones may be cheaper, e.g. FedPTR's


@dataclass(frozen=True)
class RunStatus:
    folder: Path
    state: State
    method: str = "?"
    round: int = 0
    rounds: int | None = None  # None = its plan cannot be read
    accuracy: float | None = None  # the last one that was measured
    seconds_left: float | None = None  # for what is not done, at the speed of the last rounds
    process: dict[str, Any] | None = None  # pid, host, since; of a running one
    problem: str = ""  # why it failed
    score: str = "accuracy"  # what `accuracy` really is, for tasks that are known by another score


def read_statuses(folder: Path) -> list[RunStatus]:
    """All runs of a folder, or raises where there is none: of a run, a comparison, an audit or a reproduction."""
    found = list_statuses(folder) or list_recipe_statuses(folder)
    if not found and not folder.is_dir():
        raise UserError(f"{folder} does not exist; name the folder of a run, a comparison, an audit or a reproduction")
    if not found:
        raise UserError(f"{folder} holds no run; name the folder of a run, a comparison, an audit or a reproduction")
    return found


def list_statuses(folder: Path) -> list[RunStatus]:
    found = {place: read_status(place) for place in find_run_folders(folder)}
    for place in find_expected_runs(folder):
        found.setdefault(place, RunStatus(place, "waiting", place.parent.name))
    for status in read_archived(folder):
        found.setdefault(status.folder, status)
    return [found[place] for place in sorted(found, key=lambda place: place.parts)]


def list_recipe_statuses(folder: Path) -> list[RunStatus]:
    """The runs of a recipe, which are beside its folder. Until its tables are written, all that are there."""
    tables = parse_json(read_text(folder / "reproduce.json"))
    if not (tables or (folder / LOCK).exists()) or not (folder.parent / "runs").is_dir():
        return []
    found = list_statuses(folder.parent)
    with contextlib.suppress(KeyError, TypeError):
        own = {folder.parent / name for cell in tables["cells"] for name in cell["folders"]}
        return [status for status in found if status.folder in own]
    return found


def find_holders(folder: Path) -> dict[Path, dict[str, Any] | None]:
    """The processes that work on a comparison, an audit or a recipe: on the folder, or on one directly below it."""
    if not folder.is_dir():  # its runs are in an archive
        return {}
    places = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    busy = [place for place in places if is_folder_in_use(place) and not is_run(os.listdir(place))]
    return {place: read_holder(place) for place in busy}


def is_run(files: Iterable[str]) -> bool:
    """Whether a folder with these files is a run's; a plan alone may have been written by hand."""
    names = set(files)
    return "plan.toml" in names and not names.isdisjoint(("rounds.jsonl", "split.json", LOCK, FAILURE))


def find_run_folders(folder: Path) -> Iterator[Path]:
    """The folders of runs, with those of an audit's shadows."""
    for place, below, files in os.walk(folder):
        below[:] = [name for name in below if name != CHECKPOINTS and not ASIDE.search(name)]
        if is_run(files):
            yield Path(place)


def find_expected_runs(folder: Path) -> Iterator[Path]:
    """The runs that a comparison is going to have, begun or not."""
    tables = read_toml(folder / "compare.toml")
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        order, first = tables["compare"], tables.get("run", {}).get("seed", 0)
        for name in order["methods"]:
            if ":" not in name:  # the folder of module:Class has the class's own name for the method
                yield from (folder / name / f"seed{first + k}" for k in range(min(order["seeds"], MOST_SEEDS)))


def read_status(folder: Path) -> RunStatus:
    tables, lines = read_toml(folder / "plan.toml"), whole_lines(folder)
    rounds, method = find_number(tables, "run", "rounds"), tables.get("method", {})
    name = method.get("name") if isinstance(method, dict) else None
    state = find_state(folder, rounds, begun=bool(lines))
    done = len(lines)
    left = None if state in ("finished", "failed") or rounds is None else estimate_seconds(lines, rounds)
    headline, score = find_score(lines)
    return RunStatus(
        folder,
        state,
        str(name or "?"),
        done,
        rounds,
        score,
        left,
        read_holder(folder) if state == "running" else None,
        read_text(folder / FAILURE).strip() if state == "failed" else "",
        headline.key,
    )


def find_state(folder: Path, rounds: int | None, begun: bool) -> State:
    summary = parse_json(read_text(folder / "summary.json"))
    ended = find_number({"": summary}, "", "rounds")
    if ended is not None and rounds is not None and has_enough_rounds(summary, rounds):  # else it is to become longer
        return "finished"
    if is_folder_in_use(folder):
        return "running"
    if (folder / FAILURE).exists():
        return "failed"
    return "stopped" if begun or (folder / LOCK).exists() else "waiting"


def find_score(lines: list[bytes]) -> tuple[Headline, float | None]:
    """The last that was measured: not every round is evaluated."""
    for line in reversed(lines):
        for headline in HEADLINES.values():
            if f'"{headline.test}"'.encode() in line:
                score = parse_json(line).get(headline.test)
                return headline, float(score) if isinstance(score, (int, float)) else None
    return ACCURACY, None


def estimate_seconds(lines: list[bytes], rounds: int) -> float | None:
    """How long the rounds take that are left, from the seconds of the last ones; None where there are none yet."""
    seconds = []
    for line in lines[-RECENT:]:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            seconds.append(float(parse_json(line)["seconds"]["total"]))
    return sum(seconds) / len(seconds) * (rounds - len(lines)) if seconds else None


def read_archived(folder: Path) -> Iterator[RunStatus]:
    """The runs in archives of `fedptr results pack`, below the folder or in its place."""
    if folder.is_dir():
        bases = [path.parent for path in folder.rglob("plans.toml")]  # which is beside archives
    else:
        bases = [base for base in (folder.parent, folder.parent.parent) if (base / "plans.toml").is_file()]
    for path in [path for base in sorted(set(bases)) for path in sorted(base.glob("[!.]*.tar.bz2"))]:
        from fedptr.runs.archive import read_members  # which imports torch

        for run, name, content in read_members(path):
            place = path.parent / run
            if name == "summary.json" and place.is_relative_to(folder):
                told = parse_json(content)
                done = find_number({"": told}, "", "rounds") or 0
                headline = find_headline(told)
                found = RunStatus(place, "finished", str(told.get("method")), done, done)
                yield replace(found, accuracy=told.get(f"{headline.key}_final"), score=headline.key)


def read_text(path: Path) -> str:
    try:
        return regular_files.read_text(path, errors="replace")
    except OSError:
        return ""


def read_toml(path: Path) -> dict[str, Any]:
    """Its tables; none where it cannot be read, or is being written."""
    try:
        return tomllib.loads(read_text(path))
    except (ValueError, RecursionError):
        return {}


def parse_json(text: str | bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def find_number(tables: dict[str, Any], section: str, key: str) -> int | None:
    table = tables.get(section)
    value = table.get(key) if isinstance(table, dict) else None
    return value if type(value) is int else None
