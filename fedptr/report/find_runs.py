"""The run folders below some folders, finished or not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedptr.atomic_files import DamagedFileError
from fedptr.errors import UserError
from fedptr.report import recipes
from fedptr.runs import summary as summaries
from fedptr.runs.folder import AUDIT, CHECKPOINTS
from fedptr.runs.plan import Plan, load_plan
from fedptr.runs.rounds_file import NAME as ROUNDS
from fedptr.runs.rounds_file import Record
from fedptr.stats import is_usable_number

PLAN = "plan.toml"


@dataclass(frozen=True, eq=False)
class Found:
    """A run as its folder tells it."""

    folder: Path
    plan: Plan
    text: str  # plan.toml, as it is
    records: list[Record]
    summary: Record | None  # None = unfinished

    @property
    def seeds(self) -> tuple[int, int, int]:
        """What tells a repetition from another: of the run, of the split, and of the subset."""
        return self.plan.run.seed, self.plan.split.seed, self.plan.data.seed

    @property
    def state(self) -> str:
        if self.summary is not None:
            return "finished"
        return f"unfinished, {len(self.records)}/{self.plan.run.rounds} rounds"


def find(folders: Sequence[Path]) -> tuple[list[Found], list[str]]:
    """All runs below the folders or in their reproductions' tables, each once, and a sentence about the damaged."""
    places: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder; name folders of runs or comparisons")
        here = list(walk(folder))
        for table in recipes.tables([folder]):
            here += [place for place in table["runs"] if (place / PLAN).is_file() and (place / ROUNDS).is_file()]
        if not here:
            raise UserError(f"{folder} holds no run (a folder with {PLAN} and {ROUNDS}); name another folder")
        for place in here:
            places.setdefault(place.resolve(), place)
    runs, problems = [], []
    for place in places.values():
        try:
            runs.append(load(place))
        except (UserError, DamagedFileError) as error:
            problems.append(f"{place} was left out: {error}")
    if not runs:
        raise UserError(f"none of the {len(problems)} runs found is sound ({problems[0]})")
    return runs, problems


def walk(folder: Path) -> Iterator[Path]:
    for place, below, files in os.walk(folder):
        below[:] = sorted(name for name in below if name not in (AUDIT, CHECKPOINTS))
        if PLAN in files and ROUNDS in files:
            yield Path(place)


def load(folder: Path) -> Found:
    plan = load_plan(folder)
    text = (folder / PLAN).read_text(encoding="utf-8-sig")
    summary: Record | None = None
    if (folder / summaries.NAME).exists() and not continued(folder, plan):
        summary, records = summaries.finished(folder)
    else:
        records = so_far(folder / ROUNDS)
    check(records)
    return Found(folder, plan, text, records, summary)


def continued(folder: Path, plan: Plan) -> bool:
    """Whether it was finished once, with fewer rounds than it is to have now."""
    try:
        return bool(summaries.once_finished(folder, plan)[0]["rounds"] < plan.run.rounds)
    except DamagedFileError:
        return False


def so_far(path: Path) -> list[Record]:
    """The rounds of a run that is not finished; a last line that a kill cut off does not count."""
    try:
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        return [json.loads(line) for line in whole.splitlines()]
    except OSError as error:
        raise DamagedFileError(f"{path.name} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise DamagedFileError(f"{path.name} is not JSON, a line a round") from None


def check(records: Sequence[Any]) -> None:
    """What everything here counts on; the rest may be missing."""
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
