"""For mkdocstrings: shows `setting(default, meaning, …)` as its default and its meaning, and doctests as code."""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe


class ReadableSource(griffe.Extension):
    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        call = attr.value
        if isinstance(call, griffe.ExprCall) and str(call.function) == "setting":
            default, meaning, *_ = call.arguments
            attr.value = default
            attr.docstring = griffe.Docstring(ast.literal_eval(str(meaning)), parent=attr)

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            blocks = re.split(r"\n\s*\n", obj.docstring.value)
            fenced = (f"```pycon\n{block}\n```" if block.startswith(">>>") else block for block in blocks)
            obj.docstring.value = "\n\n".join(fenced)
