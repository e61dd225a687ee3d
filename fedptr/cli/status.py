"""`fedptr status`: how far runs are."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedptr.cli.deploy import require_flower
from fedptr.messages import count_noun, make_printable

if TYPE_CHECKING:
    from rich.console import Console

    from fedptr.cli.options import Commands
    from fedptr.runs.run_status import RunStatus

WORDS = """How far the runs in a folder are: of a run, a comparison, an audit, a reproduction, or several of these. Of a
deployed run it also shows the nodes."""
PAUSE = 2.0  # seconds
MANY = 40  # runs; of more, finished ones are only counted


def add_parser(commands: Commands) -> None:
    sub = commands.add_parser("status", help="how far runs are: round, accuracy, time left", description=WORDS)
    sub.add_argument("dir", metavar="DIR", help="the folder of a run, a comparison, an audit or a reproduction")
    sub.add_argument("--watch", action="store_true", help="show it again every two seconds")
    sub.add_argument("--all", action="store_true", help=f"list finished runs, too, where there are more than {MANY}")
    sub.add_argument("--json", action="store_true", help="for programs")
    sub.set_defaults(handler=status)


def status(args: argparse.Namespace) -> int:
    folder = Path(args.dir)
    if (folder / "deploy.toml").exists() and not args.json:
        require_flower()
        from fedptr.engines.flower.setup.show_status import show_status

        return show_status(folder, args.watch)

    from rich.console import Console

    from fedptr.runs.run_status import find_holders, read_statuses

    console = Console(highlight=False, markup=False, emoji=False)
    while True:
        runs, holders = read_statuses(folder), find_holders(folder)
        if args.json:
            print_json(folder, runs, holders)
        else:
            if args.watch and console.is_terminal:
                console.clear()
            print_statuses(console, folder, runs, holders, args.all)
        if not args.watch or not (holders or any(run.state == "running" for run in runs)):
            return 0
        time.sleep(PAUSE)


def print_json(folder: Path, runs: list[RunStatus], holders: dict[Path, Any]) -> None:
    import json
    from dataclasses import asdict

    from fedptr.runs.run_status import parse_json, read_text

    found = {
        "folder": str(folder),
        "counts": count_states(runs),
        "processes": [{"folder": str(place), **(who or {})} for place, who in holders.items()],
        "runs": [name_own_score({**asdict(run), "folder": str(run.folder)}) for run in runs],
    }
    if deployed := parse_json(read_text(folder / "status.json")):
        found["deployed"] = deployed
    print(json.dumps(found))


def name_own_score(told: dict[str, Any]) -> dict[str, Any]:
    """A run's score under its own name."""
    score = told.pop("score")
    return {score if name == "accuracy" else name: value for name, value in told.items()}


def count_states(runs: list[RunStatus]) -> dict[str, int]:
    from fedptr.runs.run_status import STATES

    return {state: sum(run.state == state for run in runs) for state in STATES}


def print_statuses(
    console: Console, folder: Path, runs: list[RunStatus], holders: dict[Path, Any], everything: bool
) -> None:
    if [run.folder for run in runs] == [folder]:
        print_run(console, runs[0])
        return
    shown = runs if everything or len(runs) <= MANY else [run for run in runs if run.state != "finished"]
    counts = ", ".join(f"{count} {state}" for state, count in count_states(runs).items() if count)
    console.print(f"{count_noun(len(runs), 'run')}: {counts}")
    for place, who in holders.items():
        console.print(f"{name_from(place, folder)}: {describe_process(who)}")
    if shown:
        print_table(console, folder, shown)
    for run in shown:
        if run.problem:
            console.print(make_printable(f"{name_from(run.folder, folder)} failed: {run.problem}"))
    if len(shown) < len(runs):
        console.print("Finished runs are not listed; --all lists them.")


def print_run(console: Console, run: RunStatus) -> None:
    parts = [run.state, run.method, f"round {format_rounds(run, ' of ')}", f"{name_score([run])} {format_score(run)}"]
    left = format_left(run)
    console.print(make_printable(" · ".join(parts + ([f"about {left} left"] if left else []))))
    if run.problem:
        console.print(make_printable(f"problem: {run.problem}"))
    if run.process:
        console.print(describe_process(run.process))
    if run.state in ("stopped", "failed"):
        console.print(make_printable(f"continue with `fedptr resume {run.folder}`"))


def print_table(console: Console, folder: Path, runs: list[RunStatus]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table

    table = Table(
        Column("run", overflow="fold"),
        Column("state", no_wrap=True),
        *(Column(name, no_wrap=True, justify="right") for name in ("round", name_score(runs), "time left")),
        box=SIMPLE_HEAD,
    )
    for run in runs:
        name = name_from(run.folder, folder)
        table.add_row(name, run.state, format_rounds(run, "/"), format_score(run), format_left(run) or "–")
    console.print(table)


def name_from(place: Path, folder: Path) -> str:
    """A folder by its path from the one that was asked for; whatever it is called, a terminal can show it."""
    return make_printable(str(place) if place == folder else os.path.relpath(place, folder))


def describe_process(who: dict[str, Any] | None) -> str:
    return make_printable(f"process {who['pid']} on {who['host']} since {who['since']}") if who else "a process"


def format_rounds(run: RunStatus, between: str) -> str:
    return f"{run.round}{between}{'?' if run.rounds is None else run.rounds}"


def name_score(runs: list[RunStatus]) -> str:
    """What the runs are known by: accuracy, or another score."""
    from fedptr.headline import HEADLINES

    names = {run.score for run in runs if run.accuracy is not None} or {"accuracy"}
    words = {one.key: one.words for one in HEADLINES.values()}
    return words[names.pop()] if len(names) == 1 else "score"


def format_score(run: RunStatus) -> str:
    from fedptr.headline import ACCURACY, HEADLINES

    headline = next((one for one in HEADLINES.values() if one.key == run.score), ACCURACY)
    return "–" if run.accuracy is None else headline.write(run.accuracy)


def format_left(run: RunStatus) -> str:
    from fedptr.messages import format_duration

    return "" if run.seconds_left is None else format_duration(run.seconds_left)
