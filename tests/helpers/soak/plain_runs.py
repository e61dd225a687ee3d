"""Runs of every method, with all clients and with a part of them."""

from __future__ import annotations

from pathlib import Path

from small_world import part_for

from fedptr.methods import all_methods
from soak.kinds import Kind, trained_runs

ROUNDS = 60
MATCHING = {"H": "1", "R": "2", "ipc": "1", "lr_img": "1", "m": "1", "server_epochs": "1"}


def tiny_settings(method: str, participation: float, rounds: int) -> list[str]:
    known = all_methods()[method].__dataclass_fields__
    matching = [f"method.{key}={value}" for key, value in MATCHING.items() if key in known]
    model = "linear" if all_methods()[method].needs_linear else "mlp"
    return [
        *("--method", method, "--model", model, "--width", "16", "--rounds", str(rounds), "--batch", "32"),
        *("--participation", str(participation), "--set", "machine.threads=1", "--set", "run.eval_every=2"),
        *(part for one in matching for part in ("--set", one)),
    ]


def list_cases() -> list[str]:
    """In two turns every method with all clients and, where it may, with a part of them."""
    names = list(all_methods())
    return [
        f"{name} {part_for(name, (1.0, 0.4)[(turn + place) % 2]):g}"
        for turn in (0, 1)
        for place, name in enumerate(names)
    ]


def command(case: str, folder: Path, rounds: int = ROUNDS) -> list[str]:
    """Starts again where the kill came before there was a plan."""
    if (folder / "plan.toml").exists():
        return ["resume", str(folder)]
    method, part = case.split()
    return ["run", *tiny_settings(method, float(part), rounds), "--out", str(folder), "--force"]


RUNS = Kind("run", 0.6, list_cases(), command, trained_runs, longest=0.8)
