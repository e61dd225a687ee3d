"""A method's settings to try: all of a grid, or some that are drawn.

A draw depends on its number, the setting's name and the seed alone. So more draws begin with the same ones, another
setting does not change how the others are drawn, and methods are tried with the same values of what they share.
"""

from __future__ import annotations

import copy
import itertools
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedptr.errors import UserError
from fedptr.methods import is_known
from fedptr.runs.compare import check_shared_settings, with_client_tests
from fedptr.runs.plan import Plan, Tables, check_plan, tables_for_method
from fedptr.sweep.axes import Axis, Range, Values, find_axes, hint_of, parse_axis

Settings = dict[str, Any]  # section.key -> value
MOST = 10_000  # settings of a method
TRIES = 100  # draws for each setting that is to be new


@dataclass(frozen=True)
class Space:
    """What a sweep varies of one method; `tables` has the first value of everything that is varied."""

    method: str
    tables: Tables
    axes: dict[str, Axis]

    def plan_at(self, settings: Settings, seed: int) -> Plan:
        return check_plan(assign(self.tables, {**settings, "run.seed": seed}))

    @property
    def ranges(self) -> list[Range]:
        return [axis for axis in self.axes.values() if isinstance(axis, Range)]

    def grid(self) -> list[Settings]:
        """Every combination of the values."""
        for axis in self.ranges:
            raise UserError(
                f"{axis.place} is a range: say how many settings to draw with --random N, or name values with commas"
            )
        lists = [axis.values for axis in self.axes.values() if isinstance(axis, Values)]
        if (count := math.prod(map(len, lists))) > MOST:
            raise UserError(f"{count:,} settings of {self.method} are too many; draw some of them with --random N")
        return [dict(zip(self.axes, values, strict=True)) for values in itertools.product(*lists)]

    def draw(self, count: int, seed: int) -> list[Settings]:
        """`count` different settings; fewer if there are no more."""
        if not self.ranges:
            grid = self.grid()
            order = np.random.default_rng((seed, 0)).permutation(len(grid))
            return [grid[i] for i in order[:count]]
        found: list[Settings] = []
        for number in range(TRIES * count):
            settings = {place: axis.at(draw_part(seed, number, place)) for place, axis in self.axes.items()}
            if settings not in found:
                found.append(settings)
            if len(found) == count:
                break
        return found


def draw_part(seed: int, number: int, place: str) -> float:
    """From 0 to less than 1."""
    return float(np.random.default_rng((seed, number, zlib.crc32(place.encode()))).random())


def make_spaces(tables: Tables, names: Sequence[str]) -> list[Space]:
    """The space of every method, checked at the ends of all that is varied, before anything runs."""
    check_shared_settings(with_first_values(tables), names)
    tables = with_client_tests(tables, names)
    spaces = []
    for name in names:
        own = {section: table for section, table in tables_for_method(tables, name).items() if section != "methods"}
        axes = find_axes(own, name)
        space = Space(name, assign(own, {place: axis.ends[0] for place, axis in axes.items()}), axes)
        for settings in list_ends(axes):
            plan = space.plan_at(settings, 0)
            if not plan.data.validation:
                raise UserError(
                    "a sweep chooses by held-out training samples and never by the test set, so data.validation must "
                    "be more than 0; leave it out for 0.2"
                )
        spaces.append(space)
    return spaces


def list_ends(axes: Mapping[str, Axis]) -> Iterator[Settings]:
    """Every value and every end of a range, each with the first ones of the others."""
    first = {place: axis.ends[0] for place, axis in axes.items()}
    yield first
    for place, axis in axes.items():
        for value in axis.ends[1:]:
            yield {**first, place: value}


def with_first_values(tables: Tables) -> Tables:
    """The tables with one value of each setting in [methods.NAME], whose names and values are checked whoever runs."""
    result = copy.deepcopy(tables)
    several = result.get("methods", {})
    for name, table in several.items() if isinstance(several, dict) else ():
        if isinstance(table, dict) and is_known(name):
            for key, value in table.items():
                axis = parse_axis(f"method.{key}", value, hint_of("method", key, name))
                table[key] = axis.ends[0] if axis else value
    return result


def assign(tables: Tables, settings: Settings) -> Tables:
    """The tables with other values of some settings."""
    result = copy.deepcopy(tables)
    for place, value in settings.items():
        section, key = place.split(".")
        result.setdefault(section, {})[key] = value
    return result


def describe_axes(spaces: Sequence[Space]) -> list[str]:
    """What is varied, one line a setting."""
    lines: dict[str, None] = {}
    for space in spaces:
        for place, axis in space.axes.items():
            lines[f"{place}: {axis.describe()}"] = None
    return list(lines)
