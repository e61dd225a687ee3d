"""`fedptr reproduce`: runs a recipe's cells, shows the table as it fills in, and writes it with the paper's numbers."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Column as Heading
from rich.table import Table

from fedptr.atomic_files import write_text
from fedptr.compute.choose import count_cores
from fedptr.errors import UserError
from fedptr.jobs.run_queue import Board, look, work
from fedptr.messages import format_duration, print_notice
from fedptr.report.find_runs import find
from fedptr.report.page import page
from fedptr.report.recipes import tables as reproduced
from fedptr.reproduce import audit_recipe, figures, tables
from fedptr.reproduce.outcome import Outcome, as_asked, gather
from fedptr.reproduce.recipe import Cell, Recipe, candidate_folders, cells, load, longest, names
from fedptr.reproduce.split_recipe import splits
from fedptr.runs.archive import fetch_runs, unpack_runs
from fedptr.runs.folder import AUDIT
from fedptr.runs.lock import StoppedError, locked
from fedptr.runs.rounds_file import jsonable


def reproduce(args: argparse.Namespace) -> int:
    if args.list or not args.recipe:
        return listing()
    if args.seeds < 1 or args.jobs < 0 or args.rounds < 0:
        raise UserError("--seeds, --jobs and --rounds must be at least 1")
    whole = replace(load(args.recipe), rounds=args.rounds)
    recipe = whole.narrowed(tag.strip() for tag in args.only.split(",")) if args.only else whole
    out = Path(args.out or f"reproduced/{args.scale}")
    if recipe.kind == "splits":
        return splits(recipe, out)
    jobs = args.jobs or (1 if args.scale != "cpu" else count_cores())
    fetch_runs(candidate_folders(recipe, args.scale, args.seeds, out))
    wanted = list(cells(recipe, args.scale, args.seeds, out))
    plans = longest(wanted)
    folder = out / recipe.name
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        with shown(recipe, args.scale, args.seeds, wanted) as show:
            board = look(plans) if args.no_runs else work(plans, jobs, show)
        if recipe.kind == "audit" and not args.no_runs and not board.stopped:
            if (out / AUDIT).is_dir():
                unpack_runs(out / AUDIT)
            audit_recipe.audits(recipe, args.scale, board, jobs, out)
    outcome = judged(recipe, args.scale, args.seeds, wanted, board)
    write(with_before(whole, outcome, board, folder, out) if args.only else outcome, folder, out)
    Console().print(tables.live(outcome, board))
    print(f"table: {folder / 'table.md'} (also .tex, .csv and reproduce.json)\ncurves: {folder / 'curves.png'}")
    if (folder / "report.html").exists():
        print(f"page: {folder / 'report.html'}")
    for path, words in board.failed.items():
        print_notice(f"{path} failed: {words}")
    if board.stopped:
        words = f"stopped with {len(board.done)} of {len(board.plans)} runs finished; the same command goes on"
        raise StoppedError(out, 0, board.stopped, words)
    return 1 if board.failed else 0


def judged(recipe: Recipe, scale: str, seeds: int, wanted: list[Cell], board: Board) -> Outcome:
    outcome = gather(recipe, scale, seeds, wanted, board.runs, board.failed)
    return audit_recipe.attacked(outcome) if recipe.kind == "audit" else outcome


def with_before(whole: Recipe, part: Outcome, board: Board, folder: Path, out: Path) -> Outcome:
    """The part with the rows, columns and seeds that the folder's table has besides, so that nothing goes from it."""
    try:
        before = json.loads((folder / "reproduce.json").read_bytes())
        known = [(str(cell["row"]), str(cell["column"]), len(cell["folders"])) for cell in before["cells"]]
        if before["scale"] != part.scale or not known:
            return part
    except (OSError, ValueError, KeyError, TypeError):
        return part
    rows, columns, counts = (set(values) for values in zip(*known, strict=True))
    rows |= {row.label for row in part.recipe.rows}
    columns |= {column.name for column in part.recipe.columns}
    recipe, seeds = whole.part(rows, columns, part.recipe.only), max(part.seeds, *counts)
    fetch_runs(candidate_folders(recipe, part.scale, seeds, out))
    wanted = list(cells(recipe, part.scale, seeds, out))
    found = look(longest(wanted))
    found.failed = board.failed
    return judged(recipe, part.scale, seeds, wanted, found)


def listing() -> int:
    table = Table(Heading("recipe", no_wrap=True), "what", Heading("runs a seed", justify="right"), box=SIMPLE_HEAD)
    for name in names():
        recipe = load(name)
        table.add_row(
            name, recipe.title.partition(": ")[2] or recipe.title, str(len(recipe.rows) * len(recipe.columns))
        )
    Console().print(table)
    print("`fedptr reproduce RECIPE --scale cpu --seeds 3`")
    return 0


def write(outcome: Outcome, folder: Path, out: Path) -> None:
    audit = outcome.recipe.kind == "audit"
    more = "\n".join(["", *audit_recipe.details(outcome), ""]) if audit else ""
    write_text(folder / "table.md", tables.markdown(outcome) + more)
    write_text(folder / "table.tex", tables.latex(outcome))
    write_text(folder / "table.csv", tables.sheet(outcome))
    write_text(folder / "reproduce.json", json.dumps(jsonable(outcome.jsonable(out)), indent=1) + "\n")
    (audit_recipe if audit else figures).plot(outcome, folder / "curves")
    begun = [path for result in outcome.results.values() for path in result.folders if (path / "rounds.jsonl").exists()]
    if begun:
        write_text(folder / "report.html", page(find(begun)[0], [], reproduced([folder])))


@contextlib.contextmanager
def shown(recipe: Recipe, scale: str, seeds: int, wanted: list[Cell]) -> Iterator[Callable[[Board], None]]:
    """A table that fills in; a line for every finished run where there is no terminal."""

    def table(board: Board) -> Table:
        return tables.live(gather(recipe, scale, seeds, wanted, board.runs, board.failed), board)

    if not sys.stderr.isatty():
        told: set[Path] = set()

        def line(board: Board) -> None:
            for folder in [path for path in (*board.done, *board.failed) if path not in told]:
                told.add(folder)
                plan = board.plans[folder]
                what = board.failed.get(folder)
                what = what or f"{100 * as_asked(plan, *board.done[folder])[0]['accuracy']:.2f} %"
                left = "" if board.left is None else f", {format_duration(board.left)} left"
                counted = f"{len(board.done) + len(board.failed)}/{len(board.plans)}"
                print_notice(f"{counted} {folder.parent.name} seed {plan.run.seed}: {what}{left}")

        yield line
        return
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        last = 0.0

        def refresh(board: Board) -> None:
            nonlocal last
            if time.perf_counter() - last > 0.5:
                live.update(table(board), refresh=True)
                last = time.perf_counter()

        yield refresh
