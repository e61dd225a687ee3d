"""Flower's SuperNode, looking for messages more often than every three seconds (FEDPTR_NODE_POLL, default 0.2).

Flower has no setting for it: the pause is a `time.sleep(3)` in its loop. A Flower whose loop looks otherwise is started as
it is.
"""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace


def main() -> None:
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.cli.flower_supernode import flower_supernode

    pause = float(os.environ.get("FEDPTR_NODE_POLL", "0.2"))
    if getattr(loop, "time", None) is time:
        loop.time = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, pause)))
    flower_supernode()


if __name__ == "__main__":
    sys.argv[0] = "flower-supernode"
    main()
