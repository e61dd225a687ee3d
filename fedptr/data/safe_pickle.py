"""CIFAR's "python" batches are pickles, and a pickle is a program: this reader runs none of it.

The few numpy names such a file needs are replaced by the classes below, which can only hold bytes; every other name is
refused before anything is called. Numpy itself is not involved, so files read the same under numpy 1.26 and 2.x.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fedptr.data.dataset import Array
from fedptr.errors import UserError


class _HostileError(Exception):
    """The pickle asks for something that no dataset needs."""


class _Dtype:
    def __init__(self, code: str, *_: object) -> None:
        if code != "u1":
            raise _HostileError(f"an array of type {code!r}")

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


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise _HostileError(f"{module}.{name}") from None


def read_batch(path: Path) -> dict[str, Any]:
    """The dictionary in a CIFAR batch, its arrays as numpy arrays of bytes."""
    try:
        content = _Unpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except _HostileError as refused:
        raise UserError(
            f"{path} asks for {refused}, which no CIFAR file needs, so it was not read; delete it and get a clean copy"
        ) from None
    if not isinstance(content, dict):
        raise ValueError("it holds no dictionary")
    return {_to_text(key): _to_array(value) for key, value in content.items()}


def _to_text(key: object) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else str(key)


def _to_array(value: object) -> object:
    return value.array if isinstance(value, _Array) else value
