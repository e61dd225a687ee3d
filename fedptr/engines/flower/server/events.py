"""events.jsonl in a run folder: who joined, was refused or dropped, and when. It is only ever added to.

What nodes say is written as JSON in ASCII, so that no name or reason of theirs can do anything to a terminal.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

NAME = "events.jsonl"
LONGEST = 500  # characters of a reason


def note_event(folder: Path, event: str, who: str, reason: str = "") -> None:
    moment = datetime.now(UTC).isoformat(timespec="seconds")
    line = {"time": moment, "event": event, "node": who[:100], "reason": reason[:LONGEST]}
    with open(folder / NAME, "a", encoding="ascii") as file:
        file.write(json.dumps(line) + "\n")
