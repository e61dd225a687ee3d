"""The floor plan: every package imports only those before it, lazily or for types alone too."""

from __future__ import annotations

import ast
import graphlib
import sys
from pathlib import Path

import fedptr

ROOT = Path(fedptr.__file__).parent
# Lowest first. What stands on one line may import one another.
LAYERS = (
    ("errors",),
    ("settings", "types", "messages", "stats", "headline", "plots", "own_code", "regular_files"),
    ("tensor_bytes",),
    ("atomic_files",),
    ("core",),
    ("models",),
    ("methods",),
    ("testing",),
    ("compute",),
    ("data",),
    ("privacy",),
    ("runs",),
    ("jobs",),
    ("engines",),
    ("audit",),
    ("reproduce",),
    ("theory",),
    ("sweep",),
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


def imported_first(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules that must be there before this one is: not those that a function imports, nor those for types."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fedptr":
            package = str(node.module).removeprefix("fedptr").removeprefix(".")
            found |= {f"{package}.{alias.name}".removeprefix(".") for alias in node.names} | {package}
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("fedptr.") for alias in node.names}
    return {name for name in found if name in known}


def test_every_module_has_a_place() -> None:
    assert {name.partition(".")[0] for name in modules()} - {FRONT} == set(LEVEL)
    assert len(LEVEL) == sum(map(len, LAYERS)), "a package stands in two layers"


def test_no_package_imports_a_later_one() -> None:
    assert upward() == []


def test_no_two_modules_need_each_other_first() -> None:
    known = modules()
    needs = {name: imported_first(path, known) for name, path in known.items()}
    assert sum(map(len, needs.values())) > len(known)
    graphlib.TopologicalSorter(needs).prepare()  # a CycleError names them


def test_no_name_is_one_of_the_standard_library() -> None:
    """`types` is agreed: the types that all packages share."""
    names = {part: name for name in modules() for part in name.split(".")}
    taken = sys.stdlib_module_names - {"types", "__main__"}
    assert not {name for part, name in names.items() if part in taken}


def test_test_files_share_by_helpers_only() -> None:
    """No test file imports another, nor a conftest: what several need has a module in tests/helpers."""
    here = Path(__file__).parent
    own = {path.stem for path in here.rglob("*.py") if path.parent.name != "helpers"}
    wrong = []
    for path in here.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            wrong += [f"{path.name} -> {name}" for name in names if name in own]
    assert wrong == []


# One word that says neither what is done nor to what.
VAGUE = {
    "go", "of", "do", "named", "meet", "take", "tell", "see", "find", "stop", "wait", "hurry", "bury", "foretold",
    "check", "read", "write", "load", "save", "look", "work", "match", "show", "plot", "draw", "cells", "place", "made",
}  # fmt: skip


def test_a_function_is_a_verb_with_its_object() -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [
        f"{name}.{node.name}"
        for name, path in modules().items()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, functions) and node.name in VAGUE
    ]
    assert found == []
