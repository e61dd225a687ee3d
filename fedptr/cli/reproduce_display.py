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

from fedptr.jobs.run_queue import QueueState
from fedptr.messages import format_duration, print_notice
from fedptr.reproduce import tables
from fedptr.reproduce.outcome import collect_results, cut_to_plan
from fedptr.reproduce.recipe import Cell, Recipe, load_recipe, recipe_names
from fedptr.reproduce.scores import SCORES


def print_recipes() -> None:
    table = Table(Heading("recipe", no_wrap=True), "what", Heading("runs a seed", justify="right"), box=SIMPLE_HEAD)
    for name in recipe_names():
        recipe = load_recipe(name)
        table.add_row(
            name, recipe.title.partition(": ")[2] or recipe.title, str(len(recipe.rows) * len(recipe.columns))
        )
    Console().print(table)
    print("`fedptr reproduce RECIPE --scale cpu --seeds 3`")


@contextlib.contextmanager
def show_progress(recipe: Recipe, scale: str, seeds: int, wanted: list[Cell]) -> Iterator[Callable[[QueueState], None]]:
    """Shows a table that fills in, or, without a terminal, a line for every finished run."""

    def make_table(board: QueueState) -> Table:
        return tables.build_live_table(collect_results(recipe, scale, seeds, wanted, board.runs, board.failed), board)

    if not sys.stderr.isatty():
        printed: set[Path] = set()
        score = SCORES[recipe.score].compute

        def print_finished(board: QueueState) -> None:
            for folder in [path for path in (*board.done, *board.failed) if path not in printed]:
                printed.add(folder)
                plan = board.plans[folder]
                what = board.failed.get(folder)
                what = what or f"{100 * score(*cut_to_plan(plan, *board.done[folder])):.2f} %"
                left = "" if board.left is None else f", {format_duration(board.left)} left"
                counted = f"{len(board.done) + len(board.failed)}/{len(board.plans)}"
                print_notice(f"{counted} {folder.parent.name} seed {plan.run.seed}: {what}{left}")

        yield print_finished
        return
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        last = 0.0

        def refresh(board: QueueState) -> None:
            nonlocal last
            if time.perf_counter() - last > 0.5:
                live.update(make_table(board), refresh=True)
                last = time.perf_counter()

        yield refresh
