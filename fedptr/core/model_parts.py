"""Parts of a model by name: which parameters some patterns mean, and parts that are frozen."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import nn

from fedptr.errors import UserError


def split_patterns(text: str) -> list[str]:
    """Patterns that are separated by commas."""
    return [pattern.strip() for pattern in text.split(",") if pattern.strip()]


def match_names(text: str, names: Iterable[str], setting: str) -> list[str]:
    """The names that any of the patterns means, in their order; raises where a pattern means none.

    >>> match_names("features.*, *.bias", ["features.weight", "head.weight", "head.bias"], "model.freeze")
    ['features.weight', 'head.bias']
    """
    names = list(names)
    for pattern in split_patterns(text):
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UserError(f"{setting}: {pattern} matches no parameter; the model has {list_names(names)}")
    return [name for name in names if is_meant(name, text)]


def is_meant(name: str, text: str) -> bool:
    """Whether any of the patterns matches the name."""
    return any(fnmatchcase(name, pattern) for pattern in split_patterns(text))


def freeze_parts(model: nn.Module, text: str, setting: str = "freeze") -> None:
    """Marks the parameters that the patterns mean as not to be trained: their `requires_grad` is False from now on."""
    parameters = dict(model.named_parameters())
    for name in match_names(text, parameters, setting):
        parameters[name].requires_grad_(False)


def list_names(names: Iterable[str], most: int = 12) -> str:
    """Names in a sentence; of very many the first.

    >>> list_names("abc", most=2)
    'a, b and 1 more'
    """
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
