"""Flower's SuperExec on a node: it runs our ClientApp, whatever app the server sent, and forks it.

Flower sends an app with every run and executes it on the nodes: whoever has the server runs any program on them. Here
the app is neither unpacked nor loaded; a node runs the fedptr that was installed on it and nothing else. A Flower in
which that cannot be made sure is refused.

Importing Flower costs about two seconds of a core, every message's ClientApp needs it, and on a machine with several
nodes or little to spare that was most of a round. What is forked here is a process that has imported Flower and our
ClientApp and computed nothing: torch is in the node's worker.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import traceback
from types import SimpleNamespace
from typing import Any, NoReturn

from fedptr.engines.flower.patches.pull_pauses import hurry

CLIENT_APP = "flwr-clientapp"
UNKNOWN = "fedptr: this Flower might run programs that the server sends; install the one of fedptr[flower]"


def main() -> None:
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supernode.cli import flwr_clientapp  # noqa: F401 (imported for the children)

    from fedptr.engines.flower.node import worker  # noqa: F401

    hurry()
    keep_ours()
    flower_superexec()


def keep_ours() -> None:
    """In this process and its children Flower's ClientApp process takes our app for the one that was sent."""
    from flwr.supercore.superexec.executor import subprocess_executor as executor

    from fedptr.engines.flower.client_app import app

    process = importlib.import_module("flwr.supernode.runtime.run_clientapp")  # a function has the same name
    ours = {"install_from_fab": lambda *_, **__: None, "get_load_client_app_fn": lambda **_: lambda *_: app}
    known = all(callable(getattr(process, name, None)) for name in ours)
    if not known or getattr(executor, "subprocess", None) is not subprocess:
        refuse()
    for name, function in ours.items():
        setattr(process, name, function)
    executor.subprocess = SimpleNamespace(Popen=launch, DEVNULL=subprocess.DEVNULL)


def refuse() -> NoReturn:
    print(UNKNOWN, file=sys.stderr)
    raise SystemExit(2)


def launch(command: list[str], **_: Any) -> Any:
    """A child that runs Flower's own ClientApp process, from where this one has come."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    if command[0] != CLIENT_APP or "--allow-runtime-dependency-installation" in command:
        refuse()
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
