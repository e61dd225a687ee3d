"""Deployed runs with TLS and keys: the server, a node, its worker or the SuperLink is killed, and the run resumed.

All nodes are needed in every round, so the weights are those of a run in one process that was left alone.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from deployed_federation import Federation3, command_of, descendants, federation
from small_plans import plan_for
from wait_until import until

from fedptr.data.split import Split
from fedptr.methods import all_methods
from fedptr.runs.lock import is_folder_in_use, read_holder
from soak.hit_and_compare import LostError, find_expected
from soak.kinds import Kind, trained_runs
from soak.processes import Start

ROUNDS, KILLS = 24, 8
NODES = "abc"
RULES = {"min_replies": 3, "round_timeout": 60.0, "patience": 600.0}


def command(case: str, folder: Path) -> list[str]:
    """Of the twin, in one process."""
    plan = folder.with_name("deployed.toml")
    plan.write_text(plan_for(case, rounds=ROUNDS).toml())
    return ["run", str(plan), "--out", str(folder), "--force"]


DEPLOYED = Kind("deploy", 0.2, list(all_methods()), command, trained_runs)


def hit_deployed_run(
    kind: Kind, case: str, kills: int, rng: random.Random, place: Path, start: Start, hits: Counter[str]
) -> None:
    """Adds to `hits` what was killed; raises LostError."""
    find_expected(kind, case, place)
    split = Split.load(place / "alone" / "split.json")
    with federation(place / "hit", plan_for(case, rounds=ROUNDS), split, **RULES) as lab:
        lab.begin()
        for _ in range(min(kills, KILLS)):
            more = len(lab.rounds()) + rng.randint(0, 2)
            until(lambda more=more: len(lab.rounds()) > more or has_ended(lab), "the next rounds")  # type: ignore[misc]
            time.sleep(rng.uniform(0, 0.5))
            if has_ended(lab):
                break
            what, strike = rng.choice(STRIKES)
            strike(lab, rng)
            hits[what] += 1
        until(lambda: has_ended(lab), "the end of the run")
        code = lab.processes["command"].returncode
        if code:
            raise LostError(f"deployed {case} after {dict(hits)} ended with {code}: {lab.log('command')[-2000:]}")
        found, expected = (compare_by(folder) for folder in (lab.run, place / "alone"))
        if found != expected:
            raise LostError(f"deployed {case} after {dict(hits)} differs")


def has_ended(lab: Federation3) -> bool:
    return lab.processes["command"].poll() is not None


def compare_by(folder: Path) -> object:
    """The weights and, of every round, who took part and what came out."""
    (weights, rounds, _), *_ = trained_runs(folder).values()
    return weights, [(r["round"], r["cohort"], r["train_loss"], r.get("test_accuracy")) for r in rounds]


def kill_server(lab: Federation3, rng: random.Random) -> None:
    """The process of the run; then the command that follows it, as it would wait for a server that hangs."""
    holder = read_holder(lab.run)
    if holder:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(holder["pid"]), signal.SIGKILL)
    resume(lab)


def kill_superlink(lab: Federation3, rng: random.Random) -> None:
    """With all its processes; or alone, and the server ends by itself."""
    lab.kill("superlink", alone=rng.random() < 0.5)
    until(lambda: not is_folder_in_use(lab.run), "the end of the server")
    lab.start_server()
    resume(lab)


def kill_node(lab: Federation3, rng: random.Random) -> None:
    name = rng.choice(NODES)
    lab.kill(name)
    time.sleep(rng.choice((0, rng.uniform(0, 5))))
    lab.start_node(name)


def kill_worker(lab: Federation3, rng: random.Random) -> None:
    below = descendants(lab.processes[rng.choice(NODES)].pid)
    for worker in [pid for pid in below if b"flower.node.worker" in command_of(pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def resume(lab: Federation3) -> None:
    until(lambda: not is_folder_in_use(lab.run), "the end of the server")
    lab.kill("command")
    lab.command("resume", str(lab.run))


STRIKES: list[tuple[str, Callable[[Federation3, random.Random], None]]] = [
    ("the server", kill_server),
    ("the SuperLink", kill_superlink),
    ("a node", kill_node),
    ("a node's worker", kill_worker),
]
