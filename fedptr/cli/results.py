"""`fedptr results`: packs the runs of a reproduction into compressed archives, and unpacks them."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedptr.errors import UserError

WORDS = """Packs the finished runs below DIR/runs and DIR/audit into one archive for each method and dataset, or unpacks
them. `fedptr report`, `reproduce`, `audit` and `resume` read packed runs without this."""
CHECKPOINTS = "pack the checkpoints of these runs too, like 'fedavg-*', '*/seed0' or '*' (default: none)"
REMOVE = "remove the packed folders, with the weights, splits, pictures and checkpoints that archives leave out"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    results = commands.add_parser("results", help="pack runs into archives, or unpack them", description=WORDS)
    actions = results.add_subparsers(dest="action", metavar="ACTION", required=True)
    pack = actions.add_parser("pack", help="pack finished runs; archives keep the runs they hold")
    unpack = actions.add_parser("unpack", help="unpack every run into its folder; existing folders are not changed")
    for sub in (pack, unpack):
        sub.add_argument("dir", metavar="DIR", help="the --out of `fedptr reproduce`")
    pack.add_argument("--checkpoints", default="", metavar="PATTERN,…", help=CHECKPOINTS)
    pack.add_argument("--remove", action="store_true", help=REMOVE)
    pack.set_defaults(handler=pack_results)
    unpack.set_defaults(handler=unpack_results)


def find_bases(folder: Path) -> list[Path]:
    """The folders of runs and of shadows in a reproduction."""
    from fedptr.runs.archive import FOLDERS

    found = [folder / name for name in FOLDERS if (folder / name).is_dir()]
    if not found:
        raise UserError(f"{folder} holds no folder {FOLDERS[0]}; name the --out of `fedptr reproduce`")
    return found


def pack_results(args: argparse.Namespace) -> int:
    from fedptr.messages import print_notice
    from fedptr.runs.archive import pack_runs

    folder = Path(args.dir)
    patterns = [pattern.strip() for pattern in args.checkpoints.split(",") if pattern.strip()]
    for base in find_bases(folder):
        done = pack_runs(base, patterns, args.remove)
        size = sum(path.stat().st_size for path in done.archives) / 1e6
        print(f"packed: {base} ({len(done.runs)} runs in {len(done.archives)} archives, {size:.2f} MB)")
        if args.remove:
            print(f"removed: {done.removed} folders")
        for run, reason in done.left_out.items():
            print_notice(f"{run} is not packed: {reason}")
    return 0


def unpack_results(args: argparse.Namespace) -> int:
    from fedptr.runs.archive import unpack_runs

    for base in find_bases(Path(args.dir)):
        new, known = unpack_runs(base)
        print(f"unpacked: {base} ({new} runs{f', {known} had a folder already' if known else ''})")
    return 0
