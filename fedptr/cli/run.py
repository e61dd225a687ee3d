"""`fedptr run`: trains one method."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedptr.cli.options import (
    DATA_OPTIONS,
    ENGINE_OPTIONS,
    RUN_OPTIONS,
    add_plan_command,
    add_results,
    add_trackers,
)
from fedptr.messages import print_notice

if TYPE_CHECKING:
    from fedptr.cli.options import Commands
    from fedptr.runs.experiment import Experiment
    from fedptr.runs.plan import Plan
    from fedptr.runs.rounds_file import Record


def add_parser(commands: Commands) -> None:
    sub = add_plan_command(commands, "run", "train one method", run, DATA_OPTIONS, RUN_OPTIONS, ENGINE_OPTIONS)
    sub.add_argument("--method", dest="method.name", metavar="M", help="see `fedptr methods`")
    sub.add_argument("--with", dest="combine_with", choices=("ptr",), help="add FedPTR: the method NAME+ptr")
    add_results(sub)
    add_trackers(sub)


def run(args: argparse.Namespace) -> int:
    from fedptr.cli.plan_options import check_engine_options, tables_from
    from fedptr.engines.choose_engine import open_engine
    from fedptr.runs import trackers
    from fedptr.runs.experiment import prepare
    from fedptr.runs.folder import claim_folder, new_folder_name
    from fedptr.runs.plan import check_plan
    from fedptr.runs.progress import progress
    from fedptr.runs.runner import execute

    plan = check_plan(tables_from(args))
    trackers.check_trackers(args.trackers)
    check_engine_options(plan, args)
    experiment = prepare(plan)
    out = claim_folder(Path(args.out) if args.out else new_folder_name(name_folder(plan, plan.method.name)), args.force)
    trackers.mark_trackers(out, args.trackers)
    warn_of_large_batch(plan, experiment)
    with progress(plan.method.name, plan.run.rounds) as show:
        summary, _ = execute(plan, experiment, out, show, open_engine)
    return print_summary(summary, out)


def print_summary(summary: Record, out: Path) -> int:
    """The result of a run, on stdout."""
    print(f"{summary['method']}: accuracy {summary['accuracy']:.2%} (mean of the last five rounds), ", end="")
    print(f"best {summary['accuracy_best']:.2%}, {summary['seconds']:.1f} s")
    if "privacy" in summary:
        promise = summary["privacy"]
        print(f"differential privacy: ε = {promise['epsilon']:.2f}, δ = {promise['delta']:g}; ", end="")
        print(f"protects {promise['protects']}")
    print(f"results: {out}")
    return 0


def warn_of_large_batch(plan: Plan, experiment: Experiment) -> None:
    """The paper's batch size suits tens of thousands of images; with fewer, a round may be one small step."""
    largest = max(experiment.split.sizes)
    if plan.local.batch >= largest:
        print_notice(
            f"note: local.batch is {plan.local.batch} and the largest client has {largest} samples, so an epoch is a "
            "single step; try --batch 32"
        )


def name_folder(plan: Plan, what: str) -> str:
    """What a run's folder is called where nobody says."""
    return f"{what}-{Path(plan.data.name).stem}-seed{plan.run.seed}"
