"""`fedptr sweep`: tries several settings, and says which is best on held-out training samples."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedptr.cli.completion import complete_method_list, with_completer
from fedptr.cli.options import (
    DATA_OPTIONS,
    ENGINE_OPTIONS,
    METHOD_OPTION,
    RUN_OPTIONS,
    add_plan_command,
    whole_number,
)
from fedptr.cli.resume import RECOMPUTE
from fedptr.errors import UserError
from fedptr.messages import count_noun, print_notice
from fedptr.runs.folder import MOST_SEEDS

if TYPE_CHECKING:
    from fedptr.cli.options import Commands
    from fedptr.jobs.run_queue import QueueState
    from fedptr.runs.plan import Plan, Tables
    from fedptr.sweep.outcome import Trial

WORDS = "try several settings, and say which is best on held-out training samples"
MOST_SETTINGS = 10_000
PART = 0.2  # of the training samples that are held out, if nobody says otherwise
NAMED = 3  # methods in the name of a folder
ABOUT = f"""{WORDS}. An option with several values, as --lr 0.1,0.03, makes a grid; 0.001..0.1 is a range. The test
set is not looked at: a fifth of the training samples takes its place (data.validation). After a kill or Ctrl-C the same
command continues, and a sweep with more values or seeds takes over what is finished."""


def add_parser(commands: Commands) -> None:
    sub = add_plan_command(commands, "sweep", WORDS, sweep, METHOD_OPTION, DATA_OPTIONS, RUN_OPTIONS, ENGINE_OPTIONS)
    sub.description = ABOUT
    several = sub.add_argument("--methods", metavar="M,M,…", help="several methods, each with all settings it has")
    with_completer(several, complete_method_list)
    sub.add_argument(
        "--seeds", type=whole_number("--seeds", MOST_SEEDS), default=1, metavar="N", help="repeat with N seeds"
    )
    most = MOST_SETTINGS
    sub.add_argument(
        "--random", type=whole_number("--random", most), metavar="N", help="draw N settings of a method, not the grid"
    )
    sub.add_argument(
        "--optuna",
        type=whole_number("--optuna", most),
        metavar="N",
        help="let Optuna's TPE choose N settings of a method (pip install 'fedptr[optuna]')",
    )
    sub.add_argument(
        "--draw-seed", type=whole_number("--draw-seed"), default=0, metavar="S",
        help="seed of --random and --optuna (default 0)",
    )  # fmt: skip
    sub.add_argument(
        "--jobs", type=whole_number("--jobs"), metavar="N", help="runs at a time (default: cores if threads is 1, or 1)"
    )
    sub.add_argument("--recompute", action="store_true", help=RECOMPUTE)
    sub.add_argument("--out", metavar="DIR", help="folder of runs and tables (default runs/sweep-METHOD-DATASET)")


def sweep(args: argparse.Namespace) -> int:
    from rich.console import Console

    from fedptr.cli.plan_options import build_tables, check_engine_options, print_defaults
    from fedptr.engines.choose_engine import open_engine
    from fedptr.runs.compare import describe_conditions
    from fedptr.runs.experiment import prepare_experiment
    from fedptr.runs.plan import check_plan
    from fedptr.sweep.outcome import describe_best
    from fedptr.sweep.run_sweep import Sweep, SweepRunner, claim_sweep_folder, run_sweep, title_of, write_outcome
    from fedptr.sweep.space import describe_axes, make_spaces
    from fedptr.sweep.tables import build_terminal_table

    check_options(args)
    names = choose_methods(args)
    tables = with_validation(build_tables(args, names))
    spaces = make_spaces(tables, names)
    first = spaces[0].plan_at({}, 0)
    seed = check_plan(spaces[0].tables).run.seed
    order = Sweep(spaces, seed, args.seeds, args.random or 0, args.optuna or 0, args.draw_seed)
    out = Path(args.out) if args.out else name_folder(first, [space.plan_at({}, 0).method.name for space in spaces])
    known = order.list_trials(out)  # a grid that is too large, or a range without --random, is refused here
    check_engine_options(first, args)
    for space in spaces:  # errors in data, split or model are raised before anything is written
        prepare_experiment(space.plan_at({}, seed))
    claim_sweep_folder(out)
    print_defaults(args, first)
    for line in describe_axes(spaces):
        print_notice(line)
    if known and not order.optuna:
        print_notice(f"{count_noun(len(known), 'setting')}, {count_noun(args.seeds, 'seed')}; in {out}")
    jobs = args.jobs or choose_jobs(first)
    shown: set[Path] = set()

    def show(trials: Sequence[Trial]) -> contextlib.AbstractContextManager[Callable[[QueueState], None]]:
        return show_sweep(trials, args.seeds, describe_conditions(first), shown)

    runner = SweepRunner(order, out, jobs, show, open_engine, args.recompute)
    outcome = run_sweep(runner)
    conditions = describe_conditions(first)
    write_outcome(outcome, order, conditions, out)
    Console().print(build_terminal_table(outcome, title_of(outcome, conditions)))
    for line in describe_best(outcome):
        print(line)
    print(f"table: {out / 'table.md'} (also .csv and sweep.json)\nscores: {out / 'scores.png'}")
    if outcome.best:
        print(f"next: `fedptr run {out / 'best.toml'}` trains the best on all training samples and tests it")
    lost = [result for result in outcome.results if result.state in ("failed", "diverged")]
    if lost:
        print_notice(f"{len(lost)} of {len(outcome.results)} settings failed or diverged; {out / 'table.md'} says why")
    return 0 if outcome.best else 1


def check_options(args: argparse.Namespace) -> None:
    for name in ("seeds", "random", "optuna", "jobs"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise UserError(f"--{name} must be at least 1, not {getattr(args, name)}")
    if args.draw_seed < 0:
        raise UserError(f"--draw-seed must be at least 0, not {args.draw_seed}")
    if args.random and args.optuna:
        raise UserError("--random and --optuna are two ways to choose settings; use one of them")
    if args.optuna:
        from fedptr.sweep.optuna_search import check_optuna

        check_optuna()


def choose_methods(args: argparse.Namespace) -> list[str]:
    """The methods of --methods, of --method, or of the plan; each may be several. They leave the assignments."""
    from fedptr.methods import find_method
    from fedptr.methods.fedptr import FedPTR
    from fedptr.runs.plan import read_plan

    given = [value for place, value in args.assignments if place == "method.name"]
    if args.methods is not None and given:
        raise UserError("--methods and --method both name methods; use one of them")
    if args.methods is None and not given and args.plan:
        chosen = read_plan(args.plan).get("method", {})
        told = chosen.get("name", FedPTR.name) if isinstance(chosen, dict) else FedPTR.name
        given = [",".join(map(str, told)) if isinstance(told, list) else str(told)]
    text = args.methods if args.methods is not None else given[-1] if given else FedPTR.name
    names = [name.strip() for name in text.strip("[]").replace('"', "").split(",")]
    if len({find_method(name).name for name in names}) < len(names):
        raise UserError("a method is named twice; name each once")
    args.assignments = tuple(pair for pair in args.assignments if pair[0] != "method.name")
    return names


def with_validation(tables: Tables) -> Tables:
    data = tables.get("data", {})
    return {**tables, "data": {"validation": PART, **data}} if isinstance(data, dict) else tables


def choose_jobs(plan: Plan) -> int:
    """A run of one thread leaves the other cores to others."""
    from fedptr.compute.cores import count_cores
    from fedptr.runs.experiment import choose_device

    alone = plan.machine.threads != 1 or plan.machine.engine != "local" or choose_device(plan.machine.device) != "cpu"
    return 1 if alone else count_cores()


def name_folder(plan: Plan, names: Sequence[str]) -> Path:
    """The same for the same methods and dataset, so that the same command continues."""
    told = "-".join(names) if len(names) <= NAMED else f"{len(names)}-methods"
    return Path("runs") / f"sweep-{told}-{Path(plan.data.name).stem}"


def show_sweep(
    trials: Sequence[Trial], seeds: int, conditions: str, printed: set[Path]
) -> contextlib.AbstractContextManager[Callable[[QueueState], None]]:
    from rich.table import Table

    from fedptr.cli.queue_display import show_queue
    from fedptr.runs.rounds_file import Record
    from fedptr.sweep.outcome import collect_results
    from fedptr.sweep.score import read_score
    from fedptr.sweep.tables import build_terminal_table

    names = {folder: trial.name for trial in trials for folder in trial.folders}
    personal = any(trial.plans[0].personalised for trial in trials)

    def make_table(board: QueueState) -> Table:
        return build_terminal_table(collect_results(trials, board, seeds), conditions, board)

    def compute_score(summary: Record, _: list[Record]) -> float:
        return read_score(summary, personal)

    return show_queue(make_table, compute_score, lambda folder: names[folder], printed)
