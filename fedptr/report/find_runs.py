"""Finds the runs below some folders: finished or not, in folders or in archives."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedptr.atomic_files import DamagedFileError
from fedptr.core.early_stopping import STOPPED, has_enough_rounds
from fedptr.errors import UserError
from fedptr.regular_files import read_text
from fedptr.report import recipe_section
from fedptr.runs import summary as summaries
from fedptr.runs.archive import archive_of, extract_runs, holds_run, list_archives
from fedptr.runs.final_weights import describe_damage
from fedptr.runs.folder import AUDIT, CHECKPOINTS
from fedptr.runs.plan import Plan, load_plan
from fedptr.runs.rounds_file import NAME as ROUNDS
from fedptr.runs.rounds_file import Record, read_records
from fedptr.stats import is_usable_number

PLAN = "plan.toml"


@dataclass(frozen=True, eq=False)
class FoundRun:
    """A run, read from its folder."""

    folder: Path  # as it is shown; it may be packed
    files: Path  # where its files are
    plan: Plan
    text: str  # plan.toml, as it is
    records: list[Record]
    summary: Record | None  # None = unfinished

    @property
    def seeds(self) -> tuple[int, int, int]:
        """The seeds of the run, of the split and of the subset."""
        return self.plan.run.seed, self.plan.split.seed, self.plan.data.seed

    @property
    def state(self) -> str:
        if self.summary is not None:
            early = self.summary.get(STOPPED)
            words = (
                f" early, after round {early.get('round')}: {early.get('reason')}" if isinstance(early, dict) else ""
            )
            return f"finished{words}"
        return f"unfinished, {len(self.records)}/{self.plan.run.rounds} rounds"


def find_runs(folders: Sequence[Path], scratch: Path | None = None) -> tuple[list[FoundRun], list[str]]:
    """All runs below the folders or listed in their reproduce.json, each once, and a sentence about every damaged one.

    `scratch`: runs in archives are unpacked here; without it they are skipped.
    """
    places: dict[Path, tuple[Path, Path]] = {}
    for folder in folders:
        listed = [place for table in recipe_section.load_tables([folder]) for place in table["runs"]]
        packed = unpack_archived_runs(folder, listed, scratch) if scratch else {}
        below = [*walk_runs(folder), *(place for place in packed if place.is_relative_to(folder))]
        known = [place for place in listed if place in packed or is_run(place)]
        here = {place: packed.get(place, place) for place in [*sorted(below, key=lambda place: place.parts), *known]}
        if not here and not folder.exists():
            raise UserError(f"{folder} does not exist; name folders of runs or comparisons")
        if not here and not folder.is_dir():
            raise UserError(f"{folder} is not a folder; name folders of runs or comparisons")
        if not here:
            raise UserError(f"{folder} holds no run (a folder with {PLAN} and {ROUNDS}); name another folder")
        for place, files in here.items():
            places.setdefault(place.resolve(), (place, files))
    runs: list[FoundRun] = []
    problems: list[str] = []
    for place, files in places.values():
        try:
            runs.append(replace(load_run(files), folder=place))
            problems += (words.replace(str(files), str(place)) for words in describe_damage(files, runs[-1].summary))
        except (UserError, DamagedFileError) as error:
            problems.append(f"{place} was left out: {error}".replace(str(files), str(place)))
    if not runs:
        raise UserError(f"none of the {len(problems)} runs found is sound ({problems[0]})")
    return runs, problems


def is_run(folder: Path) -> bool:
    return (folder / PLAN).is_file() and (folder / ROUNDS).is_file()


def walk_runs(folder: Path) -> Iterator[Path]:
    for place, files in walk_folders(folder):
        if PLAN in files and ROUNDS in files:
            yield place


def walk_folders(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Folders and their files, without shadows, checkpoints and hidden folders."""
    for place, below, files in os.walk(folder):
        below[:] = sorted(name for name in below if name not in (AUDIT, CHECKPOINTS) and not name.startswith("."))
        yield Path(place), files


def unpack_archived_runs(folder: Path, listed: Sequence[Path], scratch: Path) -> dict[Path, Path]:
    """Run folder -> where it is now, of all archived runs below the folder or listed that no folder holds."""
    archives = [path for place, _ in walk_folders(folder) for path in list_archives(place)]
    archives += filter(None, map(archive_of, [folder, folder / "seed0", *listed]))
    found: dict[Path, Path] = {}
    for archive in dict.fromkeys(archives):
        base, into = archive.parent, Path(tempfile.mkdtemp(dir=scratch))

        def wanted(run: str, base: Path = base) -> bool:
            place = base / run
            return not holds_run(place) and (place.is_relative_to(folder) or place in listed)

        found |= {base / run: into / run for run in extract_runs(archive, into, wanted)}
    return found


def load_run(folder: Path) -> FoundRun:
    plan = load_plan(folder)
    text = read_text(folder / PLAN, encoding="utf-8-sig")
    summary: Record | None = None
    if (folder / summaries.NAME).exists() and not is_being_extended(folder, plan):
        summary, records = summaries.read_finished(folder)
    else:
        records = read_records(folder)
    check_records(records)
    return FoundRun(folder, folder, plan, text, records, summary)


def is_being_extended(folder: Path, plan: Plan) -> bool:
    """Whether it was finished with fewer rounds than its plan asks for now."""
    try:
        return not has_enough_rounds(summaries.read_once_finished(folder, plan)[0], plan.run.rounds)
    except DamagedFileError:
        return False


def check_records(records: Sequence[Any]) -> None:
    """Raises unless every record has what the report needs."""
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict) or record.get("round") != number:
            raise DamagedFileError(f"line {number} of {ROUNDS} is not of round {number}")
        seconds = record.get("seconds")
        if not isinstance(seconds, dict) or "total" not in seconds or not all(map(is_usable_number, seconds.values())):
            raise DamagedFileError(f"line {number} of {ROUNDS} has no sound seconds")
        if not all(is_usable_number(record.get(name)) for name in ("bytes_up", "bytes_down")):
            raise DamagedFileError(f"line {number} of {ROUNDS} has no sound bytes")
        if not isinstance(record.get("clients"), list):
            raise DamagedFileError(f"line {number} of {ROUNDS} has no sound clients")
