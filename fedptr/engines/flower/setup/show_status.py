"""`fedptr status`: what a deployed run is doing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedptr.engines.flower.server import status_file
from fedptr.engines.flower.server.deploy_plan import read_deploy_plan
from fedptr.engines.flower.setup.launch_run import CONNECTION, call_flwr
from fedptr.errors import UserError
from fedptr.headline import find_headline
from fedptr.messages import make_printable
from fedptr.runs.lock import is_folder_in_use
from fedptr.runs.plan import load_plan

PAUSE = 2.0  # seconds
PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}  # names come from nodes


def show_status(folder: Path, watch: bool) -> int:
    rounds = load_plan(folder).run.rounds
    console = Console(**PLAIN)
    while True:
        now = status_file.read_status(folder)
        if not now:
            raise UserError(f"{folder} has no {status_file.NAME}; it is not a deployed run, or was not started yet")
        if watch and console.is_terminal:
            console.clear()
        print_status(console, now, rounds, is_folder_in_use(folder), ask_online_nodes(folder))
        if not watch or now["phase"] == "finished":
            return 0
        time.sleep(PAUSE)


def ask_online_nodes(folder: Path) -> set[str] | None:
    """Flower's numbers of the nodes that are connected now, also between runs; None if nobody can tell."""
    link = read_deploy_plan(folder).flower
    if not link.app:  # simulated
        return None
    server = Path(link.app).parent
    try:
        found = call_flwr(server, "supernode", "list", CONNECTION)
        return {str(node["node-id"]) for node in found["nodes"] if node["status"] == "online"}
    except (UserError, KeyError, OSError):
        return None


def print_status(console: Console, now: dict[str, Any], rounds: int, alive: bool, online: set[str] | None) -> None:
    """Names and reasons come from nodes: nothing in them moves the cursor."""
    phase = now["phase"] if alive or now["phase"] == "finished" else f"not running (last: {now['phase']})"
    headline = find_headline(now)
    score = headline.write(now[headline.test]) if headline.test in now else "–"
    done = f"{now.get('round', 0)} of {rounds} rounds done"
    console.print(make_printable(f"{phase} · {done} · {headline.words} {score}"))
    if "problem" in now:
        console.print(make_printable(f"problem: {now['problem']}"))
    table = Table("client", "node", "samples", "online", "last seen", box=SIMPLE_HEAD)
    for node in now["nodes"]:
        known = node.get("node")
        here = known in online if online is not None and known else node["online"] and alive
        seen = "now" if here else format_age(node["last_seen"])
        name = make_printable(node["name"])
        table.add_row(str(node["number"]), name, str(node["samples"]), "yes" if here else "no", seen)
    console.print(table)
    for node in now["nodes"]:
        if node.get("left_out"):
            console.print(f"client {node['number']}: {node['name']} {node['left_out']}", markup=False)
    for who, why in now.get("dropped", {}).items():
        console.print(make_printable(f"last round without client {who}: {why}"))
    for notes in now.get("entries_left_out", {}).values():
        for note in notes:
            console.print(make_printable(f"left out in the last round: {note}"))
    for reason in now.get("refused", []):
        console.print(make_printable(reason))


def format_age(moment: float | None) -> str:
    """
    >>> format_age(None), format_age(time.time() - 90)
    ('never', '90 s ago')
    """
    return "never" if moment is None else f"{time.time() - moment:.0f} s ago"
