"""Flower's SuperExec, which forks its ClientApps instead of starting them: Flower is imported once, not per message.

Importing Flower costs about two seconds of a core, every message's ClientApp needs it, and on a machine with several
nodes or little to spare that was most of a round. What is forked here is a process that has imported Flower and our
ClientApp and computed nothing: torch is in the node's worker.
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

from fedptr.engines.flower.impatient import hurry

CLIENT_APP = "flwr-clientapp"


def main() -> None:
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor as executor
    from flwr.supernode.cli import flwr_clientapp  # noqa: F401 (imported for the children)

    from fedptr.engines.flower import client_app, worker  # noqa: F401

    hurry()
    if getattr(executor, "subprocess", None) is subprocess and hasattr(os, "fork"):
        executor.subprocess = SimpleNamespace(Popen=launch, DEVNULL=subprocess.DEVNULL)
    flower_superexec()


def launch(command: list[str], **how: Any) -> Any:
    """A child that runs Flower's own ClientApp process, from where this one has come."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    if command[0] != CLIENT_APP:
        return subprocess.Popen(command, **how)
    if os.fork():
        return None
    code = 1
    try:
        code = child(command)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def child(command: list[str]) -> int:
    from flwr.supercore.exit import exit_handler
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

    exit_handler.registered_exit_handlers.clear()  # the parent's
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    sys.argv = command
    flwr_clientapp()
    return 0


if __name__ == "__main__":
    sys.argv[0] = "flower-superexec"
    main()
