"""What the sub-commands do."""

from __future__ import annotations

import argparse
import inspect
import os
import typing
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedptr import methods as registry
from fedptr import plan as planning
from fedptr.errors import UserError
from fedptr.experiment import load_data, prepare
from fedptr.methods.fedavg import FedAvg
from fedptr.plan import Plan, Tables
from fedptr.runner import claim, execute, fresh_name
from fedptr.settings import describe


def tables_from(args: argparse.Namespace) -> Tables:
    """The plan file's tables with the options and then `--set` laid over them; own paths are made absolute."""
    tables = planning.read(args.plan) if args.plan else {}
    options = [(place, value) for place, value in vars(args).items() if "." in place and value is not None]
    tables = planning.assign(tables, [*options, *assignments(args.assignments)])
    for section, key in (("data", "name"), ("data", "dir"), ("split", "file")):
        table = tables.get(section)
        if isinstance(table, dict) and isinstance(table.get(key), str) and os.path.exists(table[key]):
            table[key] = os.path.abspath(table[key])  # so that the written plan runs from anywhere
    return tables


def assignments(texts: list[str]) -> Iterator[tuple[str, str]]:
    for text in texts:
        place, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set {text} has no value; write it as section.key=value, e.g. run.rounds=20")
        yield place.strip(), value.strip()


def run(args: argparse.Namespace) -> int:
    from fedptr.report.progress import progress

    plan = planning.check(tables_from(args))
    experiment = prepare(plan)
    out = claim(Path(args.out) if args.out else fresh_name(stem(plan, plan.method.name)), args.force)
    with progress(plan.method.name, plan.run.rounds) as show:
        summary, _ = execute(plan, experiment, out, show)
    print(f"{plan.method.name}: accuracy {summary['accuracy']:.2%} (mean of the last five rounds), ", end="")
    print(f"best {summary['accuracy_best']:.2%}, {summary['seconds']:.1f} s")
    print(f"results: {out}")
    return 0


def compare(args: argparse.Namespace) -> int:
    from fedptr import compare as comparing
    from fedptr.report import table

    names = [name.strip() for name in args.methods.split(",")] if args.methods else list(registry.PAPER)
    if args.seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {args.seeds}")
    if len(set(names)) < len(names):
        raise UserError("--methods names a method twice; name each once")
    plans = comparing.plans(tables_from(args), names, args.seeds)
    first = plans[names[0]][0]
    prepare(first)  # whatever is wrong with data, split or model is said before the folder is claimed
    out = claim(Path(args.out) if args.out else fresh_name(stem(first, "compare")), args.force)
    summaries = comparing.compare(plans, out)
    Console().print(table.terminal(summaries, comparing.describe(first)))
    print(f"curves: {out / 'curves.png'}\nresults: {out}")
    return 0


def stem(plan: Plan, what: str) -> str:
    return f"{what}-{Path(plan.data.name).stem}-seed{plan.run.seed}"


def partition(args: argparse.Namespace) -> int:
    from fedptr.data.partition import partition as draw
    from fedptr.data.split_plot import plot
    from fedptr.data.split_table import table

    plan = planning.check(tables_from(args))
    dataset = load_data(plan.data)
    split = draw(dataset.train_y, len(dataset.classes), plan.split)
    Console().print(table(split, dataset.train_y, dataset.classes))
    if args.out:
        path = Path(args.out)
        if path.exists() and not args.force:
            raise UserError(f"{path} exists; choose another --out, or add --force to replace it")
        split.save(path)
        counts = split.counts(dataset.train_y, len(dataset.classes))
        png, _ = plot(counts, dataset.classes, f"{dataset.name}, {split.origin}", path.with_suffix(""))
        print(f"split: {path} (use it with --split)\nplot: {png}")
    return 0


def methods(args: argparse.Namespace) -> int:
    console = Console()
    if args.name:
        show_method(console, registry.get(args.name))
        return 0
    table = Table("method", "idea", "down", "up", "client keeps", "server keeps", "paper", padding=(0, 1))
    for name, method in registry.all_methods().items():
        table.add_row(name, method.idea, *method.cost.values(), method.cite)
    table.caption = "Sent per client and round, kept between rounds: in model sizes. More: `fedptr methods NAME`"
    console.print(table)
    return 0


def show_method(console: Console, method: type[FedAvg]) -> None:
    """A method's own words, its hyper-parameters with their defaults, its cost and what to cite."""
    console.print(Text(f"{method.name}: {method.idea}\n", style="bold"))
    console.print(Text(inspect.getdoc(inspect.getmodule(method)) or "") + "\n")
    hints = typing.get_type_hints(method)
    table = Table("setting", "default", "takes", "meaning")
    for f in fields(method):
        table.add_row(f"method.{f.name}", str(f.default), describe(hints[f.name]), Text(f.metadata["doc"]))
    console.print(table)
    console.print(", ".join(f"{name} {value}" for name, value in method.cost.items()) + " (model sizes)")
    console.print(f"cite: {method.cite}", highlight=False)
