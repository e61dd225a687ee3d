"""Flower's SuperNode looks for messages more often, and starts our SuperExec.

Its loop sleeps three seconds between two looks for messages (here FEDPTR_NODE_POLL, by default 0.5) and half a second
while it waits for its own ClientApp (here 0.05). It starts `flower-superexec`, which would run what the server sends;
here it starts `fedptr.engines.flower.superexec`. A Flower with another loop is refused.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

from fedptr.engines.flower.patches.flower_code import FlowerCode, refuse_flower

LOOP = "flwr.supernode.start_client_internal"
FLOWER = (
    FlowerCode(LOOP, "start_client_internal", 222, "subprocess.Popen(command)", "9e89a6eb68fbec68"),
    FlowerCode(LOOP, "start_client_internal", 209, 'command = ["flower-superexec"]', "9e89a6eb68fbec68"),
    FlowerCode(LOOP, "start_client_internal", 263, "time.sleep(3)", "9e89a6eb68fbec68"),
    FlowerCode(LOOP, "_push_messages", 470, "time.sleep(0.5)", "00bb86faffdec114"),
)
WAIT = 0.05  # seconds between two looks whether the ClientApp, on this machine, has answered
IDLE = 1.0  # pauses from here on are for messages from the server, shorter ones for the ClientApp


def patch_loop() -> None:
    """The loop's `time` and `subprocess` become ours."""
    from flwr.supernode import start_client_internal as loop

    pause = float(os.environ.get("FEDPTR_NODE_POLL", "0.5"))
    if getattr(loop, "time", None) is not time or getattr(loop, "subprocess", None) is not subprocess:
        refuse_flower()
    loop.time = SimpleNamespace(sleep=lambda seconds: time.sleep(pause if seconds >= IDLE else WAIT))
    loop.subprocess = SimpleNamespace(Popen=start_superexec)


def start_superexec(command: list[str]) -> Any:
    if command[0] != "flower-superexec":
        refuse_flower()
    return subprocess.Popen([sys.executable, "-m", "fedptr.engines.flower.superexec", *command[1:]])
