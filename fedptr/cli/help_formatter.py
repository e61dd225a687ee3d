"""The texts of `--help`: every option with its default."""

from __future__ import annotations

import argparse
import json

from fedptr.cli.read_source import read_settings
from fedptr.runs.laptop_settings import words_by_dataset


class HelpFormatter(argparse.HelpFormatter):
    """Adds the default to the help of an option, unless its words already name it."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        words = action.help or ""
        default = find_default(action)
        return words if "default" in words or not default else f"{words} (default {default.replace('%', '%%')})"


def find_default(action: argparse.Action) -> str:
    """The default in words; empty where there is none to show. An option for a setting has the setting's."""
    if place := getattr(action, "place", ""):
        if words := words_by_dataset(place):
            return f"by dataset: {words}"
        value = read_settings()[place].default
        return value if isinstance(value, str) else json.dumps(value)
    return str(action.default) if action.default and action.default != argparse.SUPPRESS else ""
