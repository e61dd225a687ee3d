"""A reference in a process of its own, with the defaults that PyTorch and the system give it.

Our side changes how its process handles memory and threads, and a reference must not profit from that, nor suffer.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

Work = Callable[[], object]


class Apart:
    """`make(*args)` gives the work, over there; a call does it once. `with Apart(make, 3) as work: work()`"""

    def __init__(self, make: Callable[..., Work], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.ours, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, make, args), daemon=True)
        self.process.start()

    def __call__(self) -> Any:
        """What the work returns; it is pickled, so let it be small."""
        self.ours.send(True)
        return self.ours.recv()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.join()


def serve(asked: Connection, make: Callable[..., Work], args: tuple[Any, ...]) -> None:
    work = make(*args)
    while asked.recv():
        asked.send(work())
