"""The schema of everything that a node sends: which names, of which type, how long, and how large.

Nothing that arrives is trusted. What does not fit is dropped, and a sentence says which entry it was and why; it reads
after the node's name ("north sent a 'train_loss' that is …"). Neither torch nor Flower is needed here.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from fedptr.errors import ReplyError, UserError
from fedptr.messages import make_printable
from fedptr.types import RECORDED_BY_SERVER


class Number(NamedTuple):
    low: float
    high: float
    whole: bool = False

    def __str__(self) -> str:
        return f"a {'whole number' if self.whole else 'number'} from {self.low:g} to {self.high:g}"

    def accepts(self, value: Any) -> bool:
        """Not True, which Python takes for 1; nor NaN, which is not within any bounds."""
        return type(value) in ((int,) if self.whole else (int, float)) and self.low <= value <= self.high


class Text(NamedTuple):
    shortest: int
    longest: int

    def __str__(self) -> str:
        return f"a text of {self.shortest} to {self.longest} printable characters"

    def accepts(self, value: Any) -> bool:
        fits = type(value) is str and self.shortest <= len(value) <= self.longest
        return fits and bool(value.strip()) and not any(map(is_control_character, value))


class Row(NamedTuple):
    """A flat list."""

    of: Number | Text
    longest: int
    shortest: int = 1

    def __str__(self) -> str:
        count = f"{self.shortest} to {self.longest}" if self.shortest < self.longest else f"{self.longest}"
        return f"a list of {count}, each {self.of}"

    def accepts(self, value: Any) -> bool:
        fits = type(value) is list and self.shortest <= len(value) <= self.longest
        return fits and all(map(self.of.accepts, value))


Rule = Number | Text | Row

LONGEST_LOG = 4096  # numbers in all entries of a log; longer ones (the projected model) stay on the node
MOST_ENTRIES = 64  # of a log
MOST_NOTES = 5  # sentences about one log
MOST_CHANNELS = 4096  # a table has one per feature
LARGEST_IMAGE = 1 << 26  # numbers: 3 channels of 4,700 by 4,700 pixels
SIZE, SECONDS, PIXEL = Number(-1e9, 1e9), Number(0, 1e9), Number(-1e9, 1e9)

HELLO: dict[str, Rule] = {
    "name": Text(1, 60),
    "number": Number(0, 99999, whole=True),
    "data": Text(64, 64),  # a fingerprint
    "shape": Row(Number(1, 1 << 16, whole=True), 3, 2),  # channels, height, width; of texts length, vocabulary
    "mean": Row(PIXEL, MOST_CHANNELS),
    "std": Row(Number(1e-9, 1e9), MOST_CHANNELS),
}
TARGETS = ("class", "number", "labels")
LABEL = Number(-1e30, 1e30)
CLASS = Text(1, 255)  # as long as the name of a folder

# The entries of a log with which the server computes; others may have any short name that the server does not use.
LOG: dict[str, Rule] = {
    "steps": Number(0, 10**9, whole=True),
    "train_loss": SIZE,
    "gamma": SECONDS,
    "beta": SIZE,
    "projection_skipped": Number(0, 1),
    "distances": Row(SECONDS, LONGEST_LOG),
}
LOG_BEGINNINGS: dict[str, Rule] = {"match_": SIZE, "seconds_": SECONDS}
LOG_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,39}")
OTHER = Number(-1e15, 1e15)


def is_control_character(character: str) -> bool:
    """Of a terminal or of Unicode; the joiners that Persian, Indic and emoji need are none."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in "\u200c\u200d"


def describe_value(value: Any) -> str:
    """A value in a few words, whatever it is: nested lists and huge numbers are not written out.

    >>> describe_value([1, [2]]), describe_value(10**400), describe_value(True), describe_value("a\\x1b[31m")
    ('a list of 2', 'a huge number', 'true or false', "'a\\\\x1b[31m'")
    """
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a huge number" if 1e300 < abs(value) < math.inf else f"{value:g}"
    if isinstance(value, str):
        return f"'{make_printable(value[:40])}'"
    return f"a list of {len(value)}" if isinstance(value, list) else "an object"


def check_value(name: str, value: Any, rule: Rule) -> Any:
    """The value; raises ReplyError where it breaks the rule."""
    if not rule.accepts(value):
        raise ReplyError(f"sent a {name!r} that is {describe_value(value)}, not {rule}")
    return value


