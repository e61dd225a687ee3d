"""What the command line says of an error that nobody expected: one sentence, and a file to send with a report."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence

from fedptr import __version__

LONGEST = 200  # characters of the error in the sentence


def describe_unexpected(error: BaseException, argv: Sequence[str] | None) -> str:
    """Asks for a report, and names a file with the traceback that only its owner can read."""
    told = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    said = f"this should not happen ({told[:LONGEST]})"
    try:
        path = write_report(error, sys.argv[1:] if argv is None else argv)
    except OSError as reason:
        again = "run it again with FEDPTR_TRACEBACK=1 and report what it prints"
        return f"{said}, and the traceback could not be written ({reason.strerror}); please {again}"
    return f"{said}; please report it, with {path}, which has the traceback"


def write_report(error: BaseException, argv: Sequence[str]) -> str:
    """Versions, the command and the traceback; no variables and nothing of the environment."""
    torch = sys.modules.get("torch")
    versions = f"fedptr {__version__}, Python {platform.python_version()}, torch {getattr(torch, '__version__', '-')}"
    text = "".join(traceback.format_exception(error))
    descriptor, path = tempfile.mkstemp(prefix="fedptr-error-", suffix=".txt")  # readable by its owner alone
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{versions}, {platform.system()} {platform.machine()}\nfedptr {shlex.join(argv)}\n\n{text}")
    return os.path.abspath(path)


def is_out_of_memory(error: BaseException) -> bool:
    """Python's own error, and PyTorch's, for the CPU and for GPUs."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )
