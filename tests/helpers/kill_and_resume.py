"""The driver of the kill tests: real processes, SIGKILL at random instants, resume, and compare with a run left alone.

    python tests/helpers/kill_and_resume.py [KILLS]    the long version (`make soak`); for docs/reliability.md

A run must end with the same weights, and every line of rounds.jsonl must be the same but for its timings, however often
and wherever it was killed: while importing, training, writing a line, or in the middle of a checkpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from same_bits import outcome
from small_world import part_for
from tiny_runs import rounds_written
from wait_until import PATIENCE, until

from fedptr.methods import all_methods

ROUNDS = 60
MATCHING = {"H": "1", "R": "2", "ipc": "1", "lr_img": "1", "m": "1"}


def settings(method: str, participation: float, rounds: int) -> list[str]:
    known = all_methods()[method].__dataclass_fields__
    matching = [f"method.{key}={value}" for key, value in MATCHING.items() if key in known]
    model = "linear" if all_methods()[method].needs_linear else "mlp"
    return [
        *("run", "--method", method, "--model", model, "--width", "16", "--rounds", str(rounds), "--batch", "32"),
        *("--participation", str(participation), "--set", "machine.threads=1", "--set", "run.eval_every=2"),
        *(part for one in matching for part in ("--set", one)),
    ]


def start(*argv: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fedptr", *argv]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def resume_or_start(method: str, participation: float, rounds: int, folder: Path) -> subprocess.Popen[bytes]:
    """Starts again where the kill came before there was a plan."""
    if (folder / "plan.toml").exists():
        return start("resume", str(folder))
    return start(*settings(method, participation, rounds), "--out", str(folder), "--force")


def where(folder: Path) -> str:
    """What the process was doing when it was killed, judged by what it left behind."""
    if list(folder.rglob("*.tmp")):
        return "within a checkpoint write"
    if not (folder / "rounds.jsonl").exists():
        return "before the first round"
    return "between writes"


def strike(process: subprocess.Popen[bytes], folder: Path, rng: random.Random) -> None:
    """Waits for the instant of the kill: any, some rounds into training, or in the middle of a write."""
    kind = rng.choice(("any", "training", "writing", "writing"))
    if kind == "any":
        time.sleep(rng.uniform(0.5, 4.0))
        return
    enough = rounds_written(folder) + rng.randint(1, 5)
    until(lambda: rounds_written(folder) >= enough or process.poll() is not None, "the next rounds", every=0.002)
    if kind == "writing":
        until(lambda: writes(folder) or process.poll() is not None, "a write", every=0)


def writes(folder: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):  # before the first checkpoint
        return any(name.endswith(".tmp") for name in os.listdir(folder / "checkpoint"))
    return False


def killed_run(
    method: str, participation: float, kills: int, rng: random.Random, work: Path, rounds: int = ROUNDS
) -> Counter[str]:
    """One run killed `kills` times, compared with one left alone."""
    alone, hit = work / "alone", work / "hit"
    process = start(*settings(method, participation, rounds), "--out", str(alone))
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err.decode()
    seen: Counter[str] = Counter()
    done = 0
    while done < kills:
        process = resume_or_start(method, participation, rounds, hit)
        strike(process, hit, rng)
        if process.poll() is not None:
            assert process.returncode == 0, process.stderr.read().decode() if process.stderr else ""
            process.communicate()
            break  # it got to the end
        process.kill()
        process.communicate()
        seen[where(hit)] += 1
        done += 1
    process = resume_or_start(method, participation, rounds, hit)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, f"{method}: {err.decode()}"
    assert outcome(hit) == outcome(alone), f"{method} at {participation}: a resumed run differs"
    assert len(list((hit / "checkpoint").glob("server-*"))) >= 1
    return seen


def cases() -> Iterator[tuple[str, float]]:
    """Every method, with all clients or, where it may, with a part of them; again and again."""
    for turn in itertools.count():
        for place, name in enumerate(all_methods()):
            yield name, part_for(name, (1.0, 0.4)[(turn + place) % 2])


def soak(total: int, seed: int) -> Counter[str]:
    """At least `total` kills, and every method at least once."""
    rng, seen, began = random.Random(seed), Counter[str](), time.monotonic()
    for done, (name, participation) in enumerate(cases()):
        if done >= len(all_methods()) and sum(seen.values()) >= total:
            break
        with tempfile.TemporaryDirectory() as work:
            seen += killed_run(name, participation, 4, rng, Path(work))
        print(f"{name:13} participation {participation:.0%}: same; {sum(seen.values())} kills so far", flush=True)
    print(f"{sum(seen.values())} kills survived in {time.monotonic() - began:.0f} s: {dict(seen)}")
    return seen


if __name__ == "__main__":
    soak(int(sys.argv[1]) if len(sys.argv) > 1 else 120, seed=0)
