"""Flower's SuperNode, made quick: it looks for messages more often, and does not start a Python for every one.

Flower has no settings for either. Its loop sleeps three seconds between looks (here FEDPTR_NODE_POLL, by default 0.5) and
half a second while it waits for its own ClientApp; its SuperExec is exchanged for `fedptr.engines.flower.superexec`. A
Flower whose loop looks otherwise is started as it is: slower, and the same results.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

from fedptr.engines.flower.impatient import hurry

WAIT = 0.05  # seconds between two looks whether the ClientApp, on this machine, has answered
IDLE = 1.0  # pauses from here on are for messages from the server, shorter ones for the ClientApp


def main() -> None:
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.cli.flower_supernode import flower_supernode

    hurry()
    pause = float(os.environ.get("FEDPTR_NODE_POLL", "0.5"))
    if getattr(loop, "time", None) is time and getattr(loop, "subprocess", None) is subprocess:
        loop.time = SimpleNamespace(sleep=lambda seconds: time.sleep(pause if seconds >= IDLE else WAIT))
        loop.subprocess = SimpleNamespace(Popen=start)
    flower_supernode()


def start(command: list[str]) -> Any:
    if command[0] == "flower-superexec":
        command = [sys.executable, "-m", "fedptr.engines.flower.superexec", *command[1:]]
    return subprocess.Popen(command)


if __name__ == "__main__":
    sys.argv[0] = "flower-supernode"
    main()
