"""A reference in a separate process, with the defaults that PyTorch and the system give it.

Our side changes how its process handles memory and threads; this must not affect a reference.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

Work = Callable[[], object]


class SeparateProcess:
    """A process in which `make(*args)` prepares the work; a call does it once. Use it with `contextlib.closing`."""

    def __init__(self, make: Callable[..., Work], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.ours, theirs = context.Pipe()
        self.process = context.Process(target=serve_work, args=(theirs, make, args), daemon=True)
        self.process.start()

    def __call__(self) -> Any:
        """What the work returns. It is pickled, so it should be small."""
        self.ours.send(True)
        return self.ours.recv()

    def close(self) -> None:
        self.process.kill()
        self.process.join()


def serve_work(asked: Connection, make: Callable[..., Work], args: tuple[Any, ...]) -> None:
    work = make(*args)
    while asked.recv():
        asked.send(work())
