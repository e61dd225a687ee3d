"""Files that are written completely or not at all, and that show whether they are still what was written.

A file of tensors is safetensors with a JSON header, whose `sha256` covers the tensors and the rest of the header.
Nothing is unpickled. A write goes to a temporary file in the same folder, is flushed to disk, and is renamed: a reader
sees the old file or the new one, even after a power cut.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from fedptr.regular_files import read_bytes
from fedptr.tensor_bytes import copy_to_cpu, copy_to_device, view_bytes
from fedptr.types import State


class DamagedFileError(Exception):
    """The file is not what was written; the message says how that shows."""


Header = dict[str, str]


def write_tensors(path: Path, tensors: State, header: Header) -> None:
    content = pack_tensors(tensors, header)
    with replace_atomically(path) as scratch, open(scratch, "xb") as file:
        file.write(content)


def read_tensors(path: Path, device: str = "cpu") -> tuple[State, Header]:
    """The tensors and the header of a file; raises DamagedFileError."""
    try:
        content = read_bytes(path)
    except OSError as error:
        raise DamagedFileError(f"{path.name} cannot be read ({error.strerror})") from None
    return unpack_tensors(content, path.name, device)


def pack_tensors(tensors: State, header: Header) -> bytes:
    """The content of a file of tensors.

    >>> import torch
    >>> state, header = unpack_tensors(pack_tensors({"w": torch.tensor([1.0, 2.0])}, {"round": "3"}))
    >>> state["w"].tolist(), header
    ([1.0, 2.0], {'round': '3'})
    """
    from safetensors.torch import save

    plain = copy_to_cpu(tensors)
    return sort_metadata(save(plain, {**header, "sha256": compute_checksum(plain, header)}))


def sort_metadata(content: bytes) -> bytes:
    """The same file with its metadata in order: safetensors writes them in any, and the same content is one file."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors stay aligned
    return b"".join([len(text).to_bytes(8, "little"), text, memoryview(content)[8 + size :]])


def unpack_tensors(content: bytes, name: str = "it", device: str = "cpu") -> tuple[State, Header]:
    """What `pack_tensors` was given; raises DamagedFileError, which calls the content `name`."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DamagedFileError(f"{name} is not a sealed file ({type(error).__name__})") from None
    if not isinstance(header, dict) or not all(isinstance(value, str) for value in header.values()):
        raise DamagedFileError(f"{name} has a damaged header")
    expected = header.pop("sha256", "")
    if compute_checksum(tensors, header) != expected:
        raise DamagedFileError(f"{name} does not match its checksum")
    return copy_to_device(tensors, device), header


def compute_checksum(tensors: State, header: Header) -> str:
    """The sha256 of tensors on the CPU and of a header."""
    shapes = [(name, str(value.dtype), list(value.shape)) for name, value in sorted(tensors.items())]
    digest = hashlib.sha256(json.dumps([sorted(header.items()), shapes]).encode())
    for _, value in sorted(tensors.items()):
        digest.update(view_bytes(value).data)
    return digest.hexdigest()


def write_text(path: Path, text: str) -> None:
    with replace_atomically(path) as scratch, open(scratch, "x", encoding="utf-8") as file:
        file.write(text)


@contextlib.contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write to. It becomes `path` if the block succeeds, and is removed if it fails.

    Everybody writes like this, so nobody can forget to flush: a rename may reach the disk before the content does.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    scratch.unlink(missing_ok=True)  # left by a killed process with this process's number
    try:
        yield scratch
        flush_path(scratch)
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
    flush_path(path.parent)


def flush_to_disk(file: IO[Any]) -> None:
    """From Python's buffer to the system, and from there to the disk."""
    file.flush()
    os.fsync(file.fileno())


def flush_path(path: Path) -> None:
    """A file that is closed, or a folder: a rename is on the disk only when its folder is."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
