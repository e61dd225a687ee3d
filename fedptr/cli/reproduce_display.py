"""What `fedptr reproduce` shows: the recipes, and a recipe's table while its cells run."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Column as Heading
from rich.table import Table

from fedptr.jobs.run_queue import Board
from fedptr.messages import format_duration, print_notice
from fedptr.reproduce import tables
from fedptr.reproduce.outcome import as_asked, gather
from fedptr.reproduce.recipe import Cell, Recipe, load, names


def print_recipes() -> None:
    table = Table(Heading("recipe", no_wrap=True), "what", Heading("runs a seed", justify="right"), box=SIMPLE_HEAD)
    for name in names():
        recipe = load(name)
        table.add_row(
            name, recipe.title.partition(": ")[2] or recipe.title, str(len(recipe.rows) * len(recipe.columns))
        )
    Console().print(table)
    print("`fedptr reproduce RECIPE --scale cpu --seeds 3`")


@contextlib.contextmanager
def show_progress(recipe: Recipe, scale: str, seeds: int, wanted: list[Cell]) -> Iterator[Callable[[Board], None]]:
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
