"""nodes.json on the server: every node's name, number, and Flower's number for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedptr.errors import UserError
from fedptr.regular_files import read_text


def read_node_register(path: Path) -> dict[str, dict[str, Any]]:
    """What the file says of each node; raises a UserError where it is missing, or something else."""
    try:
        found = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(map(is_entry, found.values())):
        raise UserError(f"{path.parent} holds no sound {path.name}; make it with `fedptr deploy init`")
    return {name: {**entry, "node": entry.get("node")} for name, entry in found.items()}


def is_entry(entry: Any) -> bool:
    """Flower's number is text, and unknown until the node's key is registered."""
    if not isinstance(entry, dict) or type(entry.get("number")) is not int or not 0 <= entry["number"] < 2**31:
        return False
    return entry.get("node") is None or isinstance(entry["node"], str)
