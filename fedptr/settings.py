"""Settings are dataclass fields: a field is the only place for its default, range and help text.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Walk:
...     steps: int = setting(3, "how many steps", ge=1)
>>> build_settings(Walk, {"steps": 5}, "walk")
Walk(steps=5)
>>> build_settings(Walk, {"stps": 5}, "walk")
Traceback (most recent call last):
    ...
fedptr.errors.UserError: walk.stps is not a setting; did you mean walk.steps?
"""

from __future__ import annotations

import difflib
import functools
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, field, fields
from typing import Any, Literal, TypeVar

from fedptr.errors import UserError

T = TypeVar("T")
MOST = 2**31 - 1  # of anything that is counted
BOUNDS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "ge": ("at least", operator.ge),
    "gt": ("more than", operator.gt),
    "le": ("at most", operator.le),
    "lt": ("less than", operator.lt),
}


Effect = Literal["result", "cost", "nothing"]


def setting(
    default: Any, doc: str, affects: Effect = "result", baseline: Any = None, example: Any = None, **bounds: float
) -> Any:
    """A dataclass field with its help text, its range (`ge`, `gt`, `le`, `lt`) and what it affects.

    affects     "result": what comes out; "cost": how it is computed (rounding and seconds); "nothing": no bit of it
    baseline    the default that the setting had when it was added. Name it where you change a default, or where the
                default of a new setting does not mean "as before": runs of earlier versions stay what they are
    example     another value, for the list of settings; text needs one, for the rest `example_of` finds one
    """
    assert set(bounds) <= set(BOUNDS), bounds
    old = default if baseline is None else baseline
    more = {"affects": affects, "baseline": old, "example": example}
    return field(default=default, metadata={"doc": doc, "bounds": bounds, **more})


def effect_of(spec: Field[Any]) -> Effect:
    """What a setting affects; a field that was not made by `setting` affects the result."""
    effect: Effect = spec.metadata.get("affects", "result")
    return effect


def baseline_of(spec: Field[Any]) -> Any:
    """The default that a setting had when it was added."""
    return spec.metadata.get("baseline", spec.default)


def example_of(spec: Field[Any], hint: Any) -> Any:
    """A value that a setting can have instead of its default: the declared example, or one that fits the type.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Walk:
    ...     steps: int = setting(3, "how many steps", ge=1)
    ...     pace: float = setting(1.0, "part of full speed", gt=0, le=1)
    ...     shoes: Literal["boots", "none"] = setting("none", "what to wear")
    >>> hints = typing.get_type_hints(Walk)
    >>> [example_of(spec, hints[spec.name]) for spec in fields(Walk)]
    [6, 0.5, 'boots']
    """
    default, bounds = spec.default, spec.metadata["bounds"]
    if spec.metadata["example"] is not None:
        return spec.metadata["example"]
    candidates: list[Any] = []
    for kind in split_union(hint):
        if typing.get_origin(kind) is Literal:
            candidates += typing.get_args(kind)
        elif kind is bool:
            candidates += [True, False]
        elif kind is int:
            candidates += [2 * default if type(default) is int else 10, 1, 2]
        elif kind is float:
            candidates += [default / 2 if isinstance(default, float) else 0.1, 0.1]
    fits = (value for value in candidates if value != default and is_in_range(value, bounds))
    return next(fits, default)


def is_in_range(value: Any, bounds: Mapping[str, float]) -> bool:
    """Whether a number keeps to its bounds; text and truth values have none."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return not number or all(BOUNDS[op][1](value, bound) for op, bound in bounds.items())


def choices_of(hint: Any) -> list[str]:
    """The words that a setting takes, where it takes a few."""
    literals = (kind for kind in split_union(hint) if typing.get_origin(kind) is Literal)
    return [choice for kind in literals for choice in typing.get_args(kind)]


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that a mistyped name most likely means."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return found[0] if found else None


def unknown_name_error(what: str, name: str, known: Iterable[str], kind: str) -> UserError:
    """The error for an unknown name; `what` is the full name, e.g. `method.lma`. It suggests the nearest known name."""
    known = list(known)
    close = nearest_name(name, known)
    prefix = what[: len(what) - len(name)]
    hint = f"did you mean {prefix}{close}?" if close else f"choose from: {', '.join(known)}"
    return UserError(f"{what or 'an empty name'} is not {kind}; {hint}")


@functools.cache
def type_hints(cls: type) -> dict[str, Any]:
    """The types of a class's settings. To evaluate them takes far longer than to check a plan, so they are kept."""
    return typing.get_type_hints(cls)


