"""`fedptr settings`: lists the settings of a plan."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from fedptr.cli.completion import complete_methods, complete_places, with_completer

if TYPE_CHECKING:
    from rich.console import Console

    from fedptr.cli.options import Commands
    from fedptr.runs.describe_settings import SettingInfo

WORDS = "list the settings of a plan: default, range, meaning and an example"


def add_parser(commands: Commands) -> None:
    sub = commands.add_parser("settings", help=WORDS, description=WORDS)
    what = sub.add_argument("what", nargs="?", metavar="SECTION", help="a section like local, or a key like run.rounds")
    with_completer(what, complete_places)
    method = sub.add_argument("--method", metavar="M", help="whose settings the section method lists")
    method.place = "method.name"  # type: ignore[attr-defined]  # for --help, which shows its default
    with_completer(method, complete_methods)
    sub.add_argument("--json", action="store_true", help="for programs")
    sub.set_defaults(handler=settings)


def settings(args: argparse.Namespace) -> int:
    import json

    from rich.console import Console

    from fedptr.methods import find_method
    from fedptr.methods.fedptr import FedPTR
    from fedptr.runs.describe_settings import MEANINGS, select_settings

    method = FedPTR.name if args.method is None else args.method
    find_method(method)  # which raises if there is none
    found = select_settings(args.what, method)
    if args.json:
        print(json.dumps([asdict(info) for info in found], indent=1))
        return 0
    console = Console(highlight=False, markup=False, emoji=False)
    for section in dict.fromkeys(info.section for info in found):
        whose = f", here of {method}" if section == "method" else ""
        console.print(f"[{section}]  {MEANINGS[section]}{whose}", style="bold")
        print_settings(console, [info for info in found if info.section == section])
    if found[-1].section == "method":
        console.print(f"`fedptr methods {method}` explains the method; `--method NAME` lists another's settings.")
        console.print("[methods.NAME] in a plan has settings of a method whenever it is chosen, for `fedptr compare`.")
    console.print("Set them in a plan (`fedptr init` writes one), or with --set as the examples show.")
    return 0


def print_settings(console: Console, found: list[SettingInfo]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table
    from rich.text import Text

    from fedptr.runs.describe_settings import format_toml

    table = Table(Column("setting", no_wrap=True), Column("default", no_wrap=True), "meaning", box=SIMPLE_HEAD)
    for info in found:
        takes = "" if info.takes == "text" else f"\ntakes {info.takes}"
        more = f"{takes}\n--set {info.assignment}"
        table.add_row(info.key, format_toml(info.default), Text(info.meaning).append(more, style="dim"))
    console.print(table)
