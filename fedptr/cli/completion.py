"""Completion in the shell, by argcomplete (`pip install 'fedptr[completion]'`). Nothing heavy is imported for it.

A completer is a function of the word begun so far; argcomplete finds it as an attribute of the option.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterable

from fedptr.cli import read_source

Completer = Callable[..., Iterable[str]]


def complete_command_line(parser: argparse.ArgumentParser) -> None:
    """Answers the shell and ends the process, if it is the shell that asks and argcomplete is installed."""
    if "_ARGCOMPLETE" in os.environ:
        with contextlib.suppress(ImportError):
            import argcomplete

            argcomplete.autocomplete(parser)


def with_completer(action: argparse.Action, completer: Completer) -> None:
    action.completer = completer  # type: ignore[attr-defined]


def complete_methods(prefix: str = "", **_: object) -> list[str]:
    names = read_source.read_method_names()
    return [*names, *(f"{name}+ptr" for name in names)] if "+" in prefix else names


def complete_method_list(prefix: str = "", **_: object) -> list[str]:
    """The names after the last comma."""
    before = prefix[: prefix.rfind(",") + 1]
    return [before + name for name in read_source.read_method_names() if name not in before.split(",")]


def complete_datasets(prefix: str = "", **_: object) -> list[str]:
    """The known datasets, and files and folders: own data is a path."""
    from argcomplete.completers import FilesCompleter

    from fedptr.data.sources import SOURCES

    return [*SOURCES, *FilesCompleter()(prefix)]


def complete_dataset_names(**_: object) -> list[str]:
    from fedptr.data.sources import SOURCES

    return list(SOURCES)


def complete_recipes(**_: object) -> list[str]:
    found = (path.stem for path in (read_source.ROOT / "reproduce" / "recipes").glob("*.toml"))
    return sorted(name for name in found if name != "common")


def complete_places(**_: object) -> list[str]:
    """Sections, and keys as `section.key`."""
    places = list(read_source.read_settings())
    return [*dict.fromkeys(place.partition(".")[0] for place in places), *places]


def complete_assignment(prefix: str = "", **_: object) -> list[str]:
    """`section.key=`, and after the sign the words that the setting takes."""
    known = read_source.read_settings()
    place, equals, _value = prefix.partition("=")
    if not equals:
        return [f"{name}=" for name in known]
    words = complete_setting(place)()
    return [f"{place}={word}" for word in words]


def complete_setting(place: str) -> Completer:
    """The completer of an option that stands for a setting."""
    special: dict[str, Completer] = {"method.name": complete_methods, "data.name": complete_datasets}

    def complete_words(**_: object) -> Iterable[str]:
        known = read_source.read_settings().get(place)
        return known.choices if known else ()

    return special.get(place, complete_words)
