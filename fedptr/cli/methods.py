"""`fedptr methods`: lists the methods, or describes one."""

from __future__ import annotations

import argparse
import inspect
from typing import TYPE_CHECKING

from fedptr.cli.completion import complete_methods, with_completer
from fedptr.cli.reflow_docstring import reflow_docstring

if TYPE_CHECKING:
    from rich.console import Console

    from fedptr.cli.options import Commands
    from fedptr.core.method import Method


def add_parser(commands: Commands) -> None:
    sub = commands.add_parser("methods", help="list the methods, or describe one")
    with_completer(sub.add_argument("name", nargs="?", metavar="NAME"), complete_methods)
    sub.set_defaults(handler=methods)


def methods(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fedptr.methods import all_methods, find_method

    console = Console(highlight=False, markup=False, emoji=False)
    if args.name is not None:
        print_method(console, find_method(args.name))
        return 0
    grid = Table.grid(padding=(0, 2))
    for name, method in all_methods().items():
        grid.add_row(Text(name, style="bold"), method.idea)
        grid.add_row("", Text(f"{describe_cost(method)}\n{method.cite}\n", style="dim"))
    console.print(grid)
    console.print("Down, up: sent per client and round. Keeps: between rounds. Both in model sizes.")
    console.print("`fedptr methods NAME` explains a method and its settings.")
    return 0


def print_method(console: Console, method: type[Method]) -> None:
    """Prints a method's docstring, its cost, what to cite, and its settings with their defaults."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table
    from rich.text import Text

    from fedptr.methods import method_address
    from fedptr.runs.describe_settings import format_toml, list_settings

    console.print(Text(f"{method.name}: {method.idea}\n", style="bold"))
    words = inspect.getdoc(inspect.getmodule(method)) or ""
    console.print(reflow_docstring(words, min(console.width, 120)), "", sep="\n")
    console.print(f"{describe_cost(method)} (in model sizes)")
    console.print(f"local optimiser: {method.optimisers_in_words()}\ncite: {method.cite}\n")
    table = Table(Column("setting", no_wrap=True), Column("default", no_wrap=True), "meaning", box=SIMPLE_HEAD)
    own = [info for info in list_settings("method", method_address(method)) if info.key != "name"]
    for info in own:
        takes = f"\ntakes {info.takes}"
        table.add_row(info.key, format_toml(info.default), Text(info.meaning).append(takes, style="dim"))
    console.print(table)
    console.print(f"Set them in [method] of a plan, or with --set, as in --set {own[-1].assignment}")


def describe_cost(method: type[Method]) -> str:
    return " · ".join(f"{name} {value}" for name, value in method.cost_in_words().items())
