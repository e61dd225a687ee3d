"""Writes the stub by which editors and mypy know `fedptr.methods.FedPTR`: python tests/helpers/methods_stub.py"""

from __future__ import annotations

from pathlib import Path

from fedptr import methods

STUB = Path(methods.__file__).with_name("_classes.pyi")
HEAD = "# Written by tests/helpers/methods_stub.py from the classes in this folder.\n"


def make_stub() -> str:
    classes = sorted((method.__module__, method.__name__) for method in methods.built_in_methods())
    return HEAD + "".join(f"from {module} import {name} as {name}\n" for module, name in classes)


if __name__ == "__main__":
    STUB.write_text(make_stub(), encoding="utf-8")