def read_hello(words: Mapping[str, Any], max_samples: int, max_classes: int) -> dict[str, Any]:
    """What a node says about itself, each entry by its rule."""
    sizes = {"size": Number(1, max_samples, whole=True), "tests": Number(0, max_samples, whole=True)}
    target = words.get("target", "class")
    if target not in TARGETS:
        raise ReplyError(f"sent a 'target' that is {describe_value(target)}, not one of: {', '.join(TARGETS)}")
    rules: dict[str, Rule] = {**HELLO, **sizes, "classes": Row(CLASS, max_classes)}
    if target == "number":
        rules |= {"classes": Row(CLASS, 0, 0), "label_mean": LABEL, "label_std": Number(1e-12, 1e30)}
    if type(words.get("size")) is int and words["size"] > max_samples:
        raise ReplyError(f"has {describe_value(words['size'])} samples, more than deploy.max_samples = {max_samples}")
    if type(words.get("classes")) is list and len(words["classes"]) > max_classes:
        raise ReplyError(f"has {len(words['classes'])} classes, more than deploy.max_classes = {max_classes}")
    found = {name: check_value(name, words.get(name), rule) for name, rule in rules.items()}
    found["target"] = target
    channels = found["shape"][0] if len(found["shape"]) == 3 else 1
    if not len(found["mean"]) == len(found["std"]) == channels:
        raise ReplyError("sent a 'mean' and 'std' that do not have a number for every channel of its images")
    if math.prod(found["shape"]) > LARGEST_IMAGE:
        raise ReplyError(f"sent a 'shape' of {math.prod(found['shape'])} numbers, more than {LARGEST_IMAGE}")
    if len(set(found["classes"])) < len(found["classes"]):
        raise ReplyError("sent 'classes' of which two have the same name")
    return found


def check_visited(words: Mapping[str, Any], asked: Mapping[str, Any]) -> float:
    """The seconds that a reply reports; raises unless it is the reply to what was asked."""
    for name, value in {"kind": "visited", **asked}.items():
        told = words.get(name)
        if type(told) is not type(value) or told != value:
            raise ReplyError(f"sent the {name} {describe_value(told)}, not {value!r}")
    return float(check_value("seconds", words.get("seconds"), SECONDS))


def check_log(log: Any) -> tuple[dict[str, Any], list[str]]:
    """The entries of a log that fit, and a sentence for each that does not."""
    if not isinstance(log, dict):
        return {}, [f"sent a 'log' that is {describe_value(log)}, not an object"]
    found, notes, room = dict[str, Any](), list[str](), LONGEST_LOG
    for place, (name, value) in enumerate(log.items()):
        try:
            check_value(shorten_name(name), value, find_log_rule(name, value))
            room -= len(value) if isinstance(value, list) else 1
            if place >= MOST_ENTRIES or room < 0:
                raise ReplyError(f"sent more than {MOST_ENTRIES} entries or {LONGEST_LOG} numbers in its log")
            found[name] = value
        except ReplyError as error:
            notes.append(str(error))
            if place >= MOST_ENTRIES or room < 0:
                break
    more = len(notes) - MOST_NOTES
    return found, notes[:MOST_NOTES] + ([f"sent {more} more entries that were left out"] if more > 0 else [])


def find_log_rule(name: str, value: Any) -> Rule:
    """The rule of an entry of a log; raises where a node may not send an entry of that name."""
    if name in RECORDED_BY_SERVER:
        raise ReplyError(f"sent a {name!r} in its log, which the server itself records")
    if not LOG_NAME.fullmatch(name):
        raise ReplyError(f"sent an entry {shorten_name(name)!r} in its log, which is not a short plain name")
    beginnings = (rule for beginning, rule in LOG_BEGINNINGS.items() if name.startswith(beginning))
    return LOG.get(name) or next(beginnings, Row(OTHER, LONGEST_LOG) if isinstance(value, list) else OTHER)


def shorten_name(name: str) -> str:
    return make_printable(name[:40])


def read_reason(words: Mapping[str, Any]) -> str:
    """Why a node refuses, for people to read."""
    reason = words.get("reason")
    return make_printable(reason[:500]) if isinstance(reason, str) and reason.strip() else "refuses without a reason"


@contextmanager
def reading_message() -> Iterator[None]:
    """Makes every failure in the block a ReplyError: nothing of a node's making may stop the server."""
    try:
        yield
    except (ReplyError, UserError):
        raise
    except Exception as error:  # also MemoryError and RecursionError
        raise ReplyError(f"sent something that cannot be read ({type(error).__name__})") from None
