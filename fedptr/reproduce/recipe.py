"""A recipe: a table or figure of the paper as rows × columns of plans, with the paper's numbers. One TOML file each.

    [[rows]]      tags = ["cifar10", "a001"]   what the row is about; common.toml says what a tag sets
                  paper = [55.43, …]           the paper's numbers, column by column
    [[columns]]   name, set = {"method.name" = "fedavg"}
                  against = "scaffold"         what its gap is measured against, if not the reference
    [set]         what all columns have in common
    score         what the numbers measure, see scores.py; more_scores = those that get tables of their own besides
    [scales.cpu]  what this scale sets for this recipe alone

A cell's plan is merged from common.toml, the row's tags, the row, what all columns share, the scale, and the column.
The scale `paper` is the paper's size. The other scales are smaller, and every table lists what they reduce.
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
from fedptr.jobs import run_queue
from fedptr.reproduce.scores import SCORES
from fedptr.runs.archive import holds_run
from fedptr.runs.plan import Plan, Tables, check_plan, load_plan
from fedptr.runs.same_run import fingerprint, lineage, settings_affecting
from fedptr.runs.summary import count_averaged, describe_mean
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
    attack: str = ""  # in an audit: the attack whose accuracy the row shows


@dataclass(frozen=True)
class Recipe:
    name: str
    title: str
    about: str
    kind: str  # table, curves, splits or audit
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    reference: str  # the column that gaps are measured against, if a column does not name another
    plots: tuple[str, ...] = ()  # the fields of a round's record that are drawn
    first_seed: int = 0
    scales: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # what a scale sets for this recipe alone
    only: tuple[str, ...] = ()
    set: Mapping[str, Any] = field(default_factory=dict)  # what all columns share
    scale_about: str = ""  # the size of `cpu` in words, where it is no reduction of the paper's
    rounds: int = 0  # instead of the scale's; 0 = the scale's
    score: str = "accuracy"  # what the numbers measure, one of `scores.SCORES`
    more_scores: tuple[str, ...] = ()  # which get tables of their own besides

    def describe_measure(self, scale: str, words: str = "") -> str:
        """What the numbers measure, in the words of the recipe's score or in others."""
        if self.kind == "audit":
            return "Accuracy of the attack (%), threshold calibrated on one half and scored on the other"
        return (words or SCORES[self.score].words).format(mean=self.describe_averaged(scale))

    def describe_averaged(self, scale: str) -> str:
        """Over which rounds the numbers are averaged."""
        runs = [self.make_plan(row, column, scale, 0).run for row in self.rows for column in self.columns]
        words = describe_mean(count_averaged(run.rounds, run.eval_every) for run in runs)
        return words if all(run.eval_every == 1 for run in runs) else words.replace(" rounds", " evaluated rounds")

    @property
    def highest_heading(self) -> str:
        """The heading above the column with the highest number."""
        return "gives away most" if self.kind == "audit" else "best"

    def make_plan(self, row: Row, column: Column, scale: str, seed: int) -> Plan:
        return check_plan(self.make_tables(row, column, scale, seed))

    def make_tables(self, row: Row, column: Column, scale: str, seed: int) -> Tables:
        """The tables of a cell's plan. Later parts win, so a scale never reduces what a column sets.

        What a scale has for tags is taken in the order of common.toml, in whatever order a row names them.
        """
        known = read_common()
        parts = [*(known["tags"][tag].get("set", {}) for tag in row.tags), row.set, self.set]
        if scale != "paper":
            less = known["scales"][scale]
            parts += [less["set"], *(told for tag, told in less.get("tags", {}).items() if tag in row.tags)]
            parts += [self.scales.get(scale, {})]
        tables: Tables = copy.deepcopy(known["plan"])
        asked = {"run.rounds": self.rounds} if self.rounds else {}
        for part in [*parts, column.set, asked, {"run.seed": seed}]:
            merge_settings(tables, part)
        return tables

    def at_scale(self, scale: str) -> Recipe:
        """The recipe with a title and with rows that say what is run at this scale."""
        less = read_common()["scales"].get(scale, {})
        if self.kind == "splits" or "stand_in" not in less:
            return self
        labels = [", ".join(less["labels"].get(part, part) for part in row.label.split(", ")) for row in self.rows]
        rows = [replace(row, label=label) for row, label in zip(self.rows, labels, strict=True)]
        return replace(self, title=f"{self.title} ({less['stand_in']} instead)", rows=tuple(rows))

    def paper_number(self, row: Row, column: Column) -> float | None:
        return row.paper[self.columns.index(column)]

    def select(self, tags: Iterable[str]) -> Recipe:
        """The recipe with only these rows and columns. A row needs one of the tags of each kind."""
        tags = tuple(tags)
        kinds: dict[str, set[str]] = {}
        names = {column.name for column in self.columns}
        for tag in tags:
            if tag in names:
                kinds.setdefault("column", set()).add(tag)
            elif any(tag in row.tags for row in self.rows):
                kinds.setdefault(read_common()["tags"][tag]["kind"], set()).add(tag)
            else:
                known = [*names, *(t for row in self.rows for t in row.tags)]
                raise unknown_name_error(f"--only {tag}", tag, known, f"a tag or a column of {self.name}")
        wanted = kinds.pop("column", names) | ({self.reference} if tags else set())
        wanted |= {column.against for column in self.columns if column.name in wanted} - {""}
        rows = [row for row in self.rows if all(any(tag in row.tags for tag in kind) for kind in kinds.values())]
        if not rows:
            raise UserError(f"--only {','.join(tags)} leaves no row of {self.name}")
        return self.keep({row.label for row in rows}, wanted, tags)

    def keep(self, rows: Container[str], columns: Container[str], only: tuple[str, ...]) -> Recipe:
        """The recipe with only the rows of these labels and the columns of these names."""
        kept = [number for number, column in enumerate(self.columns) if column.name in columns]
        cut = [replace(row, paper=tuple(row.paper[n] for n in kept)) for row in self.rows if row.label in rows]
        return replace(self, rows=tuple(cut), columns=tuple(self.columns[n] for n in kept), only=only)


