"""The code of Flower that a patch counts on, and what happens where it is missing."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from typing import Any, NamedTuple, NoReturn

VERSION = "1.41.0"  # of the Flower that the line numbers and digests are from
UNKNOWN = "fedptr: this Flower might run programs that the server sends; install the one of fedptr[flower]"


class FlowerCode(NamedTuple):
    """A function, a class or a constant of Flower that a patch replaces or relies on."""

    module: str
    name: str  # Class.method is a name too
    line: int  # where `code` is in the module's file
    code: str  # what is replaced or relied on, as it is written there
    sha256: str  # of the whole source of `name`, the first 16 digits

    def difference(self) -> str:
        """How the installed Flower differs; empty where it does not."""
        try:
            found = source_of(self.module, self.name)
        except (ImportError, AttributeError):
            return "it is gone"
        if self.code not in found:
            return f"it has no `{self.code}`"
        digest = hashlib.sha256(found.encode()).hexdigest()[:16]
        return "" if digest == self.sha256 else f"its source has the digest {digest}, not {self.sha256}"


def source_of(module: str, name: str) -> str:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if inspect.isclass(found) or inspect.isroutine(found):
        return inspect.getsource(found)
    return f"{name} = {found!r}"


def refuse_flower() -> NoReturn:
    """Ends this process: what the patch replaces is not there, and Flower without the patch is not safe."""
    print(UNKNOWN, file=sys.stderr)
    raise SystemExit(2)
