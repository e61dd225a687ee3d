"""`fedptr estimate`: what a run will take, before anything is started."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fedptr.cli.options import DATA_OPTIONS, METHOD_OPTION, RUN_OPTIONS, add_plan_command

if TYPE_CHECKING:
    from fedptr.cli.options import Commands
    from fedptr.runs.estimate import RunEstimate


def add_parser(commands: Commands) -> None:
    words = "what a run will take: time, messages, memory, disk"
    sub = add_plan_command(commands, "estimate", words, estimate, METHOD_OPTION, DATA_OPTIONS, RUN_OPTIONS)
    sub.add_argument("--with", dest="combine_with", choices=("ptr",), help="add FedPTR: the method NAME+ptr")


def estimate(args: argparse.Namespace) -> int:
    print("\n".join(build_estimate(args).in_lines()))
    return 0


def build_estimate(args: argparse.Namespace) -> RunEstimate:
    from fedptr.cli.plan_options import build_tables, print_defaults
    from fedptr.runs.estimate import estimate_run
    from fedptr.runs.experiment import prepare_experiment
    from fedptr.runs.plan import check_plan

    plan = check_plan(build_tables(args))
    experiment = prepare_experiment(plan)
    print_defaults(args, plan)
    return estimate_run(plan, experiment)
