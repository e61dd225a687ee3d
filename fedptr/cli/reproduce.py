"""`fedptr reproduce`: runs a table or figure of the paper, and shows it with the paper's numbers."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedptr.cli.completion import complete_recipes, with_completer
from fedptr.cli.options import whole_number
from fedptr.cli.resume import RECOMPUTE
from fedptr.errors import UserError
from fedptr.messages import print_notice
from fedptr.runs.folder import MOST_SEEDS
from fedptr.runs.lock import StoppedError

if TYPE_CHECKING:
    from fedptr.cli.options import Commands
    from fedptr.reproduce.outcome import Outcome


def add_parser(commands: Commands) -> None:
    sub = commands.add_parser("reproduce", help="run a table or figure of the paper by name", allow_abbrev=False)
    recipe = sub.add_argument("recipe", nargs="?", metavar="RECIPE", help="table1 … figure6, a sweep; see --list")
    with_completer(recipe, complete_recipes)
    sub.add_argument("--list", action="store_true", help="list the recipes")
    sub.add_argument("--only", metavar="TAG,TAG,…", help="rows and columns: cifar10, a001, p100, fedavg …")
    sub.add_argument("--scale", choices=("smoke", "cpu", "paper"), default="cpu", help="size")
    sub.add_argument(
        "--seeds", type=whole_number("--seeds", MOST_SEEDS), default=3, metavar="N", help="repeat with N seeds"
    )
    sub.add_argument(
        "--rounds",
        type=whole_number("--rounds"),
        default=0,
        metavar="T",
        help="rounds instead of the scale's; can be raised later",
    )
    sub.add_argument(
        "--jobs", type=whole_number("--jobs"), default=0, metavar="N", help="runs at a time (default: cores, or 1)"
    )
    sub.add_argument("--recompute", action="store_true", help=RECOMPUTE)
    sub.add_argument("--no-runs", action="store_true", help="write the tables of the finished runs, and start nothing")
    sub.add_argument("--out", metavar="DIR", help="folder of runs and tables (default reproduced/SCALE)")
    sub.set_defaults(handler=reproduce)


def reproduce(args: argparse.Namespace) -> int:
    from rich.console import Console

    from fedptr.cli.reproduce_display import print_recipes, show_progress
    from fedptr.compute.cores import count_cores
    from fedptr.reproduce import tables
    from fedptr.reproduce.recipe import load_recipe
    from fedptr.reproduce.run_recipe import fetch_cells, gather_outcome, run_cells, with_earlier_cells, write_outcome
    from fedptr.reproduce.split_recipe import build_splits_table, compare_splits, write_splits

    if args.list or not args.recipe:
        print_recipes()
        return 0
    if args.seeds < 1 or args.jobs < 0 or args.rounds < 0:
        raise UserError("--seeds, --jobs and --rounds must be at least 1")
    whole = replace(load_recipe(args.recipe), rounds=args.rounds).at_scale(args.scale)
    recipe = whole.select(tag.strip() for tag in args.only.split(",")) if args.only else whole
    out = Path(args.out or f"reproduced/{args.scale}")
    folder = out / recipe.name
    if recipe.kind == "splits":
        found = compare_splits(recipe)
        write_splits(recipe, found, folder)
        Console().print(build_splits_table(recipe, found))
        print(f"table: {folder / 'table.md'}")
        return 0
    jobs = 0 if args.no_runs else args.jobs or (1 if args.scale != "cpu" else count_cores())
    wanted = fetch_cells(recipe, args.scale, args.seeds, out)
    progress = show_progress(recipe, args.scale, args.seeds, wanted)
    board = run_cells(recipe, args.scale, wanted, jobs, out, progress, args.recompute)
    outcome = gather_outcome(recipe, args.scale, args.seeds, wanted, board)
    kept = with_earlier_cells(whole, outcome, board, folder, out) if args.only else outcome
    write_outcome(kept, folder, out)
    write_page(kept, folder)
    Console().print(tables.build_live_table(outcome, board))
    print(f"table: {folder / 'table.md'} (also .tex, .csv and reproduce.json)\ncurves: {folder / 'curves.png'}")
    if (folder / "report.html").exists():
        print(f"page: {folder / 'report.html'}")
    for path, words in board.failed.items():
        print_notice(f"{path} failed: {words}")
    if any("--recompute" in words for words in board.failed.values()):
        print_notice("the same command with --recompute accepts another way of computing for all these runs")
    if board.stopped:
        words = f"stopped with {len(board.done)} of {len(board.plans)} runs finished; run the same command to continue"
        raise StoppedError(out, 0, board.stopped, words)
    return 1 if board.failed else 0


def write_page(outcome: Outcome, folder: Path) -> None:
    """Writes report.html, about the runs that have started."""
    from fedptr.atomic_files import write_text
    from fedptr.report.find_runs import find_runs
    from fedptr.report.page import build_page
    from fedptr.report.recipe_section import load_tables

    started = [
        path for result in outcome.results.values() for path in result.folders if (path / "rounds.jsonl").exists()
    ]
    if started:
        write_text(folder / "report.html", build_page(find_runs(started)[0], [], load_tables([folder])))
