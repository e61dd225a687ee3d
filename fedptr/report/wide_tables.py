"""Tables that may be wider than a screen."""

from __future__ import annotations


def scroll_sideways(table: str) -> str:
    """A table that scrolls where it is too wide; a script then shows the hint."""
    hint = '<p class="hint" hidden>The table is wider than the screen: scroll it sideways →</p>'
    return f'<div class="wide"><div class="scroll" tabindex="0">{table}</div>{hint}</div>'
