"""Messages for the person at the terminal: notices, progress bars, durations, counts. Results go to stdout."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Bars:
    """The bars that are on the terminal now. Whoever comes while there are some adds a line to them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.shown: Any = None  # rich's Progress

    @contextmanager
    def open(self, columns: Sequence[Any] = ()) -> Iterator[Any]:
        """The bars, new ones with these columns if there are none; of these, nothing stays on the terminal."""
        from rich.console import Console
        from rich.progress import Progress

        with self.lock:
            there = self.shown
            if there is None:
                self.shown = Progress(
                    *columns, console=Console(stderr=True), transient=not columns, expand=bool(columns)
                )
                self.shown.start()
            bars = self.shown
        try:
            yield bars
        finally:
            if there is None:
                with self.lock:
                    self.shown = None
                bars.stop()


BARS = Bars()


@contextmanager
def progress_bar(words: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the amount of work done since the last call; `total` may be unknown.

    Bars may be open at the same time, also in several threads; one that ends disappears.
    """
    if BARS.shown is None and not sys.stderr.isatty():  # beneath rich's bars, stderr is no terminal
        yield lambda done: None
        return
    with BARS.open() as bars:
        task = bars.add_task(words, total=total, unit="", words="")
        try:
            yield lambda done: bars.advance(task, done)
        finally:
            bars.remove_task(task)


def print_notice(words: str) -> None:
    """One line on stderr; stdout is for results."""
    print(f"fedptr: {make_printable(words)}", file=sys.stderr)


def make_printable(text: str) -> str:
    """A text of unknown origin as one line for a terminal: nothing in it moves a cursor, hides, or cannot be encoded.

    >>> make_printable("north\\x1b[2J\\nsouth")
    'north\\\\x1b[2J south'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)


def install_command(extra: str) -> str:
    """The command that adds an extra to the fedptr that is running, whether it came from an index or from a clone.

    pip keeps an installed fedptr and adds what the extra names. Where `pip` is that of another Python, or there is
    none, the command names this Python.
    """
    pip, python = shutil.which("pip"), Path(sys.executable)
    start = "pip" if pip and Path(pip).parent == python.parent else f"{python} -m pip"
    return f"{start} install 'fedptr[{extra}]'"


def format_duration(seconds: float) -> str:
    """Seconds in the largest unit that suits.

    >>> format_duration(42), format_duration(600), format_duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )


def count_noun(count: int, noun: str, several: str = "") -> str:
    """
    >>> count_noun(1, "round"), count_noun(2, "class", "classes")
    ('1 round', '2 classes')
    """
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"


def describe_last_words(log: Path) -> str:
    """For the end of a sentence about a process that failed."""
    said = last_line(log)
    return f"it said last: {said}" if said else "it has said nothing"


def last_line(log: Path) -> str:
    """What a process said last in its log, shortened; empty where it said nothing."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        return str(error)
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]
