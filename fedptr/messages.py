"""A progress bar on stderr, and none where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(words: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yields the function to call with how much was done; `total` may be unknown."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(words, total=total)
        yield lambda done: progress.advance(task, done)


def notice(words: str) -> None:
    """One line for the person at the terminal; stdout stays for results."""
    print(f"fedptr: {words}", file=sys.stderr)
