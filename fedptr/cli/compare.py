"""`fedptr compare`: trains several methods under the same conditions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedptr.cli.completion import complete_method_list, with_completer
from fedptr.cli.options import (
    DATA_OPTIONS,
    ENGINE_OPTIONS,
    RUN_OPTIONS,
    add_output_options,
    add_plan_command,
    add_tracker_options,
    whole_number,
)
from fedptr.cli.run import (
    announce_one_shot,
    announce_test_part,
    name_folder,
    tell_of_moved_samples,
    warn_of_large_batch,
)
from fedptr.errors import UserError
from fedptr.messages import print_notice
from fedptr.runs.folder import MOST_SEEDS

if TYPE_CHECKING:
    from fedptr.cli.options import Commands
    from fedptr.runs.plan import Plan


def add_parser(commands: Commands) -> None:
    words = "train several methods under the same conditions"
    sub = add_plan_command(commands, "compare", words, compare, DATA_OPTIONS, RUN_OPTIONS, ENGINE_OPTIONS)
    several = sub.add_argument("--methods", metavar="M,M,…", help="default: the paper's seven")
    with_completer(several, complete_method_list)
    sub.add_argument(
        "--seeds", type=whole_number("--seeds", MOST_SEEDS), default=1, metavar="N", help="repeat with N seeds"
    )
    add_output_options(sub)
    add_tracker_options(sub)


def compare(args: argparse.Namespace) -> int:
    from fedptr.cli.plan_options import build_tables, check_engine_options, print_defaults
    from fedptr.methods import paper_methods
    from fedptr.runs import compare as comparing
    from fedptr.runs import trackers
    from fedptr.runs.experiment import prepare_experiment
    from fedptr.runs.folder import claim_folder, new_folder_name

    names = paper_methods() if args.methods is None else [name.strip() for name in args.methods.split(",")]
    if args.seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {args.seeds}")
    if len(set(names)) < len(names):
        raise UserError("--methods names a method twice; name each once")
    tables = build_tables(args, names)
    plans = comparing.build_plans(tables, names, args.seeds)
    first = next(iter(plans.values()))[0]
    trackers.check_trackers(args.trackers)
    check_engine_options(first, args)
    # Errors in data, split or model are raised before the folder is claimed.
    experiment = prepare_experiment(first)
    out = claim_folder(Path(args.out) if args.out else new_folder_name(name_folder(first, "compare")), args.force)
    print_defaults(args, first)
    announce_test_part(first, experiment)
    announce_one_shot([several[0].method for several in plans.values()])
    warn_of_large_batch(first, experiment)
    tell_of_moved_samples(first, experiment)
    trackers.mark_trackers(out, args.trackers)
    comparing.write_comparison(tables, names, args.seeds, out)
    return finish_comparison(plans, out)


def finish_comparison(plans: dict[str, list[Plan]], out: Path, recompute: bool = False) -> int:
    """Runs the rest of a comparison, and prints its table."""
    from rich.console import Console

    from fedptr.engines.choose_engine import open_shared_engine
    from fedptr.runs import compare as comparing
    from fedptr.runs import comparison_table

    (first, *more), *_ = plans.values()
    with open_shared_engine(first.machine) as shared:
        summaries, failures = comparing.compare_methods(plans, out, shared, recompute)
    conditions = comparing.describe_conditions(comparing.longest_plan(plans))
    Console().print(comparison_table.terminal_table(summaries, 1 + len(more), conditions))
    print(f"curves: {out / 'curves.png'}\nresults: {out}")
    if failures:
        print_notice(
            f"{len(failures)} of {len(plans) * (1 + len(more))} runs failed; {out / 'table.md'} has the reasons"
        )
    return 1 if failures else 0
