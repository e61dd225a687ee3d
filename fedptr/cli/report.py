"""`fedptr report`: makes one HTML page of runs and comparisons."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from fedptr.errors import UserError
from fedptr.messages import print_notice

if TYPE_CHECKING:
    from fedptr.cli.options import Commands


def add_parser(commands: Commands) -> None:
    sub = commands.add_parser("report", help="one HTML page of runs and comparisons")
    sub.add_argument("dirs", nargs="+", metavar="DIR", help="folders of runs, comparisons or reproductions")
    sub.add_argument("-o", "--out", default="report.html", metavar="FILE", help="the page to write")
    sub.add_argument("--force", action="store_true", help="replace an existing file")
    sub.set_defaults(handler=report)


def report(args: argparse.Namespace) -> int:
    from fedptr.atomic_files import write_text
    from fedptr.report.find_runs import find_runs
    from fedptr.report.page import build_page
    from fedptr.report.recipe_section import load_tables

    out = Path(args.out)
    if out.is_dir():
        raise UserError(f"{out} is a folder; name a file to write, like -o {out / 'report.html'}")
    if out.exists() and not args.force:
        raise UserError(f"{out} exists; choose another with -o, or add --force to replace it")
    folders = [Path(folder) for folder in args.dirs]
    with tempfile.TemporaryDirectory(prefix="fedptr-report-") as scratch:
        runs, problems = find_runs(folders, Path(scratch))
        for problem in problems:
            print_notice(problem)
        text = build_page(runs, problems, load_tables(folders))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, text)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror or error}); choose another with -o") from None
    print(f"report: {out} ({len(runs)} run{'' if len(runs) == 1 else 's'}, {len(text.encode()) / 1e6:.1f} MB)")
    return 0
