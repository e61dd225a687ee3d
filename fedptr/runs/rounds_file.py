"""rounds.jsonl: one line a round, appended; a checkpoint knows how much of it there was and what it hashed to."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import IO, Any

from fedptr.atomic_files import DamagedFileError, Header, flush_to_disk
from fedptr.regular_files import read_bytes

Record = dict[str, Any]
NAME = "rounds.jsonl"


class RoundsFile:
    """The open file, with a running checksum."""

    def __init__(self, folder: Path, header: Header | None = None) -> None:
        """A new file, or the part of an old one that a checkpoint's header vouches for."""
        self.path, self.digest, self.length = folder / NAME, hashlib.sha256(), 0
        self.records: list[Record] = []
        self.file: IO[bytes]
        if header is None:
            self.file = open(self.path, "wb")  # noqa: SIM115
            return
        kept = vouched_lines(folder, header)
        self.records = [json.loads(line) for line in kept.splitlines()]
        self.digest.update(kept)
        self.length = len(kept)
        self.file = open(self.path, "r+b")  # noqa: SIM115
        self.file.truncate(self.length)  # rounds after the checkpoint come again, the same
        self.file.seek(0, os.SEEK_END)

    def append(self, record: Record) -> None:
        """On the disk before the checkpoint that counts on it."""
        line = (json.dumps(to_json_values(record), allow_nan=False) + "\n").encode()
        self.file.write(line)
        flush_to_disk(self.file)
        self.digest.update(line)
        self.length += len(line)
        self.records.append(record)

    def header(self) -> Header:
        return {"lines": str(self.length), "lines_sha256": self.digest.hexdigest()}

    def close(self) -> None:
        self.file.close()


def read_lines(folder: Path) -> list[bytes]:
    """All lines with their ends; a kill may have cut off the last one."""
    return read_bytes(folder / NAME).splitlines(keepends=True)


def whole_lines(folder: Path) -> list[bytes]:
    """The lines that were written whole; none where there is no file."""
    try:
        return [line for line in read_lines(folder) if line.endswith(b"\n")]
    except OSError:
        return []


def read_records(folder: Path) -> list[Record]:
    """The rounds that were written whole; raises DamagedFileError where they cannot be read."""
    try:
        return [json.loads(line) for line in read_lines(folder) if line.endswith(b"\n")]
    except OSError as error:
        raise DamagedFileError(f"{NAME} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise DamagedFileError(f"{NAME} is not JSON, a line a round") from None


def vouched_lines(folder: Path, header: Header) -> bytes:
    """What a checkpoint's header vouches for; raises DamagedFileError where the file has it no more."""
    path = folder / NAME
    try:
        kept = read_bytes(path)[: int(header["lines"])]
        whole = hashlib.sha256(kept).hexdigest() == header["lines_sha256"]
    except OSError as error:
        raise DamagedFileError(f"{path.name} cannot be read ({error.strerror})") from None
    except (KeyError, ValueError):
        raise DamagedFileError(f"it does not say what {path.name} held") from None
    if not whole:
        raise DamagedFileError(f"{path.name} was changed or cut since round {header['round']}")
    return kept


def to_json_values(value: Any) -> Any:
    """JSON has no NaN or infinity: null stands for both."""
    if isinstance(value, dict):
        return {str(key): to_json_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_json_values(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
