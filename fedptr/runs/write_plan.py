"""A plan with comments, for `fedptr init`: every setting with its meaning, and what differs from the defaults set."""

from __future__ import annotations

import textwrap
from typing import Any

import tomli_w

from fedptr.errors import UserError
from fedptr.methods import method_address
from fedptr.runs.describe_settings import MEANINGS, SettingInfo, format_toml, list_settings
from fedptr.runs.plan import Plan, Tables, check_plan

WIDTH = 110
HEAD = """\
# A plan for fedptr. Start it with: fedptr run {name}
#
# Settings at their defaults are commented out, like #rounds = 50: remove the # to change one.
# `fedptr settings` lists all settings with examples.
"""
REST = """\
# Left out here: {sections}. `fedptr settings SECTION` lists what they hold.
"""
RARE = ("faults", "privacy")  # sections that few plans need


def write_commented_plan(tables: Tables, name: str = "PLAN.toml") -> str:
    """The plan of these tables as TOML with comments; running it is running the tables."""
    plan = check_plan(tables)
    left_out = [section for section in RARE if not tables.get(section)]
    parts = [HEAD.format(name=name)]
    for section, meaning in MEANINGS.items():
        if section not in left_out:
            lines = [f"[{section}]  # {meaning}"]
            for info in list_settings(section, method_address(type(plan.method))):
                lines += ["", *describe_setting(info), write_setting(info, plan, tables)]
            parts.append("\n".join(lines) + "\n")
    if left_out:
        parts.append(REST.format(sections=", ".join(f"[{section}]" for section in left_out)))
    if "methods" in tables:
        parts.append(tomli_w.dumps({"methods": tables["methods"]}))
    return "\n".join(parts)


def describe_setting(info: SettingInfo) -> list[str]:
    """The meaning and the range of a setting, as lines of comments."""
    words = info.meaning if info.takes == "text" else f"{info.meaning} ({info.takes})"
    return [f"# {line}" for line in textwrap.wrap(words, WIDTH, break_long_words=False, break_on_hyphens=False)]


def write_setting(info: SettingInfo, plan: Plan, tables: Tables) -> str:
    """A setting's line, commented out if the plan is the same without it."""
    value = value_in_plan(plan, info)
    sign = "" if info.key in tables.get(info.section, {}) and not is_default(info, value, tables) else "#"
    return f"{sign}{info.key} = {format_toml(value)}"


def value_in_plan(plan: Plan, info: SettingInfo) -> Any:
    if info.place == "method.name":
        return method_address(type(plan.method))
    return getattr(getattr(plan, info.section), info.key)


def is_default(info: SettingInfo, value: Any, tables: Tables) -> bool:
    """Whether the plan would have this value if it did not name the setting."""
    if info.place == "method.name":
        return bool(value == info.default)
    others = {key: known for key, known in tables[info.section].items() if key != info.key}
    try:
        return bool(value_in_plan(check_plan({**tables, info.section: others}), info) == value)
    except UserError:  # the others need it
        return False
