"""Files that are written whole or not at all, and that know whether they are still what was written.

A sealed file is safetensors: tensors, and a JSON header whose `sha256` covers the tensors and the rest of the header.
Nothing is unpickled. A write goes to a file beside the target, is flushed to the disk, and is renamed; a reader sees
the old file or the new one, after a power cut too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from fedptr.types import State


class DamagedFileError(Exception):
    """The file is not what was written; the message says how that shows."""


Header = dict[str, str]


def write_tensors(path: Path, tensors: State, header: Header) -> None:
    content = pack_tensors(tensors, header)
    with replace_atomically(path) as scratch, open(scratch, "xb") as file:
        file.write(content)
        flush_to_disk(file)


def pack_tensors(tensors: State, header: Header) -> bytes:
    """The content of a sealed file."""
    # Clones, because states may share memory (a trail's last model is the server's) and a file's tensors may not.
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return bytes(save(plain, {**header, "sha256": compute_checksum(plain, header)}))


def read_tensors(path: Path, device: str = "cpu") -> tuple[State, Header]:
    try:
        content = path.read_bytes()
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    except OSError as error:
        raise DamagedFileError(f"{path.name} cannot be read ({error.strerror})") from None
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DamagedFileError(f"{path.name} is not a sealed file ({type(error).__name__})") from None
    if not isinstance(header, dict) or not all(isinstance(value, str) for value in header.values()):
        raise DamagedFileError(f"{path.name} has a damaged header")
    expected = header.pop("sha256", "")
    if compute_checksum(tensors, header) != expected:
        raise DamagedFileError(f"{path.name} does not match its checksum")
    # Copies, because arithmetic may depend on where a tensor begins, and torch's own begin as those of the run did.
    return {name: value.to(device, copy=True) for name, value in tensors.items()}, header


def compute_checksum(tensors: State, header: Header) -> str:
    shapes = [(name, str(value.dtype), list(value.shape)) for name, value in sorted(tensors.items())]
    digest = hashlib.sha256(json.dumps([sorted(header.items()), shapes]).encode())
    for _, value in sorted(tensors.items()):
        if value.numel():
            digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_text(path: Path, text: str) -> None:
    with replace_atomically(path) as scratch, open(scratch, "x", encoding="utf-8") as file:
        file.write(text)
        flush_to_disk(file)


@contextlib.contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Yields the name to write to; it becomes `path` when that went well, and is removed when it did not."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    scratch.unlink(missing_ok=True)  # of a process with this number that was killed
    try:
        yield scratch
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
    flush_folder(path.parent)


def flush_to_disk(file: IO[Any]) -> None:
    """From Python's buffer to the system, and from there to the disk."""
    file.flush()
    os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """A rename is on the disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
