"""`fedptr run`: trains one method."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedptr.cli.options import (
    DATA_OPTIONS,
    ENGINE_OPTIONS,
    METHOD_OPTION,
    RUN_OPTIONS,
    add_output_options,
    add_plan_command,
    add_tracker_options,
)
from fedptr.messages import print_notice

if TYPE_CHECKING:
    from fedptr.cli.options import Commands
    from fedptr.runs.experiment import Experiment
    from fedptr.runs.plan import Plan
    from fedptr.runs.rounds_file import Record


def add_parser(commands: Commands) -> None:
    sub = add_plan_command(
        commands, "run", "train one method", run, METHOD_OPTION, DATA_OPTIONS, RUN_OPTIONS, ENGINE_OPTIONS
    )
    sub.add_argument("--with", dest="combine_with", choices=("ptr",), help="add FedPTR: the method NAME+ptr")
    add_output_options(sub)
    add_tracker_options(sub)


def run(args: argparse.Namespace) -> int:
    from fedptr.cli.plan_options import build_tables, check_engine_options, print_defaults
    from fedptr.engines.choose_engine import open_engine
    from fedptr.runs import trackers
    from fedptr.runs.experiment import prepare_experiment
    from fedptr.runs.folder import claim_folder, new_folder_name
    from fedptr.runs.plan import check_plan
    from fedptr.runs.progress import show_progress
    from fedptr.runs.runner import start_run

    plan = check_plan(build_tables(args))
    trackers.check_trackers(args.trackers)
    check_engine_options(plan, args)
    experiment = prepare_experiment(plan)
    out = claim_folder(Path(args.out) if args.out else new_folder_name(name_folder(plan, plan.method.name)), args.force)
    trackers.mark_trackers(out, args.trackers)
    print_defaults(args, plan)
    announce_test_part(plan, experiment)
    warn_of_large_batch(plan, experiment)
    with show_progress(plan.method.name, plan.run.rounds, plan.method.quick_rounds) as show:
        summary, _ = start_run(plan, experiment, out, show, open_engine)
    return print_summary(summary, out)


def print_summary(summary: Record, out: Path) -> int:
    """Prints the result of a run on stdout."""
    from fedptr.runs.summary import LAST, describe_mean, describe_tested

    averaged = summary.get("accuracy_rounds", min(LAST, summary["rounds"]))  # runs of early versions did not tell
    when = "after one round" if summary["rounds"] == 1 else describe_mean([averaged])
    how = ", ".join(filter(None, [when, describe_tested(summary)]))
    print(f"{summary['method']}: accuracy {summary['accuracy']:.2%} ({how}), ", end="")
    print(f"best {summary['accuracy_best']:.2%}, {summary['seconds']:.1f} s")
    scores = {"their own models": "clients_personal", "the global model": "clients_global"}
    known = {words: summary[name] for words, name in scores.items() if name in summary}
    if known:
        parts = (f"{words} {s['weighted']:.2%} (worst client {s['worst']:.2%})" for words, s in known.items())
        print(f"on the clients' own test data: {', '.join(parts)}")
    if "privacy" in summary:
        promise = summary["privacy"]
        print(f"differential privacy: ε = {promise['epsilon']:.2f}, δ = {promise['delta']:g}; ", end="")
        print(f"protects {promise['protects']}")
    print(f"results: {out}")
    return 1 if "diverged" in summary else 0  # it was said when the run ended


def announce_test_part(plan: Plan, experiment: Experiment) -> None:
    """Says that a subset of the training images came with one of the test images, if nobody asked for that."""
    if (part := experiment.dataset.describe_test_part()) and not plan.data.subset_test:
        total = len(experiment.dataset.test_y) + experiment.dataset.left_out_tests
        print_notice(f"note: {part}, as many as --subset takes; use all with --set data.subset_test={total}")


def warn_of_large_batch(plan: Plan, experiment: Experiment) -> None:
    """Warns if an epoch is a single step: the paper's batch size suits tens of thousands of images."""
    largest = max(experiment.split.sizes)
    if plan.local.batch >= largest:
        print_notice(
            f"note: local.batch is {plan.local.batch} and the largest client has {largest} samples, so an epoch is a "
            "single step; try --batch 32"
        )


def name_folder(plan: Plan, what: str) -> str:
    """The name of a run's folder if the user gives none."""
    return f"{what}-{Path(plan.data.name).stem}-seed{plan.run.seed}"
