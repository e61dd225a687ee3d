"""The command line. Nothing heavy is imported before a command needs it: `fedptr --help` does not import torch.

Exit codes:
    0      done
    1      a client, a run or a check failed; the reason was printed
    2      something the user can correct: an option, a plan, a file, a full disk
    3      something that should not happen; a file with the traceback was named
    130    stopped by Ctrl-C (141: nobody read the output any more, 143: stopped by SIGTERM); runs can be resumed
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from typing import Any, NoReturn

from fedptr import __version__
from fedptr.cli import (
    audit,
    compare,
    data,
    deploy,
    estimate,
    export,
    init,
    methods,
    partition,
    predict,
    report,
    reproduce,
    results,
    resume,
    run,
    settings,
    status,
    sweep,
    theory,
)
from fedptr.cli.completion import complete_command_line
from fedptr.cli.help_formatter import HelpFormatter
from fedptr.cli.unexpected_error import describe_unexpected, is_out_of_memory
from fedptr.errors import ClientError, UserError
from fedptr.runs.lock import StoppedError
from fedptr.settings import unknown_name_error

COMMANDS = (
    init, run, compare, sweep, estimate, resume, status, report, predict, export,
    methods, settings, data, partition, audit, deploy, reproduce, results, theory,
)  # fmt: skip


class CommandParser(argparse.ArgumentParser):
    def __init__(self, **how: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormatter, **how})

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """An unknown command is answered with the closest one."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            raise unknown_name_error(value, value, action.choices, f"a command of `{self.prog}`")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        """One sentence instead of the whole usage."""
        raise UserError(f"{message}; see `{self.prog} --help`")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Sub-commands use this too, so an unknown option is answered with the closest option of its command."""
        found, rest = super().parse_known_args(args, namespace)
        if rest and rest[0].startswith("-"):
            name = rest[0].partition("=")[0]
            raise unknown_name_error(name, name, self._option_string_actions, f"an option of `{self.prog}`")
        return found, rest


def build_parser() -> argparse.ArgumentParser:
    root: argparse.ArgumentParser = CommandParser(
        prog="fedptr", description="Federated learning with projected trajectory regularization."
    )
    root.add_argument("--version", action="version", version=f"fedptr {__version__}")
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return root


def main(argv: list[str] | None = None) -> int:
    warnings.showwarning = lambda message, *_: print_line(f"note: {message}")
    # OpenMP threads spin while they wait. On a busy machine this blocks the thread they wait for, and small models
    # train a hundred times slower. It must be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="replace")  # a terminal without β shows a question mark
    try:
        parser = build_parser()
        complete_command_line(parser)
        args = parser.parse_args(argv)
        code: int = args.handler(args)
        sys.stdout.flush()
        return code
    except StoppedError as error:
        print_line(str(error))
        return 128 + error.signal_number
    except KeyboardInterrupt as interrupt:
        print_line("; ".join(["stopped at once", *map(str, interrupt.args)]))  # how to continue, if there is a run
        return 130
    except BrokenPipeError:  # `fedptr methods | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (UserError, ClientError, OSError) as error:  # OSError: a full disk, a folder that may not be written
        if os.environ.get("FEDPTR_TRACEBACK"):
            raise
        print_line(
            f"{error} (FEDPTR_TRACEBACK=1 shows where)" if isinstance(error, ClientError) else describe_error(error)
        )
        return 1 if isinstance(error, ClientError) else 2
    except Exception as error:
        if os.environ.get("FEDPTR_TRACEBACK"):
            raise
        if is_out_of_memory(error):
            print_line("there is not enough memory; use a smaller model, batch or data.subset, or another machine")
            return 2
        print_line(describe_unexpected(error, argv))
        return 3


def describe_error(error: Exception) -> str:
    """The error's message, without the system's error number."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


def print_line(text: str) -> None:
    """Prints one line on stderr, without the line breaks and control characters that a message may contain."""
    print("fedptr:", *"".join(c if c.isprintable() else " " for c in text).split(), file=sys.stderr)
