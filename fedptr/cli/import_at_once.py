"""Imports without a search for garbage: modules make none, and Python would look through all they have for it."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """No search for garbage while torch and all that needs it is imported; what is there afterwards stays for good."""
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
