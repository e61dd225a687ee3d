"""Every setting there is, with a value that is not its default."""

from __future__ import annotations

import typing
from dataclasses import fields
from typing import Any, Literal

from fedptr.methods import all_methods
from fedptr.runs.plan import SECTIONS
from fedptr.settings import split_union


def other(default: Any, hint: Any, bounds: dict[str, float]) -> Any:
    """A valid value of a setting that is not its default, where there is one."""
    for kind in split_union(hint):
        if typing.get_origin(kind) is Literal:
            candidates: list[Any] = list(typing.get_args(kind))
        else:
            candidates = {bool: [True, False], str: ["x"], int: [3, 4], float: [0.5, 0.25]}[kind]
        for value in candidates:
            if value != default:
                return value
    return default


def every_setting() -> list[tuple[str, str, Any]]:
    """(method, section.key, another value) of every field there is."""
    found = []
    for name, spec in SECTIONS.items():
        for method in all_methods() if name == "method" else ["fedavg"]:
            cls: Any = all_methods()[method] if name == "method" else spec.default_factory
            hints = typing.get_type_hints(cls)
            for f in fields(cls):
                found.append((method, f"{name}.{f.name}", other(f.default, hints[f.name], f.metadata["bounds"])))
    return found
