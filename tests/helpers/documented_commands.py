"""The `fedptr …` lines of a text, parsed and their plans checked as the command line would."""

from __future__ import annotations

import re
import shlex

from fedptr.cli.main import build_parser
from fedptr.cli.plan_options import build_tables
from fedptr.runs.plan import check_plan

COMING = ("predict", "export", "settings", "init")  # documented while they are built; remove those that exist


def check_commands(text: str) -> int:
    """How many commands there are; raises for one that is not understood."""
    parser = build_parser()
    (known,) = (action.choices for action in parser._actions if action.dest == "command")
    commands = re.findall(r"^ *fedptr (?!:)(.*?)(?:  +#.*)?$", text, re.MULTILINE)
    for command in commands:
        name = command.partition(" ")[0]
        if name in COMING and name not in (known or ()):
            continue
        args = parser.parse_args(shlex.split(command.replace("my.toml ", "")))  # a file that the reader writes
        if args.command in ("run", "compare", "partition"):
            check_plan(build_tables(args))
    return len(commands)
