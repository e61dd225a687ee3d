"""What travels: words (JSON) and arrays (raw bytes with a type and a shape). Neither torch nor Flower is needed here.

A Flower message holds a parcel, and a node's two processes pass parcels to each other. Nothing in a parcel is executed
or unpickled, and every array is checked against its type and shape before it is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from fedptr.errors import ReplyError

PROTOCOL = 4  # of the words in parcels between server and nodes; a node refuses another
SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8, "uint8": 1, "bool": 1}
DIMENSIONS = 8  # more than any tensor here has
LARGEST = 1 << 40  # bytes; a longer length is damage


class Block(NamedTuple):
    """One array: little-endian, in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Parcel(NamedTuple):
    words: dict[str, Any]
    blocks: dict[str, Block] = {}  # noqa: RUF012 (never changed)


def check_block(name: Any, dtype: Any, shape: Any, data: Any) -> Block:
    """The block, if type, shape and bytes fit each other.

    >>> check_block("w", "float32", [2], b"12345678").shape
    (2,)
    >>> check_block("w", "object", [2], b"")
    Traceback (most recent call last):
        ...
    fedptr.errors.ReplyError: its 'w' has the type 'object', which is not sent here
    """
    if not isinstance(name, str) or not 0 < len(name) <= 60:
        raise ReplyError("it has an array without a valid name")
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise ReplyError(f"its {name!r} has the type {str(dtype)[:40]!r}, which is not sent here")
    if not isinstance(shape, (list, tuple)) or len(shape) > DIMENSIONS:
        raise ReplyError(f"its {name!r} has no shape")
    if not all(type(n) is int and 0 <= n < LARGEST for n in shape):
        raise ReplyError(f"its {name!r} has no valid shape")
    if not isinstance(data, bytes) or len(data) != math.prod(shape) * SIZES[dtype]:
        raise ReplyError(f"its {name!r} has bytes that do not fit its shape")
    return Block(dtype, tuple(shape), data)


def parse_words(text: Any) -> dict[str, Any]:
    """The words of a parcel that came from elsewhere. No text in them has half a character, which no file can hold."""
    try:
        plain = text.decode() if isinstance(text, bytes) else text
        words = json.loads(plain)
        if "\\ud" in plain or "\\uD" in plain:
            json.dumps(words, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError):
        words = None
    if not isinstance(words, dict):
        raise ReplyError("its words are not a JSON object")
    return words


def write_parcel(send: Callable[[bytes], object], parcel: Parcel) -> None:
    """On a stream: the length of a JSON head, the head, and then the arrays' bytes one after another."""
    arrays = [[name, block.dtype, list(block.shape), len(block.data)] for name, block in parcel.blocks.items()]
    head = json.dumps({"words": parcel.words, "arrays": arrays}).encode()
    send(len(head).to_bytes(8, "little") + head)
    for block in parcel.blocks.values():
        send(block.data)


def read_parcel(receive: Callable[[int], bytes]) -> Parcel:
    """From a stream whose `receive(n)` gives exactly n bytes."""
    length = int.from_bytes(receive(8), "little")
    if length > LARGEST:
        raise ReplyError("its head is too long")
    head = parse_words(receive(length))
    words, arrays, blocks = head.get("words"), head.get("arrays"), {}
    if not isinstance(words, dict) or not isinstance(arrays, list):
        raise ReplyError("its head has no words and arrays")
    for entry in arrays:
        if not isinstance(entry, list) or len(entry) != 4 or type(entry[3]) is not int or not 0 <= entry[3] < LARGEST:
            raise ReplyError("its head describes no valid array")
        name, dtype, shape, size = entry
        blocks[name] = check_block(name, dtype, shape, receive(size))
    return Parcel(words, blocks)
