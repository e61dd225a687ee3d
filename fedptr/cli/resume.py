"""`fedptr resume`: continues a run or a comparison."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedptr.cli.compare import finish_comparison
from fedptr.cli.options import ENGINE_OPTIONS, add_setting_options, whole_number
from fedptr.cli.run import print_summary
from fedptr.errors import UserError
from fedptr.messages import print_notice

if TYPE_CHECKING:
    from fedptr.cli.options import Commands
    from fedptr.runs.plan import Plan


RECOMPUTE = "accept that it is computed another way than it was (another compiler, processor, PyTorch …)"


def add_parser(commands: Commands) -> None:
    words = "continue a run or a comparison that was stopped, or make it longer"
    sub = commands.add_parser("resume", help=words, description=words, allow_abbrev=False)
    sub.add_argument("dir", metavar="DIR", help="its folder")
    more = "continue to this round instead of the last one of the plan; also when it is finished"
    sub.add_argument("--rounds", type=whole_number("--rounds"), metavar="N", help=more)
    sub.add_argument("--recompute", action="store_true", help=RECOMPUTE)
    kept = {
        option: (place, metavar, f"{words}; default: as in its plan")
        for option, (place, metavar, words) in ENGINE_OPTIONS.items()
    }
    add_setting_options(sub, kept)
    sub.set_defaults(handler=resume)


def resume(args: argparse.Namespace) -> int:
    from fedptr.engines.choose_engine import open_engine
    from fedptr.runs import compare as comparing
    from fedptr.runs import runner
    from fedptr.runs.archive import fetch_runs
    from fedptr.runs.divergence import print_divergence
    from fedptr.runs.plan import load_plan
    from fedptr.runs.progress import show_progress
    from fedptr.runs.trained_model import mend_weights

    out = Path(args.dir)
    fetch_runs([out])
    if (out / comparing.ORDER).exists():
        if args.rounds is not None:
            comparing.extend_comparison(out, args.rounds)
        order = comparing.read_comparison(out)
        return finish_comparison(
            {name: [change_engine(plan, args) for plan in plans] for name, plans in order.items()}, out, args.recompute
        )
    if (out / "sweep.json").exists():
        raise UserError(
            f"{out} is a sweep; continue it with the same `fedptr sweep` command, or resume one of its runs"
        )
    plan = change_engine(load_plan(out), args)
    rounds = plan.run.rounds if args.rounds is None else args.rounds
    if done := runner.read_if_finished(out, rounds):
        mend_weights(out, done[0])
        print_notice(f"{out} is finished; there is nothing to do")
        print_divergence(done[0])
        return print_summary(done[0], out)
    if (out / "deploy.toml").exists():  # its clients are elsewhere
        if rounds != plan.run.rounds:
            words = "its nodes choose how to compute by the number of rounds; start a new one with `fedptr deploy run`"
            raise UserError(f"{out} is a deployed run, and keeps its {plan.run.rounds} rounds: {words}")
        if args.recompute:
            raise UserError(f"{out} is a deployed run: set deploy.recompute = true in {out / 'deploy.toml'} instead")
        from fedptr.cli.deploy import continue_deployed

        return continue_deployed(out)
    with show_progress(plan.method.name, rounds, plan.method.quick_rounds) as show:
        summary, _ = runner.resume_run(plan, out, show, open_engine, rounds, args.recompute)
    return print_summary(summary, out)


def change_engine(plan: Plan, args: argparse.Namespace) -> Plan:
    """The plan of a run to resume, on the engine of the options; nothing else can change."""
    from fedptr.cli.plan_options import check_engine_options
    from fedptr.compute.workload import MachinePlan
    from fedptr.settings import build_settings

    chosen = {place.partition(".")[2]: value for place, value in args.assignments}
    plan = replace(plan, machine=build_settings(MachinePlan, {**asdict(plan.machine), **chosen}, "machine"))
    check_engine_options(plan, args)
    return plan
