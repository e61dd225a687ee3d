"""Flower's SuperNode, made quick: it looks for messages more often, and does not start a Python for every one.

Flower has no settings for either. Its loop sleeps three seconds between looks (here FEDPTR_NODE_POLL, by default 0.5)
and half a second while it waits for its own ClientApp; its SuperExec is exchanged for that of
`fedptr.engines.flower.superexec`, which runs nothing that the server sends. A Flower whose loop looks otherwise is
refused.

It is also made to last. Flower's SuperNode ends when the server turns it away, which happens to a node that comes back
sooner than the server has noticed that it was gone, and to one whose key is not registered yet. Here it tries again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

from fedptr.engines.flower.patches.pull_pauses import hurry
from fedptr.engines.flower.superexec import keep_ours, refuse

INNER = "--inner"  # the first argument of the process that is the SuperNode
AGAIN = 5  # seconds until it is started again
WAIT = 0.05  # seconds between two looks whether the ClientApp, on this machine, has answered
IDLE = 1.0  # pauses from here on are for messages from the server, shorter ones for the ClientApp


def main() -> int:
    """Starts the SuperNode again whenever it ends, until this process is asked to end."""
    asked: list[int] = []
    inner: list[subprocess.Popen[bytes]] = []

    def stop(number: int, frame: object) -> None:
        asked.append(number)
        for process in inner[-1:]:
            process.send_signal(signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    while not asked:
        inner.append(subprocess.Popen([sys.executable, "-m", __spec__.name, INNER, *sys.argv[1:]]))
        if inner[-1].wait() == 2:  # what was said will be said again
            return 2
        for _ in range(10 * AGAIN):
            if not asked:
                time.sleep(0.1)
    return 128 + asked[0]


def once() -> None:
    """Flower's SuperNode itself."""
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.cli.flower_supernode import flower_supernode

    hurry()
    keep_ours()
    pause = float(os.environ.get("FEDPTR_NODE_POLL", "0.5"))
    if getattr(loop, "time", None) is not time or getattr(loop, "subprocess", None) is not subprocess:
        refuse()
    loop.time = SimpleNamespace(sleep=lambda seconds: time.sleep(pause if seconds >= IDLE else WAIT))
    loop.subprocess = SimpleNamespace(Popen=start)
    flower_supernode()


def start(command: list[str]) -> Any:
    if command[0] != "flower-superexec":
        refuse()
    return subprocess.Popen([sys.executable, "-m", "fedptr.engines.flower.superexec", *command[1:]])


if __name__ == "__main__":
    if sys.argv[1:2] == [INNER]:
        sys.argv = ["flower-supernode", *sys.argv[2:]]
        once()
    else:
        raise SystemExit(main())
