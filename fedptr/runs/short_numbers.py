"""The numbers of rounds.jsonl with fewer digits: a third smaller, still JSON, and every byte can be restored.

Most numbers are float32, written with the 17 digits of a double. They get their shortest digits and a capital E
(2.5405617E-2). A client's accuracy is a number of right answers out of `tests`, which is the whole number kept here.
"""

from __future__ import annotations

import re

import numpy as np

LONG_NUMBER = re.compile(rb"-?[0-9]+\.[0-9]{6,}(?:e[+-]?[0-9]+)?")
SHORT_NUMBER = re.compile(rb"-?[0-9](?:\.[0-9]+)?E[+-]?[0-9]+")
CLIENT_TESTS = re.compile(rb'"tests": \[([0-9, ]+)\][^{}]*')
ACCURACIES = re.compile(rb'(?<=accuracy": \[)[0-9., e-]+(?=\])')
WHOLE = re.compile(rb"[0-9, ]+")


def shorten_numbers(text: bytes) -> bytes:
    """
    >>> shorten_numbers(b'{"loss": 0.02540561743080616, "accuracy": 0.4046}')
    b'{"loss": 2.5405617E-2, "accuracy": 0.4046}'
    >>> shorten_numbers(b'{"tests": [3, 6], "accuracy": [0.3333333333333333, 1.0]}')
    b'{"tests": [3, 6], "accuracy": [1, 6]}'
    """

    def shorten(match: re.Match[bytes]) -> bytes:
        value = np.float32(match[0])
        short = np.format_float_scientific(value, trim="-", exp_digits=1).upper().encode()
        return short if len(short) < len(match[0]) and restore_floats(short) == match[0] else match[0]

    return LONG_NUMBER.sub(shorten, CLIENT_TESTS.sub(count_right, text))


def restore_numbers(text: bytes) -> bytes:
    """
    >>> restore_numbers(b'{"loss": 2.5405617E-2}')
    b'{"loss": 0.02540561743080616}'
    >>> restore_numbers(b'{"tests": [3, 6], "accuracy": [1, 6]}')
    b'{"tests": [3, 6], "accuracy": [0.3333333333333333, 1.0]}'
    """
    return CLIENT_TESTS.sub(divide_right, restore_floats(text))


def restore_floats(text: bytes) -> bytes:
    return SHORT_NUMBER.sub(lambda match: repr(float(np.float32(match[0]))).encode(), text)


def count_right(part: re.Match[bytes]) -> bytes:
    """A round's client tests with numbers of right answers, in each list for which these tell all."""
    tests = [int(n) for n in part[1].split(b",")]

    def count(match: re.Match[bytes]) -> bytes:
        values = [float(value) for value in match[0].split(b",")]
        if len(values) != len(tests) or 0 in tests:
            return match[0]
        short = b", ".join(b"%d" % round(value * n) for value, n in zip(values, tests, strict=True))
        return short if divide(short, tests) == match[0] else match[0]

    return ACCURACIES.sub(count, part[0])


def divide_right(part: re.Match[bytes]) -> bytes:
    tests = [int(n) for n in part[1].split(b",")]
    return ACCURACIES.sub(lambda match: divide(match[0], tests) if WHOLE.fullmatch(match[0]) else match[0], part[0])


def divide(counts: bytes, tests: list[int]) -> bytes:
    """The accuracies; a list that does not fit is left as it is, for whoever reads it to refuse."""
    right = [int(count) for count in counts.split(b",")]
    if len(right) != len(tests) or 0 in tests:
        return counts
    return b", ".join(repr(k / n).encode() for k, n in zip(right, tests, strict=True))