def merge_settings(tables: Tables, settings: Mapping[str, Any]) -> None:
    """Puts `section.key = value` into nested tables."""
    for place, value in settings.items():
        *path, key = place.split(".")
        table = tables
        for part in path:
            table = table.setdefault(part, {})
        table[key] = value


def is_comparable(scale: str) -> bool:
    """Whether gaps and order can be compared with the paper's."""
    return bool(read_common()["scales"].get(scale, {}).get("comparable", True))


@functools.cache
def read_common() -> dict[str, Any]:
    """common.toml: what the recipes share."""
    return tomllib.loads((FOLDER / f"{COMMON}.toml").read_text(encoding="utf-8"))


def paper_tables(dataset: str) -> Tables:
    """What the paper sets for a dataset, beside the settings' own defaults; nothing for one that it does not have."""
    known = read_common()
    for tag in known["tags"].values():
        if tag["kind"] == "data" and tag["set"]["data.name"] == dataset:
            tables: Tables = copy.deepcopy(known["plan"])
            merge_settings(tables, tag["set"])
            return tables
    return {}


def recipe_names() -> list[str]:
    """The names of all recipes: tables first, then figures, then the rest."""

    def sort_key(name: str) -> tuple[int, int, str]:
        numbered = re.match(r"(table|figure)(\d+)", name)
        return (("table", "figure").index(numbered[1]), int(numbered[2]), name) if numbered else (2, 0, name)

    return sorted((path.stem for path in FOLDER.glob("*.toml") if path.stem != COMMON), key=sort_key)


