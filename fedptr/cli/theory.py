"""`fedptr theory`: measures FedPTR's rate of convergence."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedptr.cli.options import add_output_options, whole_number
from fedptr.errors import UserError
from fedptr.messages import print_notice
from fedptr.runs.folder import MOST_SEEDS

if TYPE_CHECKING:
    from fedptr.cli.options import Commands


def add_parser(commands: Commands) -> None:
    words = "measure FedPTR's rate of convergence, and check its theorem's conditions"
    sub = commands.add_parser("theory", help=words)
    sub.add_argument("--rounds", default="25,50,100,200,400", metavar="T,T,…", help="lengths of the runs")
    sub.add_argument(
        "--seeds", type=whole_number("--seeds", MOST_SEEDS), default=1, metavar="N", help="random problems of each kind"
    )
    add_output_options(sub)
    sub.set_defaults(handler=theory)


def theory(args: argparse.Namespace) -> int:
    from rich.console import Console

    from fedptr.runs.folder import claim_folder, new_folder_name
    from fedptr.theory import check_rates as checking
    from fedptr.theory import rates_report

    rounds = checking.parse_rounds(args.rounds)
    if args.seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {args.seeds}")
    out = claim_folder(Path(args.out) if args.out else new_folder_name("theory"), args.force)
    results = checking.check_rates(rounds, args.seeds, tell=print_notice)
    rates_report.write_rates(results, out)
    rates_report.print_rates(results, Console(highlight=False))
    print(f"plot: {out / 'theory.png'}\nresults: {out}")
    return 0
