"""status.json in a run folder: what a deployed run is doing now, for `fedptr status`. Nothing depends on it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedptr.atomic_files import write_text
from fedptr.engines.flower.server.roster import Roster
from fedptr.messages import make_printable
from fedptr.regular_files import read_text

NAME = "status.json"
NUMBER = (int, float)
STATUS: dict[str, tuple[type, ...]] = {"phase": (str,), "nodes": (list,)}
OPTIONAL: dict[str, tuple[type, ...]] = {
    "round": (int,), "test_accuracy": NUMBER, "problem": (str,), "refused": (list,), "dropped": (dict,),
    "test_r2": NUMBER, "test_f1": NUMBER,
}  # fmt: skip
NODE = {"number": (int,), "name": (str,), "samples": (int,), "online": (bool,), "last_seen": (*NUMBER, type(None))}


STOPPED: dict[str, Any] = {"phase": "stopped", "nodes": []}  # before it began


def write_status(
    folder: Path, roster: Roster, online: set[int], phase: str, left_out: Mapping[int, str], **more: Any
) -> None:
    """`phase` is a few words: waiting for nodes, round 3, stopped …"""
    nodes = [
        {
            "number": i,
            "name": member.name,
            "node": str(roster.nodes[i]) if i in roster.nodes else None,  # Flower's number
            "samples": member.size,
            "online": roster.nodes.get(i) in online,
            "last_seen": roster.seen.get(i),
            "left_out": left_out.get(i),
        }
        for i, member in sorted(roster.members.items())
    ]
    refused = [reason for reason, _ in roster.refused.values()]
    content = {"phase": phase, "at": time.time(), "pid": os.getpid(), "nodes": nodes, "refused": refused, **more}
    write_text(folder / NAME, json.dumps(content, indent=1) + "\n")


def read_status(folder: Path) -> dict[str, Any]:
    """What the file says; nothing where it is missing, or not as `write_status` writes it."""
    try:
        found = json.loads(read_text(folder / NAME))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if is_sound(found) else {}


def is_sound(found: Any) -> bool:
    """Whether all is there that is shown, each of its type."""
    return (
        has_types(found, STATUS)
        and all(has_types(node, NODE) for node in found["nodes"])
        and has_types(found, {name: kinds for name, kinds in OPTIONAL.items() if name in found})
    )


def has_types(found: Any, kinds: Mapping[str, tuple[type, ...]]) -> bool:
    if not isinstance(found, dict) or not kinds.keys() <= found.keys():
        return False
    values = [(found[name], allowed) for name, allowed in kinds.items()]
    return all(type(v) in allowed and (type(v) is not int or abs(v) < 2**63) for v, allowed in values)


def write_problem(folder: Path, problem: str) -> None:
    """Notes why the run stopped; nodes may have had a part in the words."""
    content = {**(read_status(folder) or STOPPED), "at": time.time(), "problem": make_printable(problem)}
    write_text(folder / NAME, json.dumps(content, indent=1) + "\n")
