"""Flower's SuperExec forks the ClientApp's process instead of starting a Python for every message.

Importing Flower takes about two seconds of a core, and the ClientApp of every message needs it: on a machine with
several nodes, or a slow one, that was most of a round. The process that is forked has imported Flower and our ClientApp
and computed nothing; torch is in the node's worker. A command that is not the ClientApp, or that would install
packages, is refused.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import traceback
from types import SimpleNamespace
from typing import Any

from fedptr.engines.flower.patches.flower_code import FlowerCode, refuse_flower

EXECUTOR = "flwr.supercore.superexec.executor.subprocess_executor"
FLOWER = (
    FlowerCode(EXECUTOR, "SubprocessExecutor.launch", 83, "subprocess.Popen(args)", "83abf3dbe02281fd"),
    FlowerCode(
        "flwr.supercore.exit.exit_handler",
        "add_exit_handler",
        71,
        "registered_exit_handlers.append(",
        "c153212885dfd1be",
    ),
    FlowerCode(
        "flwr.supernode.cli.flwr_clientapp",
        "flwr_clientapp",
        31,
        "_parse_args_run_flwr_clientapp()",
        "9e02b412fb895b05",
    ),
)
CLIENT_APP = "flwr-clientapp"


def fork_client_apps() -> None:
    """The executor's `subprocess` becomes ours."""
    from flwr.supercore.superexec.executor import subprocess_executor as executor

    if getattr(executor, "subprocess", None) is not subprocess:
        refuse_flower()
    executor.subprocess = SimpleNamespace(Popen=fork, DEVNULL=subprocess.DEVNULL)


def fork(command: list[str], **_: Any) -> None:
    """Runs Flower's own ClientApp process in a child of this one."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    if command[0] != CLIENT_APP or "--allow-runtime-dependency-installation" in command:
        refuse_flower()
    if os.fork():
        return
    code = 1
    try:
        code = run_client_app(command)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_client_app(command: list[str]) -> int:
    from flwr.supercore.exit import exit_handler
    from flwr.supernode.cli import flwr_clientapp

    exit_handler.registered_exit_handlers.clear()  # the parent's
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    sys.argv = command
    flwr_clientapp()
    return 0
