"""What the sub-commands do."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import typing
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedptr import methods as registry
from fedptr.cli.reflow_docstring import reflow
from fedptr.compute.workload import MachinePlan
from fedptr.core.method import Method
from fedptr.data.sources import SOURCES
from fedptr.engines.choose_engine import check_engine as check_machine
from fedptr.engines.choose_engine import engine, shared_engine
from fedptr.errors import UserError
from fedptr.messages import print_notice
from fedptr.methods.fedptr import FedPTR
from fedptr.runs import plan as planning
from fedptr.runs import trackers
from fedptr.runs.archive import fetch_runs
from fedptr.runs.experiment import Experiment, load_data, prepare
from fedptr.runs.folder import claim, fresh_name
from fedptr.runs.plan import Plan, Tables, load_plan
from fedptr.runs.rounds_file import Record
from fedptr.runs.runner import execute
from fedptr.settings import build_settings, describe_type


def tables_from(args: argparse.Namespace) -> Tables:
    """The plan file's tables with the options and then `--set` laid over them; own paths are made absolute."""
    tables = planning.read(args.plan) if args.plan else {}
    options = [(place, value) for place, value in vars(args).items() if "." in place and value is not None]
    tables = planning.assign(tables, [*options, *assignments(args.assignments)])
    if getattr(args, "beside", None) and isinstance(chosen := tables.setdefault("method", {}), dict):
        chosen["name"] = f"{chosen.get('name', FedPTR.name)}+{args.beside}"
    for section, key in (("data", "name"), ("data", "dir"), ("split", "file")):
        table = tables.get(section)
        value = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict) and isinstance(value, str) and value not in SOURCES and os.path.exists(value):
            table[key] = os.path.abspath(value)  # so that the written plan runs from anywhere
    chosen = tables.get("split")
    if args.plan and isinstance(chosen, dict) and isinstance(name := chosen.get("file"), str) and name:
        beside = Path(args.plan).resolve().parent / name  # where a run folder has its own split
        if not os.path.exists(name) and beside.is_file():
            chosen["file"] = str(beside)
    return tables


def assignments(texts: list[str]) -> Iterator[tuple[str, str]]:
    for text in texts:
        place, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set {text} has no value; write it as section.key=value, e.g. run.rounds=20")
        yield place.strip(), value.strip()


def run(args: argparse.Namespace) -> int:
    from fedptr.runs.progress import progress

    plan = planning.check(tables_from(args))
    trackers.check(args.trackers)
    check_engine(plan, args)
    experiment = prepare(plan)
    out = claim(Path(args.out) if args.out else fresh_name(stem(plan, plan.method.name)), args.force)
    trackers.mark(out, args.trackers)
    hint(plan, experiment)
    with progress(plan.method.name, plan.run.rounds) as show:
        summary, _ = execute(plan, experiment, out, show, engine)
    return tell(summary, out)


def tell(summary: Record, out: Path) -> int:
    """The result of a run, on stdout."""
    print(f"{summary['method']}: accuracy {summary['accuracy']:.2%} (mean of the last five rounds), ", end="")
    print(f"best {summary['accuracy_best']:.2%}, {summary['seconds']:.1f} s")
    if "privacy" in summary:
        promise = summary["privacy"]
        print(f"differential privacy: ε = {promise['epsilon']:.2f}, δ = {promise['delta']:g}; ", end="")
        print(f"protects {promise['protects']}")
    print(f"results: {out}")
    return 0


def resume(args: argparse.Namespace) -> int:
    from fedptr.runs import compare as comparing
    from fedptr.runs import runner
    from fedptr.runs.progress import progress

    out = Path(args.dir)
    fetch_runs([out])
    if (out / comparing.ORDER).exists():
        if args.rounds is not None:
            comparing.lengthen(out, args.rounds)
        order = comparing.read_order(out)
        return tell_comparison({name: [moved(plan, args) for plan in plans] for name, plans in order.items()}, out)
    plan = moved(load_plan(out), args)
    rounds = plan.run.rounds if args.rounds is None else args.rounds
    if done := runner.ended(out, rounds):
        print_notice(f"{out} is finished; there is nothing to do")
        return tell(done[0], out)
    if (out / "deploy.toml").exists():  # its clients are elsewhere
        if rounds != plan.run.rounds:
            words = "its nodes decide by the number of rounds how they compute; start another with `fedptr deploy run`"
            raise UserError(f"{out} is a deployed run, and keeps its {plan.run.rounds} rounds: {words}")
        from fedptr.cli.deploy import go_on

        return go_on(out)
    with progress(plan.method.name, rounds) as show:
        summary, _ = runner.resume(plan, out, show, engine, rounds)
    return tell(summary, out)


def moved(plan: Plan, args: argparse.Namespace) -> Plan:
    """The plan of a run that goes on, perhaps on another engine; nothing else can be changed."""
    chosen = {
        place.partition(".")[2]: value for place, value in vars(args).items() if "." in place and value is not None
    }
    plan = replace(plan, machine=build_settings(MachinePlan, {**asdict(plan.machine), **chosen}, "machine"))
    check_engine(plan, args)
    return plan


def check_engine(plan: Plan, args: argparse.Namespace) -> None:
    if vars(args)["machine.ray_address"] is not None and plan.machine.engine != "ray":
        raise UserError("--ray-address is for --engine ray; add that, or leave the address out")
    check_machine(plan.machine)


