"""The floor plan: every package imports only those before it, lazily or for types alone too."""

from __future__ import annotations

import ast
from pathlib import Path

import fedptr

ROOT = Path(fedptr.__file__).parent
# Lowest first. What stands on one line may import one another.
LAYERS = (
    ("errors",),
    ("settings", "types", "messages", "stats", "plots"),
    ("atomic_files",),
    ("core",),
    ("models",),
    ("methods",),
    ("compute",),
    ("data",),
    ("privacy",),
    ("runs",),
    ("jobs",),
    ("engines",),
    ("audit",),
    ("reproduce",),
    ("theory",),
    ("report",),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# `from fedptr import federate` and the like: the front door, whose names are looked up when they are used.
FRONT = "__init__"


def modules() -> dict[str, Path]:
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(ROOT.rglob("*.py"))}


def imports(path: Path) -> list[str]:
    """Whatever of this package a file imports, wherever in the file it does."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written out in full"
            if node.module == "fedptr":
                found += [alias.name for alias in node.names]
            elif (node.module or "").startswith("fedptr."):
                found.append(str(node.module).removeprefix("fedptr."))
        elif isinstance(node, ast.Import):
            found += [a.name.removeprefix("fedptr.") for a in node.names if a.name.startswith("fedptr.")]
    return found


def upward() -> list[str]:
    wrong = []
    for name, path in modules().items():
        here = name.partition(".")[0]
        if here == FRONT:
            continue
        for target in imports(path):
            there = target.partition(".")[0]
            if there != here and there in LEVEL and LEVEL[there] > LEVEL[here]:
                wrong.append(f"{name} -> {target}")
    return wrong


def test_every_module_has_a_place() -> None:
    assert {name.partition(".")[0] for name in modules()} - {FRONT} == set(LEVEL)


def test_no_package_imports_a_later_one() -> None:
    assert upward() == []
