"""Every setting of a plan, from its dataclass: for `fedptr settings`, `fedptr init` and the documentation."""

from __future__ import annotations

import json
import typing
from dataclasses import dataclass, fields
from typing import Any

from fedptr.errors import UserError
from fedptr.methods import find_method
from fedptr.methods.fedptr import FedPTR
from fedptr.runs.laptop_settings import words_by_dataset
from fedptr.runs.plan import SECTIONS
from fedptr.settings import choices_of, describe_type, effect_of, example_of, unknown_name_error

MEANINGS = {
    "run": "how long a run is, who takes part, and what a seed decides",
    "data": "which dataset, and how much of it",
    "split": "how the data is spread over clients",
    "model": "which model is trained",
    "local": "how a client trains",
    "faults": "simulated clients that drop out or are slow",
    "privacy": "differential privacy, and secure aggregation",
    "machine": "where and how it is computed",
    "output": "what a run folder holds besides the results",
    "method": "which method, and its own settings",
}


@dataclass(frozen=True)
class SettingInfo:
    """What there is to know about a setting."""

    section: str
    key: str
    default: Any
    takes: str
    choices: list[str]  # empty if any value of its type will do
    meaning: str
    affects: str
    example: Any

    @property
    def place(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def assignment(self) -> str:
        """The example as `--set` takes it; text needs no quotes."""
        value = self.example if isinstance(self.example, str) else format_toml(self.example)
        return f"{self.place}={value}"


def format_toml(value: Any) -> str:
    """A setting's value as a plan has it.

    >>> format_toml("digits"), format_toml(True), format_toml(1e-05)
    ('"digits"', 'true', '1e-05')
    """
    return json.dumps(value, ensure_ascii=False)


def list_settings(section: str, method: str = FedPTR.name) -> list[SettingInfo]:
    """The settings of a section, in the order of its dataclass; in the section `method`, those of this method."""
    cls: Any = find_method(method) if section == "method" else SECTIONS[section].default_factory
    hints = typing.get_type_hints(cls)
    found = [
        SettingInfo(
            section,
            spec.name,
            spec.default,
            describe_type(hints[spec.name], spec.metadata["bounds"]),
            choices_of(hints[spec.name]),
            describe_meaning(f"{section}.{spec.name}", spec.metadata["doc"]),
            effect_of(spec),
            example_of(spec, hints[spec.name]),
        )
        for spec in fields(cls)
    ]
    if section == "method":
        takes = "a name of `fedptr methods`, NAME+ptr, or your own class as module:Class"
        name = SettingInfo(section, "name", FedPTR.name, takes, [], "the method", "result", "scaffold")
        return [name, *found]
    return found


def describe_meaning(place: str, words: str) -> str:
    """With the defaults by dataset, where there are any: the setting's own is the paper's."""
    by_dataset = words_by_dataset(place)
    return f"{words}; default by dataset: {by_dataset} (--preset paper: as shown)" if by_dataset else words


def select_settings(what: str | None, method: str = FedPTR.name) -> list[SettingInfo]:
    """The settings of a plan, of one section, or a single one as `section.key`; a mistyped name gets a suggestion."""
    if what is None:
        return [info for section in SECTIONS for info in list_settings(section, method)]
    section, dot, key = what.partition(".")
    if section not in SECTIONS:
        everywhere = select_settings(None, method)
        if alone := next((info.place for info in everywhere if info.key == (key or section)), None):
            raise UserError(f"{what} is not a section of a plan; did you mean {alone}?")
        raise unknown_name_error(section, section, SECTIONS, "a section of a plan")
    found = list_settings(section, method)
    if not dot:
        return found
    if chosen := [info for info in found if info.key == key]:
        return chosen
    kind = f"a setting of {method}" if section == "method" else "a setting"
    raise unknown_name_error(what, key, [info.key for info in found], kind)
