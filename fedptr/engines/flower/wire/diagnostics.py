"""What a node tells of its training besides the reply: the entries of a visit's log, as JSON and back."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from fedptr.types import State

MOST = 10**9  # steps of a visit
LOGGED = 4096  # numbers; longer entries (the projected model) stay on the node


def select_small_entries(log: State) -> dict[str, Any]:
    """Diagnostics small enough to be sent: numbers and short lists, all finite."""
    short = {name: value for name, value in log.items() if name != "target" and value.numel() <= LOGGED}
    return {name: value.tolist() for name, value in short.items() if bool(value.isfinite().all())}


def read_log(words: Any) -> State:
    """The diagnostics a node sent, as `visit` makes them; whatever is not a finite number is left out.

    So is a number of steps that cannot be one: methods count on it.
    """
    found: dict[str, Tensor] = {}
    for name, value in list(words.items())[:64] if isinstance(words, dict) else ():
        numbers = value if isinstance(value, list) else [value]
        good = all(type(n) in (int, float) and abs(n) < 2**53 for n in numbers)
        if isinstance(name, str) and len(name) < 64 and len(numbers) <= LOGGED and good:
            with contextlib.suppress(ValueError, TypeError, RuntimeError):
                whole = name == "steps"
                found[name] = torch.tensor(value, dtype=torch.int64 if whole else torch.float64)
    steps = words.get("steps") if isinstance(words, dict) else None
    if type(steps) is not int or not 1 <= steps <= MOST:
        found.pop("steps", None)
    return found
