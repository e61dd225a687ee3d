"""What the C library does with memory that was freed.

A training step frees its activations and asks for the same sizes again a moment later. By default glibc hands large
blocks back to the system, which then clears every page anew.
"""

from __future__ import annotations

import ctypes
import os

THRESHOLD = 32 << 20  # the most glibc allows: blocks up to this size stay with the process
KEPT = 2**31 - 1  # bytes of free memory at the end of the heap before any is handed back
STEP = 64 << 20  # by which the heap grows

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, ARENA_MAX = -1, -2, -3, -8  # of malloc.h


def keep_freed_memory() -> bool:
    """Lets the process keep what it frees; whether it does. Another C library or a user's own settings are left alone.

    One arena: those that glibc makes for threads consist of pieces that are handed back as soon as they are empty.
    """
    own = any(name.startswith("MALLOC_") for name in os.environ)
    if own or "GLIBC_TUNABLES" in os.environ or os.environ.get("LD_PRELOAD") or not uses_glibc():
        return False
    options = {ARENA_MAX: 1, MMAP_THRESHOLD: THRESHOLD, TRIM_THRESHOLD: KEPT, TOP_PAD: STEP}
    mallopt = ctypes.CDLL(None).mallopt
    set_ = [mallopt(option, value) for option, value in options.items()]
    return set_ == [1] * len(options)


def uses_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError):  # no such question on this system
        return False
