"""CIFAR's "python" batches are pickles, and a pickle is a program: this reader runs none of it.

The few numpy names such a file needs are replaced by the classes below, which can only hold bytes; every other name is
refused before anything is called. Numpy itself is not involved, so files read the same under numpy 1.26 and 2.x.

A program without calls can still do harm: ten bytes make the unpickler written in C reserve gigabytes, keys that are
tuples in tuples in tuples crash it, and a list of a list twice, of which there is a list twice, is endless. So the
unpickler is the one written in Python, with the instructions that a batch needs, keys that are text, a limit on the
instructions, and no more bytes than the file has.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fedptr.data.dataset import Array
from fedptr.errors import UserError
from fedptr.settings import format_value

STEPS = 5_000_000  # instructions; CIFAR-100 has half a million
NEEDED = """
PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT
STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8
EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS
PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD
"""
CODES = {getattr(pickle, name)[0] for name in NEEDED.split()}


class _HostileError(Exception):
    """The pickle asks for something that no dataset needs."""


class _Dtype:
    def __init__(self, code: str, *_: object) -> None:
        if not isinstance(code, str) or code != "u1":
            raise _HostileError(f"an array of type {format_value(code) if isinstance(code, str) else type(code)}")

    def __setstate__(self, state: object) -> None:
        """Ignores byte order and alignment, which do not matter for single bytes."""


class _Bytes(bytes):
    """Bytes as Python 3 writes them in old pickle protocols: text to be encoded."""

    def __new__(cls, text: str, encoding: str) -> _Bytes:
        return super().__new__(cls, text.encode("latin1"))

    def __setstate__(self, state: object) -> None:
        raise _HostileError("bytes with attributes")


class _Array:
    array: Array

    def __init__(self, *_: object) -> None:
        """Created empty and filled by `__setstate__`, as numpy's own arrays are."""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Dtype) or fortran:
            raise _HostileError("an array that is not plain bytes")
        data = raw.encode("latin1") if isinstance(raw, str) else raw
        self.array = np.frombuffer(data, np.uint8).reshape(shape)


ALLOWED: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Bytes,
}


class _Unpickler(pickle._Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="latin1")
        self.steps, self.spare = STEPS, len(content)  # instructions that are left, and bytes that may yet be made
        self.dispatch = _Instructions(self)  # type: ignore[assignment,misc]

    def find_class(self, module: str, name: str) -> type:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise _HostileError(format_value(f"{module}.{name}")) from None

    def check(self, instruction: int) -> None:
        """What an instruction is about to do with the stack, where that could take more than it says."""
        self.steps -= 1
        if self.steps < 0:
            raise _HostileError(f"more than {STEPS} instructions")
        top = self.stack[-1] if self.stack else None  # type: ignore[attr-defined]
        if instruction == pickle.SETITEM[0]:
            _check_keys(self.stack[-2:-1])  # type: ignore[attr-defined]
        elif instruction in (pickle.SETITEMS[0], pickle.DICT[0]):
            _check_keys(self.stack[::2])  # type: ignore[attr-defined]
        elif instruction in (pickle.REDUCE[0], pickle.BUILD[0]) and isinstance(top, tuple):
            self.spare -= sum(len(part) for part in top if isinstance(part, str))  # which is encoded to bytes
            if self.spare < 0:
                raise _HostileError("more bytes than it has")


class _Instructions:
    """The table of instructions, of which an unpickler looks up each before it does it."""

    def __init__(self, unpickler: _Unpickler) -> None:
        self.unpickler = unpickler

    def __getitem__(self, instruction: int) -> Any:
        self.unpickler.check(instruction)
        if instruction not in CODES:
            raise _HostileError(f"the instruction {bytes([instruction])!r}")
        return pickle._Unpickler.dispatch[instruction]


def _check_keys(keys: list[object]) -> None:
    if not all(isinstance(key, (str, bytes)) for key in keys):
        raise _HostileError("keys that are not text")


def parse_batch(content: bytes, path: Path) -> dict[str, Any]:
    """The dictionary in a CIFAR batch, its arrays as numpy arrays of bytes.

    Raises a UserError that names the path where it is hostile, and anything where it is damaged.
    """
    try:
        found = _Unpickler(content).load()
    except _HostileError as refused:
        raise UserError(
            f"{path} asks for {refused}, which no CIFAR file needs, so it was not read; delete it and get a clean copy"
        ) from None
    if not isinstance(found, dict):
        raise ValueError("it holds no dictionary")
    return {_to_text(key): _to_array(value) for key, value in found.items()}


def _to_text(key: object) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else str(key)


def _to_array(value: object) -> object:
    return value.array if isinstance(value, _Array) else value
