"""What counts as a number in a file that anybody may have written."""

from __future__ import annotations

from typing import Any

LARGEST = 1e100  # what is larger was never measured


def sound(value: Any) -> bool:
    """A number that can be computed with."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST < value < LARGEST