def load_recipe(name: str) -> Recipe:
    if name not in recipe_names():
        raise unknown_name_error(name, name, recipe_names(), "a recipe")
    raw = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    columns = tuple(Column(**column) for column in raw.get("columns", ()))
    rows = tuple(
        Row(
            tuple(row["tags"]),
            row.get("label") or make_label(row["tags"]),
            row.get("set", {}),
            paper_numbers(row, columns),
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
        scale_about=raw.get("scale_about", ""),
        score=raw.get("score", "accuracy"),
        more_scores=tuple(raw.get("more_scores", ())),
    )


def paper_numbers(row: Mapping[str, Any], columns: tuple[Column, ...]) -> tuple[float | None, ...]:
    """The paper's numbers by column; None for the columns that the paper does not have."""
    given = [None if value != value else float(value) for value in row.get("paper", ())]
    return (*given, *[None] * (len(columns) - len(given)))


def make_label(tags: Iterable[str]) -> str:
    return ", ".join(read_common()["tags"][tag]["label"] for tag in tags)


@dataclass(frozen=True)
class Cell:
    """One plan of a recipe, with one seed, and the folder of its run."""

    row: Row
    column: Column
    plan: Plan
    folder: Path


def make_cells(recipe: Recipe, scale: str, seeds: int, out: Path) -> Iterator[Cell]:
    """Seed by seed, so that the whole table has numbers early. Recipes that share a plan share its run."""
    for seed in range(recipe.first_seed, recipe.first_seed + seeds):
        for row in recipe.rows:
            for column in recipe.columns:
                plan = recipe.make_plan(row, column, scale, seed)
                yield Cell(row, column, plan, choose_folder(plan, out, exact=recipe.kind == "audit"))


def candidate_folders(recipe: Recipe, scale: str, seeds: int, out: Path) -> Iterator[Path]:
    """All folders that may hold a run of the recipe."""
    for seed in range(recipe.first_seed, recipe.first_seed + seeds):
        for row in recipe.rows:
            for column in recipe.columns:
                yield from own_and_shared_folders(recipe.make_plan(row, column, scale, seed), out)


def choose_folder(plan: Plan, out: Path, exact: bool) -> Path:
    """The folder of a plan's run. Plans that differ only in their number of rounds share it.

    An audit needs the model after exactly its last round (`exact`), so it does not share a longer run. It then uses a
    folder of its own. Earlier versions gave every run its own folder; if that holds a run, it is used.
    """
    own, shared = own_and_shared_folders(plan, out)
    return own if holds_run(own) or (exact and planned_rounds(shared) != plan.run.rounds) else shared


def own_and_shared_folders(plan: Plan, out: Path) -> tuple[Path, Path]:
    """The folder whose name depends on the number of rounds, and the one whose name does not."""
    own, shared = (run_queue.name_run_folder(plan, out, digest) for digest in (fingerprint(plan), lineage(plan)))
    return own, shared


def planned_rounds(folder: Path) -> int | None:
    """The number of rounds in a run folder's plan, if it has one."""
    try:
        return load_plan(folder).run.rounds
    except UserError:
        return None


def longest_plans(wanted: Iterable[Cell]) -> dict[Path, Plan]:
    """The plan to run in each folder: of cells that share it, the one with the most rounds."""
    return run_queue.longest_plans((cell.folder, cell.plan) for cell in wanted)


def find_reductions(recipe: Recipe, scale: str) -> dict[str, tuple[list[Any], list[Any]]]:
    """The settings that the scale changes: setting -> the paper's values and ours, over all cells."""
    changed: dict[str, tuple[list[Any], list[Any]]] = {}
    for row in recipe.rows:
        for column in recipe.columns:
            theirs = settings_affecting(replace(recipe, rounds=0).make_plan(row, column, "paper", 0), "result")
            ours = settings_affecting(recipe.make_plan(row, column, scale, 0), "result")
            for place, value in theirs.items():
                if value != (other := ours.get(place)):
                    before, after = changed.setdefault(place, ([], []))
                    before += [value] if value not in before else []
                    after += [other] if other not in after else []
    return changed
