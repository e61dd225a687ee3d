"""The driver of the kill tests: real processes, SIGKILL at random instants, resume, and compare with a run left alone.

    python tests/helpers/kill_and_resume.py [KILLS]    the long version (`make soak`); for docs/reliability.md

A run must end with the same weights, and every line of rounds.jsonl must be the same but for its timings, however often
and wherever it was killed: while importing, training, writing a line, or in the middle of a checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from same_bits import outcome
from wait_until import PATIENCE

METHODS = ("fedavg", "fedprox", "scaffold", "feddyn", "feddc", "fedptr", "fedptr-s", "naive")
ROUNDS = 60


def settings(method: str, participation: float, rounds: int) -> list[str]:
    matching = {"H": "1", "R": "2", "ipc": "1", "lr_img": "1", "m": "1"} if method in METHODS[5:] else {}
    return [
        *("run", "--method", method, "--model", "mlp", "--width", "16", "--rounds", str(rounds), "--batch", "32"),
        *("--participation", str(participation), "--set", "machine.threads=1", "--set", "run.eval_every=2"),
        *(part for key, value in matching.items() for part in ("--set", f"method.{key}={value}")),
    ]


def start(*argv: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fedptr", *argv]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def go_on(method: str, participation: float, rounds: int, folder: Path) -> subprocess.Popen[bytes]:
    """Resumes, or starts anew where the kill came before there was a plan."""
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
    """Waits for the instant of the kill: any, some way into training, or in the middle of a write."""
    kind = rng.choice(("any", "training", "writing", "writing"))
    if kind == "any":
        time.sleep(rng.uniform(0.5, 4.0))
        return
    lines, deadline = folder / "rounds.jsonl", time.monotonic() + 60
    size = lines.stat().st_size if lines.exists() else 0
    while process.poll() is None and time.monotonic() < deadline:  # until it trains
        if lines.exists() and lines.stat().st_size > size:
            break
        time.sleep(0.005)
    time.sleep(rng.uniform(0, 1.0))
    while kind == "writing" and process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):  # before the first checkpoint
            if any(name.endswith(".tmp") for name in os.listdir(folder / "checkpoint")):
                return


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
        process = go_on(method, participation, rounds, hit)
        strike(process, hit, rng)
        if process.poll() is not None:
            assert process.returncode == 0, process.stderr.read().decode() if process.stderr else ""
            process.communicate()
            break  # it got to the end
        process.kill()
        process.communicate()
        seen[where(hit)] += 1
        done += 1
    process = go_on(method, participation, rounds, hit)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, f"{method}: {err.decode()}"
    assert outcome(hit) == outcome(alone), f"{method} at {participation}: a resumed run differs"
    assert len(list((hit / "checkpoint").glob("server-*"))) >= 1
    return seen


def soak(total: int, seed: int) -> Counter[str]:
    rng, seen = random.Random(seed), Counter[str]()
    began = time.monotonic()
    while sum(seen.values()) < total:
        for method in METHODS:
            for participation in (1.0, 0.4):
                if sum(seen.values()) >= total:
                    break
                with tempfile.TemporaryDirectory() as work:
                    seen += killed_run(method, participation, 4, rng, Path(work))
                print(
                    f"{method:9} participation {participation:.0%}: same; {sum(seen.values())} kills so far", flush=True
                )
    print(f"{sum(seen.values())} kills survived in {time.monotonic() - began:.0f} s: {dict(seen)}")
    return seen


if __name__ == "__main__":
    soak(int(sys.argv[1]) if len(sys.argv) > 1 else 120, seed=0)
