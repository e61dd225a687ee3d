"""`fedptr status`: what a deployed run is doing."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedptr.cli.deploy import require_flower

if TYPE_CHECKING:
    from fedptr.cli.options import Commands


def add_parser(commands: Commands) -> None:
    sub = commands.add_parser("status", help="what a deployed run is doing: rounds, nodes, accuracy")
    sub.add_argument("dir", metavar="DIR", help="the run's folder")
    sub.add_argument("--watch", action="store_true", help="show it again every two seconds")
    sub.set_defaults(handler=status)


def status(args: argparse.Namespace) -> int:
    require_flower()
    from fedptr.engines.flower.setup.show_status import show_status

    return show_status(Path(args.dir), args.watch)