def compare(args: argparse.Namespace) -> int:
    from fedptr.runs import compare as comparing

    names = registry.paper_methods() if args.methods is None else [name.strip() for name in args.methods.split(",")]
    if args.seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {args.seeds}")
    if len(set(names)) < len(names):
        raise UserError("--methods names a method twice; name each once")
    tables = tables_from(args)
    plans = comparing.plans(tables, names, args.seeds)
    first = next(iter(plans.values()))[0]
    trackers.check(args.trackers)
    check_engine(first, args)
    experiment = prepare(first)  # whatever is wrong with data, split or model is said before the folder is claimed
    out = claim(Path(args.out) if args.out else fresh_name(stem(first, "compare")), args.force)
    hint(first, experiment)
    trackers.mark(out, args.trackers)
    comparing.write_order(tables, names, args.seeds, out)
    return tell_comparison(plans, out)


def tell_comparison(plans: dict[str, list[Plan]], out: Path) -> int:
    """Runs what is left of a comparison, and shows its table."""
    from fedptr.runs import compare as comparing
    from fedptr.runs import comparison_table

    (first, *more), *_ = plans.values()
    with shared_engine(first.machine) as shared:
        summaries, failures = comparing.compare(plans, out, shared)
    Console().print(comparison_table.terminal(summaries, 1 + len(more), comparing.describe(first)))
    print(f"curves: {out / 'curves.png'}\nresults: {out}")
    if failures:
        print_notice(
            f"{len(failures)} of {len(plans) * (1 + len(more))} runs failed; {out / 'table.md'} has the reasons"
        )
    return 1 if failures else 0


def hint(plan: Plan, experiment: Experiment) -> None:
    """The paper's batch size suits tens of thousands of images; with fewer, a round may be one small step."""
    largest = max(experiment.split.sizes)
    if plan.local.batch >= largest:
        print_notice(
            f"note: local.batch is {plan.local.batch} and the largest client has {largest} samples, so an epoch is a "
            "single step; try --batch 32"
        )


def stem(plan: Plan, what: str) -> str:
    return f"{what}-{Path(plan.data.name).stem}-seed{plan.run.seed}"


def partition(args: argparse.Namespace) -> int:
    from fedptr.data.partition import partition as draw
    from fedptr.data.split_plot import plot_split
    from fedptr.data.split_table import build_split_table

    path = Path(args.out) if args.out else None
    if path and path.suffix != ".json":
        raise UserError(f"--out {path} must end in .json; the plots go beside it as .png and .svg")
    for taken in [path.with_suffix(suffix) for suffix in (".json", ".png", ".svg")] if path else []:
        if taken.exists() and not args.force:
            raise UserError(f"{taken} exists; choose another --out, or add --force to replace it")
    plan = planning.check(tables_from(args))
    dataset = load_data(plan.data)
    split = draw(dataset.train_y, len(dataset.classes), plan.split)
    Console().print(build_split_table(split, dataset.train_y, dataset.classes))
    if path:
        split.save(path)
        counts = split.counts(dataset.train_y, len(dataset.classes))
        png, _ = plot_split(counts, dataset.classes, f"{dataset.name}, {split.origin}", path.with_suffix(""))
        print(f"split: {path} (use it with --split)\nplot: {png}")
    return 0


def theory(args: argparse.Namespace) -> int:
    from fedptr.theory import check_rates as checking
    from fedptr.theory import rates_report

    rounds = checking.parse_rounds(args.rounds)
    if args.seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {args.seeds}")
    out = claim(Path(args.out) if args.out else fresh_name("theory"), args.force)
    results = checking.check(rounds, args.seeds, tell=print_notice)
    rates_report.write(results, out)
    rates_report.show(results, Console(highlight=False))
    print(f"plot: {out / 'theory.png'}\nresults: {out}")
    return 0


def methods(args: argparse.Namespace) -> int:
    console = Console(highlight=False, markup=False, emoji=False)
    if args.name is not None:
        show_method(console, registry.get(args.name))
        return 0
    grid = Table.grid(padding=(0, 2))
    for name, method in registry.all_methods().items():
        grid.add_row(Text(name, style="bold"), method.idea)
        grid.add_row("", Text(f"{cost(method)}\n{method.cite}\n", style="dim"))
    console.print(grid)
    console.print("Down, up: sent per client and round. Keeps: between rounds. Both in model sizes.")
    console.print("`fedptr methods NAME` explains a method and its settings.")
    return 0


def show_method(console: Console, method: type[Method]) -> None:
    """A method's own words, its cost, what to cite, and its hyper-parameters with their defaults."""
    console.print(Text(f"{method.name}: {method.idea}\n", style="bold"))
    words = inspect.getdoc(inspect.getmodule(method)) or ""
    console.print(reflow(words, min(console.width, 120)), "", sep="\n")
    console.print(f"{cost(method)} (in model sizes)\ncite: {method.cite}\n")
    hints = typing.get_type_hints(method)
    table = Table(Column("setting", no_wrap=True), Column("default", no_wrap=True), "meaning", box=SIMPLE_HEAD)
    for f in fields(method):
        takes = f"\ntakes {describe_type(hints[f.name], f.metadata['bounds'])}"
        table.add_row(f.name, json.dumps(f.default), Text(f.metadata["doc"]).append(takes, style="dim"))
    console.print(table)
    console.print(f"Set them in [method] of a plan, or with --set method.{fields(method)[-1].name}=… and so on.")


def cost(method: type[Method]) -> str:
    return " · ".join(f"{name} {value}" for name, value in method.cost.in_words().items())
