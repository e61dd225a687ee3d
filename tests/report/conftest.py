"""The browser that tests of the page share."""

from __future__ import annotations

from browser import browser  # noqa: F401
