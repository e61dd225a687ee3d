"""From the options of a command to the tables of a plan."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from fedptr.data.sources import SOURCES
from fedptr.engines.choose_engine import check_engine
from fedptr.errors import UserError
from fedptr.methods.fedptr import FedPTR
from fedptr.runs import plan as planning
from fedptr.runs.plan import Plan, Tables


def build_tables(args: argparse.Namespace) -> Tables:
    """The plan file's tables, changed by options and `--set` in their order; paths that exist become absolute."""
    tables = planning.read_plan(args.plan) if args.plan else {}
    tables = planning.assign_settings(tables, args.assignments)
    if getattr(args, "combine_with", None) and isinstance(chosen := tables.setdefault("method", {}), dict):
        chosen["name"] = f"{chosen.get('name', FedPTR.name)}+{args.combine_with}"
    for section, key in (("data", "name"), ("data", "dir"), ("split", "file")):
        table = tables.get(section)
        value = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict) and isinstance(value, str) and value not in SOURCES and os.path.exists(value):
            table[key] = os.path.abspath(value)  # so that the saved plan runs from anywhere
    chosen = tables.get("split")
    if args.plan and isinstance(chosen, dict) and isinstance(name := chosen.get("file"), str) and name:
        here = Path(args.plan).resolve().parent / name  # a run folder holds its own split
        if not os.path.exists(name) and here.is_file():
            chosen["file"] = str(here)
    return tables


def check_engine_options(plan: Plan, args: argparse.Namespace) -> None:
    if "machine.ray_address" in dict(args.assignments) and plan.machine.engine != "ray":
        raise UserError("--ray-address is for --engine ray; add that, or leave the address out")
    check_engine(plan.machine)
