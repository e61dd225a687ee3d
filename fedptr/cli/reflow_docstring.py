"""Wraps docstrings, which are written for 120 columns, for a narrower terminal: paragraphs, numbered details, symbols.

>>> words = "One line that\\nwas cut here.\\n\\n    w_i     the model of\\n\\n1. A detail that is\\n   long."
>>> print(reflow_docstring(words, 20))
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

BLOCK_START = re.compile(r"(?P<number>\d+\. )|(?P<symbol> {4}\S.*?\s{2,})")
UNCHANGED = ("|", ">>>")  # tables and examples stay as they are


def reflow_docstring(text: str, width: int) -> str:
    return "\n".join(line for block in split_blocks(text) for line in wrap_block(block, width))


def split_blocks(text: str) -> Iterator[str]:
    """Each paragraph, detail or symbol as one long line, with an empty line between paragraphs."""
    block = ""
    for line in text.splitlines():
        alone = not line.strip() or line.startswith(UNCHANGED) or BLOCK_START.match(line)
        if block and (alone or block.startswith(UNCHANGED)):
            yield block
            block = ""
        block = f"{block} {line.strip()}" if block else line
        if not line.strip():
            yield block
            block = ""
    if block:
        yield block


def wrap_block(block: str, width: int) -> list[str]:
    if not block.strip() or block.startswith(UNCHANGED):
        return [block]
    begin = BLOCK_START.match(block)
    hang = " " * (begin.end() if begin and begin.end() < 2 * width // 3 else 0)
    return textwrap.wrap(block, width, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False) or [
        block
    ]
