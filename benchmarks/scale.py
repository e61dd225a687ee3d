"""The size of a benchmark: the real one, or a quick one that only shows that everything works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    quick: bool = False
    full: bool = False  # also whole FedPTR rounds, which take an hour

    @property
    def repeats(self) -> int:
        return 2 if self.quick else 5

    def __call__(self, size: int) -> int:
        """A size from the table, or a small one instead.

        >>> Scale()(128), Scale(quick=True)(128)
        (128, 16)
        """
        return max(2, size // 8) if self.quick else size
