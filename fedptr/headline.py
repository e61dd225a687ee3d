"""The score that a task is known by: its name in records and summaries, and how it is written. Higher is better.

A classifier has accuracy, in per cent. A model that predicts numbers has R², which is 1 where every prediction is right
and 0 for one that always says the mean. One that gives several labels a sample has F1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Headline:
    """
    >>> ACCURACY.write(0.5), R2.write(0.5), R2.test
    ('50.00%', '0.500', 'test_r2')
    """

    key: str  # in summaries: key, key_best …
    words: str
    percent: bool = False

    @property
    def test(self) -> str:
        """Its name in a round's record."""
        return f"test_{self.key}"

    @property
    def unit(self) -> str:
        return " %" if self.percent else ""

    @property
    def factor(self) -> int:
        """What it is multiplied by where the unit is in a heading."""
        return 100 if self.percent else 1

    @property
    def digits(self) -> int:
        return 2 if self.percent else 3

    @property
    def highest(self) -> float:
        return 1.0 * self.factor

    def write(self, value: float) -> str:
        """With its unit."""
        return f"{value:.2%}" if self.percent else f"{value:.3f}"

    def number(self, value: float) -> str:
        """Without its unit, of a value that was multiplied by the factor."""
        return f"{value:.{self.digits}f}"


ACCURACY, R2, F1 = Headline("accuracy", "accuracy", percent=True), Headline("r2", "R²"), Headline("f1", "F1")
HEADLINES = {"class": ACCURACY, "number": R2, "labels": F1}  # by a dataset's target


def find_headline(told: Mapping[str, Any]) -> Headline:
    """The headline of a summary, or of a round's record; accuracy where it has none.

    >>> find_headline({"test_f1": 0.5}).words, find_headline({"r2": 0.5}).words, find_headline({}).words
    ('F1', 'R²', 'accuracy')
    """
    return next((one for one in (R2, F1) if one.key in told or one.test in told), ACCURACY)


def headline_of_rounds(records: Iterable[Mapping[str, Any]]) -> Headline:
    """The same of the records of a run; rounds that were not evaluated tell nothing."""
    return next((one for record in records for one in HEADLINES.values() if one.test in record), ACCURACY)
