"""`fedptr run`: trains one method."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from fedptr.cli.import_at_once import importing
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
    from collections.abc import Sequence

    from fedptr.cli.options import Commands
    from fedptr.core.method import Method
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
    with importing():
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
    announce_model_parts(plan, experiment)
    announce_one_shot([plan.method])
    warn_of_large_batch(plan, experiment)
    tell_of_moved_samples(plan, experiment)
    announce_cost(plan, experiment)
    with show_progress(plan.method.name, plan.run.rounds, plan.method.quick_rounds) as show:
        summary, _ = start_run(plan, experiment, out, show, open_engine)
    return print_summary(summary, out)


def print_summary(summary: Record, out: Path) -> int:
    """Prints the result of a run on stdout."""
    from fedptr.headline import find_headline
    from fedptr.runs.summary import LAST, describe_mean, describe_tested

    headline = find_headline(summary)
    averaged = summary.get(
        f"{headline.key}_rounds", min(LAST, summary["rounds"])
    )  # runs of early versions did not tell
    when = "after one round" if summary["rounds"] == 1 else describe_mean([averaged])
    how = ", ".join(filter(None, [when, describe_tested(summary)]))
    print(f"{summary['method']}: {headline.words} {headline.write(summary[headline.key])} ({how}), ", end="")
    print(f"best {headline.write(summary[f'{headline.key}_best'])}, {summary['seconds']:.1f} s")
    if "mae_final" in summary:
        errors = f"mean absolute {summary['mae_final']:.4g}, root mean square {summary['mse_final'] ** 0.5:.4g}"
        print(f"errors after the last round, in the labels' units: {errors}")
    if early := summary.get("stopped_early"):
        print(f"stopped early after round {early['round']}: {early['reason']}")
    own = "the global model, adapted by each client," if summary.get("personal_adapts") else "their own models"
    scores = {own: "clients_personal", "the global model": "clients_global"}
    known = {words: summary[name] for words, name in scores.items() if name in summary}
    if known:
        parts = (f"{words} {s['weighted']:.2%} (worst client {s['worst']:.2%})" for words, s in known.items())
        print(f"on the clients' own test data: {', '.join(parts)}")
    known = {words: summary[f"{name}_loss"] for words, name in scores.items() if f"{name}_loss" in summary}
    if known:
        parts = (f"{words} {s['weighted']:.3f} (worst client {s['worst']:.3f})" for words, s in known.items())
        print(f"loss on the clients' own test data: {', '.join(parts)}")
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


def announce_model_parts(plan: Plan, experiment: Experiment) -> None:
    """Says where the first weights are from, and what is not trained or not shared."""
    from fedptr.core.model_parts import is_meant, list_names

    task = experiment.task
    if plan.model.init:
        kept = [name for name, _ in task.model.named_parameters() if is_meant(name, plan.model.init_except)]
        but = f", except {list_names(kept)}, which start random" if kept else ""
        print_notice(f"the model starts from {plan.model.init}{but}")
    frozen, numbers = [name for name in task.held if name not in task.own_names], task.joint.layers[-1].stop
    if frozen:
        print_notice(f"frozen: {list_names(frozen)}; {numbers} numbers are trained")
    if task.own_names:
        sent = f"{task.layers[-1].stop} of {numbers} numbers are shared"
        print_notice(f"kept by each client: {list_names(task.own_names)}; {sent}")


def announce_one_shot(chosen: Sequence[Method]) -> None:
    """Says which methods have one round, however many were asked for."""
    if names := [method.name for method in chosen if method.one_shot]:
        whose = "its clients are asked once, and its run has" if len(names) == 1 else "their runs have"
        print_notice(f"{' and '.join(names)}: one-shot, so {whose} one round")


def announce_cost(plan: Plan, experiment: Experiment) -> None:
    """Says of a run of more than a minute in this process what it will take."""
    from fedptr.runs.estimate import estimate_run, takes_long

    if plan.machine.engine == "local" and takes_long(plan, experiment):
        print_notice(estimate_run(plan, experiment).in_words())


def warn_of_large_batch(plan: Plan, experiment: Experiment) -> None:
    """Warns if an epoch is a single step: the paper's batch size suits tens of thousands of images."""
    largest = max(experiment.split.sizes)
    if plan.local.batch >= largest > 1 and not plan.method.sends_sets:
        print_notice(
            f"note: local.batch is {plan.local.batch} and the largest client has {largest} samples, so an epoch is a "
            f"single step; try --batch {min(32, math.ceil(largest / 4))}"
        )


def tell_of_moved_samples(plan: Plan, experiment: Experiment) -> None:
    if moved := experiment.split.moved:
        print_notice(
            f"note: {moved} of {sum(experiment.split.sizes)} samples were moved from the largest clients, so that "
            f"every client has split.min_size = {plan.split.min_size}"
        )


def name_folder(plan: Plan, what: str) -> str:
    """The name of a run's folder if the user gives none."""
    return f"{what}-{Path(plan.data.name).stem}-seed{plan.run.seed}"
