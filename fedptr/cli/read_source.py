"""Defaults and names for `--help` and for shell completion, read from the source code instead of imported.

A setting's default is written once, in its dataclass. The modules of the dataclasses import torch, which takes seconds,
so this reads their text: `Plan` in fedptr/runs/plan.py names the class of every section.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

import fedptr

ROOT = Path(fedptr.__file__).parent
PLAN = "fedptr.runs.plan"


class SettingSource(NamedTuple):
    default: Any
    choices: tuple[str, ...]  # the words it takes, where its type names them


@functools.cache
def parse_module(name: str) -> ast.Module:
    path = ROOT.joinpath(*name.split(".")[1:]).with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def find_class(module: str, name: str) -> ast.ClassDef:
    """A class of a module, or one that the module imports."""
    for node in parse_module(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return find_class(str(node.module), name)
    raise LookupError(f"{module} has no class {name}")


def list_fields(cls: ast.ClassDef) -> dict[str, ast.AnnAssign]:
    lines = (node for node in cls.body if isinstance(node, ast.AnnAssign) and node.value is not None)
    return {node.target.id: node for node in lines if isinstance(node.target, ast.Name)}


@functools.cache
def read_settings() -> dict[str, SettingSource]:
    """The settings of all sections, without those of the methods, by `section.key`."""
    found: dict[str, SettingSource] = {}
    for section, node in list_fields(find_class(PLAN, "Plan")).items():
        factory = node.value.keywords[0].value  # type: ignore[union-attr]
        assert isinstance(factory, ast.Name)
        cls = find_class(PLAN, factory.id)
        if section == "method":
            name = list_fields(cls)["name"].value
            found["method.name"] = SettingSource(ast.literal_eval(name), ())  # type: ignore[arg-type]
            continue
        for key, line in list_fields(cls).items():
            if isinstance(line.value, ast.Call):  # setting(default, …)
                default = ast.literal_eval(line.value.args[0])
                found[f"{section}.{key}"] = SettingSource(default, read_choices(line.annotation))
    return found


def read_choices(annotation: ast.expr) -> tuple[str, ...]:
    """The words of `Literal["a", "b"]`, wherever it is in a type; true and false of a truth value."""
    if isinstance(annotation, ast.Name) and annotation.id == "bool":
        return "true", "false"
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
            words = ast.literal_eval(node.slice)
            return words if isinstance(words, tuple) else (words,)
    return ()


def read_method_names() -> list[str]:
    """The names of the built-in methods."""
    texts = (path.read_text(encoding="utf-8") for path in sorted((ROOT / "methods").glob("*.py")))
    return [
        name for text in texts for name in re.findall(r'^    name: ClassVar\[str\] = "([^"]+)"', text, re.MULTILINE)
    ]
