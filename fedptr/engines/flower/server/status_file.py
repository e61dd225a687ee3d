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

NAME = "status.json"


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
    try:
        found = json.loads((folder / NAME).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def write_problem(folder: Path, problem: str) -> None:
    """Notes why the run stopped."""
    write_text(
        folder / NAME, json.dumps({**read_status(folder), "at": time.time(), "problem": problem}, indent=1) + "\n"
    )
