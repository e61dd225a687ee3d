"""A recipe: a table or figure of the paper as rows × columns of plans, with the paper's numbers. One TOML file each.

    [[rows]]      tags = ["cifar10", "a001"]   what the row is about; common.toml says what a tag sets
                  paper = [55.43, …]           the paper's numbers, column by column
    [[columns]]   name, set = {"method.name" = "fedavg"}
                  against = "scaffold"         what its gap is measured against, if not the reference
    [set]         what all columns have in common
    [scales.cpu]  what this scale sets for this recipe alone

A cell's plan is laid together from common.toml, the row's tags, the row, what all columns share, the scale, and the
column: `paper` is the paper's size, the others are reductions, and what they reduce is always said.
"""

from __future__ import annotations

import copy
import functools
import re
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedptr.errors import UserError
from fedptr.runs.plan import Plan, Tables, check_plan, load_plan
from fedptr.runs.same_run import fingerprint, lineage, settings_affecting
from fedptr.settings import unknown_name_error

FOLDER = Path(__file__).parent / "recipes"
COMMON = "common"
SCALES = ("smoke", "cpu", "paper")


@dataclass(frozen=True)
class Column:
    name: str
    set: Mapping[str, Any] = field(default_factory=dict)
    against: str = ""  # the column its gap is measured against; "" = the recipe's reference


@dataclass(frozen=True)
class Row:
    tags: tuple[str, ...]
    label: str
    set: Mapping[str, Any]
    paper: tuple[float | None, ...]
    attack: str = ""  # of an audit: which of its attacks the row is about


@dataclass(frozen=True)
class Recipe:
    name: str
    title: str
    about: str
    kind: str  # table, curves, splits or audit
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    reference: str  # the column that gaps are measured against, if a column does not name another
    plots: tuple[str, ...] = ()  # what of a round is drawn: records' names
    first_seed: int = 0
    scales: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # what a scale sets for this recipe alone
    only: tuple[str, ...] = ()
    set: Mapping[str, Any] = field(default_factory=dict)  # what all columns share
    rounds: int = 0  # asked for instead of the scale's; 0 = as the scale has it

    @property
    def measure(self) -> str:
        """What the numbers are."""
        if self.kind == "audit":
            return "Accuracy of the attack (%), threshold calibrated on one half and scored on the other"
        return "Accuracy (%), mean of the last five rounds"

    @property
    def highest(self) -> str:
        """What the column with the highest number is."""
        return "gives away most" if self.kind == "audit" else "best"

    def plan(self, row: Row, column: Column, scale: str, seed: int) -> Plan:
        return check_plan(self.tables(row, column, scale, seed))

    def tables(self, row: Row, column: Column, scale: str, seed: int) -> Tables:
        """Later ones win, so what a column is about is never reduced."""
        known = common()
        parts = [*(known["tags"][tag].get("set", {}) for tag in row.tags), row.set, self.set]
        if scale != "paper":
            less = known["scales"][scale]
            parts += [less["set"], *(less.get("tags", {}).get(tag, {}) for tag in row.tags)]
            parts += [self.scales.get(scale, {})]
        tables: Tables = copy.deepcopy(known["plan"])
        asked = {"run.rounds": self.rounds} if self.rounds else {}
        for part in [*parts, column.set, asked, {"run.seed": seed}]:
            lay(tables, part)
        return tables

    def paper(self, row: Row, column: Column) -> float | None:
        return row.paper[self.columns.index(column)]

    def narrowed(self, tags: Iterable[str]) -> Recipe:
        """Only the rows and columns asked for: of two tags of a kind either, of two kinds both."""
        tags = tuple(tags)
        kinds: dict[str, set[str]] = {}
        names = {column.name for column in self.columns}
        for tag in tags:
            if tag in names:
                kinds.setdefault("column", set()).add(tag)
            elif any(tag in row.tags for row in self.rows):
                kinds.setdefault(common()["tags"][tag]["kind"], set()).add(tag)
            else:
                known = [*names, *(t for row in self.rows for t in row.tags)]
                raise unknown_name_error(f"--only {tag}", tag, known, f"a tag or a column of {self.name}")
        wanted = kinds.pop("column", names) | ({self.reference} if tags else set())
        wanted |= {column.against for column in self.columns if column.name in wanted} - {""}
        rows = [row for row in self.rows if all(any(tag in row.tags for tag in kind) for kind in kinds.values())]
        if not rows:
            raise UserError(f"--only {','.join(tags)} leaves no row of {self.name}")
        return self.part({row.label for row in rows}, wanted, tags)

    def part(self, rows: Container[str], columns: Container[str], only: tuple[str, ...]) -> Recipe:
        """The rows and columns of these labels and names."""
        keep = [number for number, column in enumerate(self.columns) if column.name in columns]
        cut = [replace(row, paper=tuple(row.paper[n] for n in keep)) for row in self.rows if row.label in rows]
        return replace(self, rows=tuple(cut), columns=tuple(self.columns[n] for n in keep), only=only)


