"""`make soak`: kills for an hour, and says what was lost.

    PYTHONPATH=tests/helpers python -m soak [--minutes 60] [--kills N] [--seed 0] [--only run,deploy] [FOLDER]

The folder keeps a journal: the same command continues a soak that was stopped. What was lost stays in the folder, and
the exit code is 1.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from fedptr.errors import UserError
from soak.audits import AUDITS
from soak.comparisons import COMPARISONS
from soak.deployed_runs import DEPLOYED, hit_deployed_run
from soak.hit_and_compare import hit_and_compare
from soak.journal import Journal, count_kills, read_entries, summarise
from soak.kinds import Kind
from soak.plain_runs import RUNS
from soak.processes import fork, import_what_commands_need, start_by_fork
from soak.recipes import RECIPES

KINDS = {kind.name: kind for kind in (RUNS, COMPARISONS, RECIPES, AUDITS, DEPLOYED)}
KILLS = 60  # of a case, at most


def soak(folder: Path, minutes: float, kills: int, seed: int, kinds: list[Kind]) -> int:
    """Cases of the kind that has had least of its share of the time, until the time is over or there are enough."""
    journal = Journal(folder / f"{kinds[0].name}.jsonl")
    while journal.seconds() < 60 * minutes and (left := kills - count_kills(read_entries(folder))) > 0:
        kind = min(kinds, key=lambda kind: journal.seconds(kind.name) / kind.share)
        soak_case(kind, len(journal.of(kind.name)), seed, folder, journal, min(left, KILLS))
    return 0


def soak_case(kind: Kind, turn: int, seed: int, folder: Path, journal: Journal, kills: int = KILLS) -> None:
    """The case whose turn it is; what is lost goes into the journal, and its folder is kept."""
    case = kind.cases[turn % len(kind.cases)]
    place = folder / f"{kind.name} {case}".replace(" ", "-")
    place.mkdir(exist_ok=True)
    for old in place.glob("hit*"):  # of the last turn, or of a soak that was stopped here
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    rng, began, words = random.Random(f"{seed} {kind.name} {turn}"), time.monotonic(), ""
    act = hit_deployed_run if kind is DEPLOYED else hit_and_compare
    hits = Counter[str]()
    try:
        act(kind, case, rng.randint(-(-kills // 3), kills), rng, place, start_by_fork, hits)
    except (AssertionError, OSError, ValueError, KeyError, UserError) as error:
        words = f"{type(error).__name__}: {error}"
        kept = place.with_name(f"lost-{kind.name}-{turn}")
        kept.mkdir()
        for path in place.glob("hit*"):
            path.rename(kept / path.name)
    journal.add(kind.name, case, hits, time.monotonic() - began, words)


def soak_all(folder: Path, args: argparse.Namespace) -> None:
    """Deployed runs, which wait most of the time, beside all others."""
    kinds = [KINDS[name] for name in args.only.split(",")]
    groups = [[kind for kind in kinds if (kind is DEPLOYED) == deployed] for deployed in (False, True)]
    with tempfile.TemporaryDirectory() as scratch:
        examples = [kind for kind in kinds if kind in (RUNS, COMPARISONS)]
        import_what_commands_need(*(kind.command(kind.cases[0], Path(scratch) / kind.name) for kind in examples))
    processes = [
        fork(lambda some=some: soak(folder, args.minutes, args.kills, args.seed, some), signal.SIGINT)  # type: ignore[misc]
        for some in groups
        if some
    ]
    while any(process.poll() is None for process in processes):
        time.sleep(0.5)
    assert not any(process.returncode for process in processes), "the driver itself has failed"


def main() -> int:
    parser = argparse.ArgumentParser("soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="0 only sums up what is there")
    parser.add_argument("--kills", type=int, default=sys.maxsize, help="enough of them (default: never)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(KINDS), help="kinds of jobs, with commas")
    parser.add_argument("folder", nargs="?", type=Path)
    args = parser.parse_args()
    folder = (args.folder or Path(tempfile.mkdtemp(prefix="fedptr-soak-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"the soak is in {folder}; the same command with this folder continues", flush=True)
    try:
        if args.minutes:
            soak_all(folder, args)
    finally:
        entries = read_entries(folder)
        print(summarise(entries), flush=True)
    lost = any(entry["lost"] for entry in entries)
    if not lost and not args.folder:
        shutil.rmtree(folder)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
