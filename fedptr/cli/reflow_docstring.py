"""Docstrings, which are written for 120 columns, on a terminal that has fewer: paragraphs, numbered details, symbols.

>>> print(reflow("One line that\\nwas cut here.\\n\\n    w_i     the model of\\n\\n1. A detail that is\\n   long.", 20))
One line that was
cut here.
<BLANKLINE>
    w_i     the
            model of
<BLANKLINE>
1. A detail that is
   long.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

BEGINS = re.compile(r"(?P<number>\d+\. )|(?P<symbol> {4}\S.*?\s{2,})")
KEPT = ("|", ">>>")  # tables and examples stay as they are


def reflow(text: str, width: int) -> str:
    return "\n".join(line for part in parts(text) for line in wrapped(part, width))


def parts(text: str) -> Iterator[str]:
    """What belongs together, as one long line each; an empty one between paragraphs."""
    part = ""
    for line in text.splitlines():
        alone = not line.strip() or line.startswith(KEPT) or BEGINS.match(line)
        if part and (alone or part.startswith(KEPT)):
            yield part
            part = ""
        part = f"{part} {line.strip()}" if part else line
        if not line.strip():
            yield part
            part = ""
    if part:
        yield part


def wrapped(part: str, width: int) -> list[str]:
    if not part.strip() or part.startswith(KEPT):
        return [part]
    begin = BEGINS.match(part)
    hang = " " * (begin.end() if begin and begin.end() < 2 * width // 3 else 0)
    return textwrap.wrap(part, width, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False) or [part]
