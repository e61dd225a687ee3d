"""`fedptr init`: writes a plan with comments, after a few questions."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedptr.cli.options import DATA_OPTIONS, METHOD_OPTION, RUN_OPTIONS, add_set_option, add_setting_options
from fedptr.errors import UserError
from fedptr.messages import print_notice

if TYPE_CHECKING:
    from fedptr.cli.options import Commands
    from fedptr.runs.plan import Tables

WORDS = """Writes a plan: the settings of a run as TOML, each with a comment that says what it means. In a terminal it
asks a few questions first. (`fedptr deploy init` sets up server and nodes to train over several machines.)"""
KNOWN = METHOD_OPTION | DATA_OPTIONS | RUN_OPTIONS
ASKED = {name: KNOWN[name] for name in ("--dataset", "--method", "--clients", "--alpha", "--rounds")}


def add_parser(commands: Commands) -> None:
    sub = commands.add_parser("init", help="write a commented plan for `fedptr run`", description=WORDS)
    sub.add_argument("path", nargs="?", default="plan.toml", metavar="PLAN.toml", help="the file to write")
    add_setting_options(sub, ASKED)
    add_set_option(sub, "put any other setting into the plan; see `fedptr settings`")
    sub.add_argument("-y", "--yes", action="store_true", help="ask nothing: options and defaults are the answers")
    sub.add_argument("--force", action="store_true", help="replace an existing file")
    sub.set_defaults(handler=init)


def init(args: argparse.Namespace) -> int:
    path = Path(args.path)
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file to write, like {path / 'plan.toml'}")
    if path.exists() and not args.force:
        raise UserError(f"{path} exists; choose another name, or add --force to replace it")
    if not path.parent.is_dir():
        raise UserError(f"{path} cannot be written: there is no folder {path.parent}; create it first")

    from fedptr.atomic_files import write_text
    from fedptr.runs.dataset_defaults import settle_method, with_dataset_defaults
    from fedptr.runs.plan import assign_settings
    from fedptr.runs.write_plan import write_commented_plan

    tables = assign_settings({}, args.assignments)
    check_answer(tables)
    if not args.yes and sys.stdin.isatty() and sys.stdout.isatty():
        try:
            tables = ask_questions(tables)
        except (EOFError, KeyboardInterrupt):
            print()
            print_notice("stopped; no plan was written")
            return 130
    tables = settle_method(with_dataset_defaults(tables)[0])
    write_text(path, write_commented_plan(tables, str(path)))
    print(f"plan: {path}\nstart it: fedptr run {path}")
    return 0


def ask_questions(tables: Tables) -> Tables:
    """Asks for what the options did not say; Enter takes the default, and a wrong answer is asked for again."""
    from fedptr.runs.dataset_defaults import with_dataset_defaults
    from fedptr.runs.plan import assign_settings, check_plan

    print("Enter takes the value in brackets.")
    for option, (place, _, words) in ASKED.items():
        section, _, key = place.partition(".")
        if key in tables.get(section, {}):
            continue
        plan = check_plan(with_dataset_defaults(tables)[0])
        default = plan.method.name if place == "method.name" else getattr(getattr(plan, section), key)
        while answer := input(f"{option.removeprefix('--')} ({words}) [{default}]: ").strip():
            try:
                changed = assign_settings(tables, [(place, answer)])
                check_answer(changed)
            except UserError as error:
                print_notice(str(error))
                continue
            tables = changed
            break
    return tables


def check_answer(tables: Tables) -> None:
    """Whether a plan can have these settings, and the dataset is known; it need not be there yet."""
    from fedptr.data.load import locate_dataset
    from fedptr.data.sources import SOURCES, find_dataset
    from fedptr.runs.plan import check_plan

    data = check_plan(tables).data
    if data.name not in SOURCES:
        locate_dataset(data.name, data.dir)
    elif SOURCES[data.name].forms and not find_dataset(SOURCES[data.name], data.dir):
        print_notice(f"note: {data.name} is not here yet; get it with `fedptr data get {data.name}`")
