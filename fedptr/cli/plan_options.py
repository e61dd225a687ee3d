"""From the options of a command to the tables of a plan."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from fedptr.data.sources import SOURCES
from fedptr.data.split import Split
from fedptr.engines.choose_engine import check_engine
from fedptr.errors import UserError
from fedptr.messages import print_notice
from fedptr.methods.fedptr import FedPTR
from fedptr.runs import plan as planning
from fedptr.runs.dataset_defaults import dataset_name, with_dataset_defaults
from fedptr.runs.plan import Plan, Tables


def build_tables(args: argparse.Namespace, names: Sequence[str] = ()) -> Tables:
    """The plan file's tables, changed by options and `--set` in their order; paths that exist become absolute.

    What they do not say is the dataset's default, or the paper's. `names`: the methods, if not the one in [method].
    """
    tables = planning.read_plan(args.plan) if args.plan else {}
    tables = planning.assign_settings(tables, args.assignments)
    if getattr(args, "combine_with", None) and isinstance(chosen := tables.setdefault("method", {}), dict):
        chosen["name"] = f"{chosen.get('name', FedPTR.name)}+{args.combine_with}"
    for section, key in (("data", "name"), ("data", "dir"), ("data", "features"), ("split", "file"), ("model", "init")):
        table = tables.get(section)
        value = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict) and isinstance(value, str) and value not in SOURCES and os.path.exists(value):
            table[key] = os.path.abspath(value)  # so that the saved plan runs from anywhere
    chosen = tables.get("split")
    if args.plan and isinstance(chosen, dict) and isinstance(name := chosen.get("file"), str) and name:
        here = Path(args.plan).resolve().parent / name  # a run folder holds its own split
        if not os.path.exists(name) and here.is_file():
            chosen["file"] = str(here)
    count_clients_of_file(tables)
    return add_paper_settings(tables) if args.preset == "paper" else add_dataset_defaults(tables, names, args)


def count_clients_of_file(tables: Tables) -> None:
    """Takes the number of clients from the split file, where only that is named; a bad file is refused later."""
    split = tables.get("split")
    if isinstance(split, dict) and isinstance(file := split.get("file"), str) and file and "clients" not in split:
        with contextlib.suppress(UserError):
            split["clients"] = len(Split.load(file).clients)


def add_dataset_defaults(tables: Tables, names: Sequence[str], args: argparse.Namespace) -> Tables:
    """The tables with the dataset's defaults; `args` notes them, to be said when the run starts."""
    tables, args.defaults = with_dataset_defaults(tables, names)
    return tables


def print_defaults(args: argparse.Namespace, plan: Plan) -> None:
    """Says in one line which settings are the dataset's defaults."""
    if told := getattr(args, "defaults", []):
        name = Path(plan.data.name).name
        print_notice(f"{name}: {', '.join(told)} (defaults for {name}; --preset paper takes the paper's)")


def add_paper_settings(tables: Tables) -> Tables:
    """The tables with what the paper's recipes set for this dataset."""
    from fedptr.reproduce.recipe import paper_tables

    result = paper_tables(dataset_name(tables))
    for section, table in tables.items():
        if isinstance(table, dict) and isinstance(result.setdefault(section, {}), dict):
            result[section] |= table
        else:
            result[section] = table  # refused later
    return result


def check_engine_options(plan: Plan, args: argparse.Namespace) -> None:
    if "machine.ray_address" in dict(args.assignments) and plan.machine.engine != "ray":
        raise UserError("--ray-address is for --engine ray; add that, or leave the address out")
    check_engine(plan.machine)
