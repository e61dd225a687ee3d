"""`python -m fedptr.engines.flower.supernode`: Flower's SuperNode, made quick, safe and lasting.

It looks for messages more often, forks the ClientApp, and runs nothing that the server sends: see `supernode_loop`,
`forked_client_app` and `own_client_app` in `fedptr.engines.flower.patches`.

Flower's SuperNode ends when the server turns it away. That happens to a node that comes back before the server has
noticed that it was gone, and to one whose key is not registered yet. Here it starts again.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from fedptr.engines.flower.patches.pull_pauses import shorten_pull_pauses
from fedptr.engines.flower.patches.supernode_loop import patch_loop
from fedptr.engines.flower.superexec import run_own_programs

INNER = "--inner"  # the first argument of the process that is the SuperNode
AGAIN = 3  # seconds until it is started again


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
        if inner[-1].wait() == 2:  # a wrong argument or Flower: the next start would end in the same way
            return 2
        for _ in range(10 * AGAIN):
            if not asked:
                time.sleep(0.1)
    return 128 + asked[0]


def run_supernode() -> None:
    """Flower's SuperNode itself."""
    from flwr.supernode.cli import flower_supernode

    shorten_pull_pauses()
    run_own_programs()
    patch_loop()
    flower_supernode()


if __name__ == "__main__":
    if sys.argv[1:2] == [INNER]:
        sys.argv = ["flower-supernode", *sys.argv[2:]]
        run_supernode()
    else:
        raise SystemExit(main())
