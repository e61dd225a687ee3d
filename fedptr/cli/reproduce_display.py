"""What `fedptr reproduce` shows: the recipes, and a recipe's table while its cells run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column as Heading
from rich.table import Table

from fedptr.cli.queue_display import show_queue
from fedptr.jobs.run_queue import QueueState
from fedptr.reproduce import tables
from fedptr.reproduce.outcome import collect_results
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


def show_progress(
    recipe: Recipe, scale: str, seeds: int, wanted: list[Cell]
) -> contextlib.AbstractContextManager[Callable[[QueueState], None]]:
    """Shows a table that fills in, or, without a terminal, a line for every finished run."""
    score = SCORES[recipe.score].compute

    def make_table(board: QueueState) -> Table:
        return tables.build_live_table(collect_results(recipe, scale, seeds, wanted, board.runs, board.failed), board)

    return show_queue(
        make_table, lambda summary, records: 100 * score(summary, records), lambda folder: folder.parent.name
    )