def build_settings(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """`cls(**values)` after checking every name, type and range; the error for a mistake says where it is."""
    known = {f.name: f for f in fields(cls) if f.init}  # type: ignore[arg-type]
    hints = type_hints(typing.cast(type, cls))
    checked = {}
    for name, value in values.items():
        if name not in known:
            raise unknown_name_error(f"{where}.{name}", name, known, "a setting")
        checked[name] = _checked(value, hints[name], known[name], f"{where}.{name}")
    return cls(**checked)


def check_settings(settings: Any, where: str) -> None:
    """The same checks for settings created in Python."""
    build_settings(type(settings), {f.name: getattr(settings, f.name) for f in fields(settings)}, where)


def _checked(value: Any, hint: Any, spec: Field[Any], place: str) -> Any:
    for kind in split_union(hint):
        fitted = _fit(value, kind)
        if fitted is not None:
            break
    else:
        raise UserError(f"{place} must be {describe_type(hint)}, not {format_value(value)}")
    if isinstance(fitted, (int, float)) and not isinstance(fitted, bool):
        for op, bound in (_widest(fitted, spec) | spec.metadata.get("bounds", {})).items():
            if not BOUNDS[op][1](fitted, bound):
                raise UserError(f"{place} must be {describe_bound(op, bound)}, not {format_value(value)}")
    return fitted


def _widest(value: float, spec: Field[Any]) -> dict[str, float]:
    """The range of a whole number that declares none: a seed is what TOML and torch can hold, all others count things.

    A count of billions cannot be meant, and would overflow or fill the memory somewhere.
    """
    if not isinstance(value, int):
        return {}
    return {"lt": 2**63} if "seed" in spec.name else {"le": MOST}


def format_value(value: Any) -> str:
    """A wrong value, shortened, for an error message."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        return "a number that long"
    return text if len(text) <= 80 else text[:79] + "…"


def split_union(hint: Any) -> tuple[Any, ...]:
    """The parts of a type such as `float | Literal["auto"]`."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return typing.get_args(hint)
    return (hint,)


def _fit(value: Any, kind: Any) -> Any:
    """The value as `kind`, or None if it does not fit. Text never becomes a number, nor a boolean 1 or 0."""
    if typing.get_origin(kind) is Literal:
        return value if isinstance(value, str) and value in typing.get_args(kind) else None
    if kind is bool or isinstance(value, bool):
        return value if kind is bool and isinstance(value, bool) else None
    if kind is float and isinstance(value, (int, float)):
        return _finite(value)
    return value if isinstance(value, kind) else None


def _finite(value: float) -> float | None:
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def describe_bound(op: str, bound: float) -> str:
    return f"{BOUNDS[op][0]} {bound if isinstance(bound, int) else f'{bound:g}'}"


def describe_type(hint: Any, bounds: Mapping[str, float] | None = None) -> str:
    """A type and its range in words: `a number more than 0 or "auto"`."""
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    parts = []
    for kind in split_union(hint):
        if typing.get_origin(kind) is Literal:
            options = typing.get_args(kind)
            parts.append(f"one of: {', '.join(options)}" if len(options) > 1 else f'"{options[0]}"')
        else:
            ranged = bounds if bounds and kind in (int, float) else {}
            parts.append(
                " ".join([names[kind], " and ".join(describe_bound(*item) for item in ranged.items())]).strip()
            )
    return " or ".join(parts)
