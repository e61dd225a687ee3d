"""`fedptr partition`: shows a split, and saves it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedptr.cli.options import DATA_OPTIONS, add_plan_command
from fedptr.errors import UserError

if TYPE_CHECKING:
    from fedptr.cli.options import Commands


def add_parser(commands: Commands) -> None:
    sub = add_plan_command(commands, "partition", "show a split, and save it", partition, DATA_OPTIONS)
    sub.add_argument("--out", metavar="FILE", help="save the split here, with a plot beside it")
    sub.add_argument("--force", action="store_true", help="replace an existing file")


def partition(args: argparse.Namespace) -> int:
    from rich.console import Console

    from fedptr.cli.plan_options import build_tables
    from fedptr.data.split_plot import plot_split
    from fedptr.data.split_table import build_split_table
    from fedptr.runs.experiment import draw_split, load_data
    from fedptr.runs.plan import check_plan

    path = Path(args.out) if args.out else None
    if path and path.suffix != ".json":
        raise UserError(f"--out {path} must end in .json; the plots go beside it as .png and .svg")
    for taken in [path.with_suffix(suffix) for suffix in (".json", ".png", ".svg")] if path else []:
        if taken.exists() and not args.force:
            raise UserError(f"{taken} exists; choose another --out, or add --force to replace it")
    plan = check_plan(build_tables(args))
    dataset = load_data(plan.data)
    split = draw_split(plan, dataset)
    groups = dataset.label_groups()
    Console().print(build_split_table(split, groups.train, groups.names))
    if split.tests:
        sizes, shared = split.tests.sizes, split.tests.shared
        print(
            f"test sets ({split.tests.kind}): {min(sizes)} to {max(sizes)} samples a client, {sum(sizes)} in all",
            end="",
        )
        print(f"; {shared} belong to more than one client" if shared else "")
    if path:
        split.save(path)
        counts = split.counts(groups.train, len(groups.names))
        png, _ = plot_split(counts, groups.names, f"{dataset.name}, {split.origin}", path.with_suffix(""))
        print(f"split: {path} (use it with --split)\nplot: {png}")
    return 0
