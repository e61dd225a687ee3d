"""What a node tells of its training besides the reply: the entries of a visit's log, as JSON and back."""

from __future__ import annotations

from typing import Any

import torch

from fedptr.engines.flower.wire.schema import LONGEST_LOG, check_log
from fedptr.types import State


def select_small_entries(log: State) -> dict[str, Any]:
    """Diagnostics small enough to be sent: numbers and short lists, all finite."""
    short = {name: value for name, value in log.items() if name != "target" and value.numel() <= LONGEST_LOG}
    return {name: value.tolist() for name, value in short.items() if bool(value.isfinite().all())}


def read_log(log: Any) -> tuple[State, list[str]]:
    """The diagnostics a node sent, as `visit` makes them; and a sentence for each entry that is left out."""
    found, notes = check_log(log)
    types = {name: torch.int64 if name == "steps" else torch.float64 for name in found}
    return {name: torch.tensor(value, dtype=types[name]) for name, value in found.items()}, notes