def lay(tables: Tables, settings: Mapping[str, Any]) -> None:
    """Puts `section.key = value` into nested tables."""
    for place, value in settings.items():
        *path, key = place.split(".")
        table = tables
        for part in path:
            table = table.setdefault(part, {})
        table[key] = value


@functools.cache
def common() -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{COMMON}.toml").read_text(encoding="utf-8"))


def names() -> list[str]:
    """Tables first, then figures, then the rest."""

    def order(name: str) -> tuple[int, int, str]:
        numbered = re.match(r"(table|figure)(\d+)", name)
        return (("table", "figure").index(numbered[1]), int(numbered[2]), name) if numbered else (2, 0, name)

    return sorted((path.stem for path in FOLDER.glob("*.toml") if path.stem != COMMON), key=order)


def load(name: str) -> Recipe:
    if name not in names():
        raise unknown_name_error(name, name, names(), "a recipe")
    raw = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    columns = tuple(Column(**column) for column in raw.get("columns", ()))
    rows = tuple(
        Row(
            tuple(row["tags"]),
            row.get("label") or label(row["tags"]),
            row.get("set", {}),
            numbers(row, columns),
            row.get("attack", ""),
        )
        for row in raw["rows"]
    )
    return Recipe(
        name,
        raw["title"],
        raw["about"],
        raw.get("kind", "table"),
        rows,
        columns,
        raw.get("reference") or (columns[0].name if columns else ""),
        tuple(raw.get("plots", ())),
        raw.get("first_seed", 0),
        raw.get("scales", {}),
        set=raw.get("set", {}),
    )


def numbers(row: Mapping[str, Any], columns: tuple[Column, ...]) -> tuple[float | None, ...]:
    """The paper's numbers; the columns beyond them are ours alone."""
    given = [None if value != value else float(value) for value in row.get("paper", ())]
    return (*given, *[None] * (len(columns) - len(given)))


def label(tags: Iterable[str]) -> str:
    return ", ".join(common()["tags"][tag]["label"] for tag in tags)


@dataclass(frozen=True)
class Cell:
    """One plan of a recipe, with one seed, and where its run is kept."""

    row: Row
    column: Column
    plan: Plan
    folder: Path


def cells(recipe: Recipe, scale: str, seeds: int, out: Path) -> Iterator[Cell]:
    """Seed by seed, so that a first look at the whole comes early. Recipes that share a plan share its run."""
    for seed in range(recipe.first_seed, recipe.first_seed + seeds):
        for row in recipe.rows:
            for column in recipe.columns:
                plan = recipe.plan(row, column, scale, seed)
                yield Cell(row, column, plan, place(plan, out, exact=recipe.kind == "audit"))


def candidate_folders(recipe: Recipe, scale: str, seeds: int, out: Path) -> Iterator[Path]:
    """All folders in which a run of the recipe may be."""
    for seed in range(recipe.first_seed, recipe.first_seed + seeds):
        for row in recipe.rows:
            for column in recipe.columns:
                yield from own_and_shared(recipe.plan(row, column, scale, seed), out)


def place(plan: Plan, out: Path, exact: bool) -> Path:
    """The folder of a plan's run, which plans of more or fewer rounds share.

    An audit wants the model as it is after its own last round (`exact`), so it shares no longer run. Its folder then
    has a name of its own, as had every run of earlier versions; where there is one it is used.
    """
    own, shared = own_and_shared(plan, out)
    return own if own.exists() or (exact and rounds_in(shared) != plan.run.rounds) else shared


def own_and_shared(plan: Plan, out: Path) -> tuple[Path, Path]:
    """The folder that tells the number of rounds, and the one that does not."""

    def named(told: str) -> Path:
        return out / "runs" / f"{plan.method.name}-{Path(plan.data.name).stem}-{told}" / f"seed{plan.run.seed}"

    return named(fingerprint(plan)), named(lineage(plan))


def rounds_in(folder: Path) -> int | None:
    """What the plan in a run folder asks for, if there is one."""
    try:
        return load_plan(folder).run.rounds
    except UserError:
        return None


def longest(wanted: Iterable[Cell]) -> dict[Path, Plan]:
    """What is to be run: of cells that share a folder the plan with the most rounds, which has the others in it."""
    plans: dict[Path, Plan] = {}
    for cell in wanted:
        if cell.folder not in plans or cell.plan.run.rounds > plans[cell.folder].run.rounds:
            plans[cell.folder] = cell.plan
    return plans


def reduced(recipe: Recipe, scale: str) -> dict[str, tuple[list[Any], list[Any]]]:
    """What the scale changes: setting -> the paper's values and ours, over all cells."""
    changed: dict[str, tuple[list[Any], list[Any]]] = {}
    for row in recipe.rows:
        for column in recipe.columns:
            theirs = settings_affecting(replace(recipe, rounds=0).plan(row, column, "paper", 0), "result")
            ours = settings_affecting(recipe.plan(row, column, scale, 0), "result")
            for place, value in theirs.items():
                if value != (other := ours.get(place)):
                    before, after = changed.setdefault(place, ([], []))
                    before += [value] if value not in before else []
                    after += [other] if other not in after else []
    return changed
