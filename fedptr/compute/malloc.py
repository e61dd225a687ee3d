"""Lets the C library keep freed memory.

A training step frees its activations and allocates the same sizes again a moment later. By default glibc returns large
blocks to the system, which then has to clear every page again.
"""

from __future__ import annotations

import ctypes
import os

THRESHOLD = 32 << 20  # the most glibc allows: blocks up to this size stay with the process
KEPT = 2**31 - 1  # bytes of free memory at the end of the heap before any is returned
STEP = 64 << 20  # bytes by which the heap grows

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, ARENA_MAX = -1, -2, -3, -8  # from malloc.h


def keep_freed_memory() -> bool:
    """Makes the process keep freed memory; returns whether it does. A user's own malloc settings are not changed.

    One arena only: the arenas that glibc creates for threads are returned piece by piece as soon as a piece is empty.
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
    except (AttributeError, ValueError):  # the system does not know this name
        return False
