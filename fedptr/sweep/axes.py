"""The settings that a sweep varies: a list of values, or a range of numbers.

    --lr 0.1,0.03,0.01                values; a list in a plan or in brackets is the same: [0.1, 0.03]
    --lr 0.001..0.1                   a range

>>> parse_axis("local.lr", "0.1,0.01", float)
Values(place='local.lr', values=(0.1, 0.01))
>>> parse_axis("local.lr", "0.001..0.1", float).describe()
'0.001..0.1, drawn log-uniformly'
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fedptr.errors import UserError
from fedptr.methods import find_method
from fedptr.runs.plan import SECTIONS, Tables, parse_value
from fedptr.settings import effect_of, format_value, split_union, type_hints

LOG_FROM = 10  # times the lower end: wider ranges are drawn log-uniformly
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"\s*({NUMBER})\s*\.\.\s*({NUMBER})\s*")
PATHS = ("data.name", "data.dir", "data.features", "split.file")  # may have commas


@dataclass(frozen=True)
class Values:
    place: str
    values: tuple[Any, ...]

    def describe(self) -> str:
        return ", ".join(map(str, self.values))

    @property
    def ends(self) -> tuple[Any, ...]:
        return self.values

    def at(self, u: float) -> Any:
        """The value at a part of the way, from 0 to less than 1."""
        return self.values[int(u * len(self.values))]


@dataclass(frozen=True)
class Range:
    place: str
    low: float
    high: float
    whole: bool = False  # whole numbers only

    @property
    def log(self) -> bool:
        return self.low > 0 and self.high >= LOG_FROM * self.low

    def describe(self) -> str:
        kind = "whole numbers, " if self.whole else ""
        return f"{self.low:g}..{self.high:g}, {kind}drawn {'log-uniformly' if self.log else 'uniformly'}"

    @property
    def ends(self) -> tuple[Any, ...]:
        return self.low, self.high

    def at(self, u: float) -> Any:
        """The value at a part of the way, from 0 to less than 1; of numbers, three digits.

        >>> Range("local.lr", 0.001, 0.1).at(0.5), Range("local.epochs", 1, 4, whole=True).at(0.99)
        (0.01, 4)
        """
        if not self.whole:
            span = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
            value = span[0] + u * (span[1] - span[0])
            return self.settle(math.exp(value) if self.log else value)
        if self.log:
            low, high = math.log(self.low), math.log(self.high + 1)
            return self.settle(math.floor(math.exp(low + u * (high - low))))
        return self.settle(self.low + math.floor(u * (self.high + 1 - self.low)))

    def settle(self, value: float) -> Any:
        """A drawn value as a plan has it, within the range."""
        if self.whole:
            return int(min(max(value, self.low), self.high))
        return min(max(float(f"{value:.3g}"), self.low), self.high)

    def position(self, value: float) -> float:
        """How far the value is along the range, from 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


Axis = Values | Range


def find_axes(tables: Tables, method: str) -> dict[str, Axis]:
    """The settings that have several values or a range, by `section.key`, in the order of the tables."""
    found: dict[str, Axis] = {}
    for section, table in tables.items():
        for key, value in table.items() if isinstance(table, Mapping) and section in SECTIONS else ():
            place = f"{section}.{key}"
            if place != "method.name" and (axis := parse_axis(place, value, hint_of(section, key, method))):
                check_sweepable(section, key, method)
                found[place] = axis
    return found


def hint_of(section: str, key: str, method: str) -> Any:
    """The type of a setting; None if there is none of this name, which is refused when a plan is made of it."""
    return type_hints(class_of(section, method)).get(key)


def class_of(section: str, method: str) -> type:
    cls: Any = find_method(method) if section == "method" else SECTIONS[section].default_factory
    return cls  # type: ignore[no-any-return]


def check_sweepable(section: str, key: str, method: str) -> None:
    """Whether runs with several values of a setting can be compared."""
    place = f"{section}.{key}"
    spec = next((spec for spec in fields(class_of(section, method)) if spec.name == key), None)
    reason = ""
    if section == "data":
        reason = "scores on other data cannot be compared; start a sweep for each"
    elif place == "run.seed":
        reason = "seeds are repetitions; use --seeds N"
    elif spec is not None and effect_of(spec) != "result":
        reason = "it does not change what is learned; give it one value"
    if reason:
        raise UserError(f"{place} cannot be swept: {reason}")


def parse_axis(place: str, value: Any, hint: Any) -> Axis | None:
    """The values or the range that a setting is given; None if it is given one value."""
    if isinstance(value, list):
        return make_values(place, value)
    kinds = split_union(hint)
    if not isinstance(value, str) or place in PATHS:
        return None
    if ".." in value and "," not in value and str not in kinds and hint is not None:
        return make_range(place, value, whole=int in kinds and float not in kinds)
    if "," in value:
        parts = [part.strip() for part in value.split(",")]
        if "" in parts:
            raise UserError(f"{place} has an empty value in {format_value(value)}; write its values as 0.1,0.01")
        return make_values(place, [parse_value(part) for part in parts])
    return None


def make_values(place: str, values: list[Any]) -> Values:
    if not values:
        raise UserError(f"{place} is an empty list; name the values to try")
    for number, value in enumerate(values):
        if value in values[:number]:
            raise UserError(f"{place} names {format_value(value)} twice; name each value once")
    return Values(place, tuple(values))


def make_range(place: str, text: str, whole: bool) -> Range:
    if not (found := RANGE.fullmatch(text)):
        raise UserError(f"{place}: {format_value(text)} is not a range of numbers; write it as 0.001..0.1")
    low, high = (float(end) for end in found.groups())
    if whole and not (low.is_integer() and high.is_integer()):
        raise UserError(f"{place} takes whole numbers, so {format_value(text)} is not a range of it; write it as 1..8")
    if not (low < high and math.isfinite(high - low)):
        raise UserError(f"{place}: {format_value(text)} does not rise; write the smaller number first")
    return Range(place, int(low), int(high), True) if whole else Range(place, low, high)
