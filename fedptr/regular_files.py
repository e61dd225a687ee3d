"""Files that somebody else has named or made are opened here: a regular file up to a size, or an OSError.

A FIFO would wait for ever for its writer, and a device such as /dev/zero never ends. The errors are OSErrors whose
`strerror` says what is there instead, so that they are explained wherever a missing file is.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from fedptr.errors import UserError

TEXT = 1 << 30  # bytes; more than any text file that is read as a whole: splits, records, lists of names
LARGEST = 1 << 40  # of any file
BLOCK = 1 << 20
KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def open_regular(path: str | Path) -> BinaryIO:
    """The opened file; raises OSError unless it is a regular one."""
    # Without O_NONBLOCK, opening a FIFO waits. The kind is that of the opened file, so nobody can exchange it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if kind != stat.S_IFREG:
            raise OSError(errno.EINVAL, f"it is {KINDS.get(kind, 'something')}, not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: str | Path, most: int = LARGEST) -> bytes:
    """The content of a regular file; raises OSError where it has more than `most` bytes, before it takes memory."""
    with open_regular(path) as file:
        size, content = os.fstat(file.fileno()).st_size, b""
        try:
            if size <= most:
                content = file.read(size) or b""
                while len(content) <= most and (more := file.read(BLOCK)):  # it grows, or it is in /proc: sizes are 0
                    content += more
        except MemoryError:
            raise OSError(errno.ENOMEM, f"its {size} bytes do not fit into memory", str(path)) from None
    if max(size, len(content)) > most:
        raise OSError(errno.EFBIG, f"it is longer than {most} bytes, the most for such a file", str(path))
    return content


def read_text(path: str | Path, most: int = TEXT, encoding: str = "utf-8", errors: str = "strict") -> str:
    """The same as text, with the line ends of any system."""
    return read_bytes(path, most).decode(encoding, errors).replace("\r\n", "\n").replace("\r", "\n")


def expand_home(path: str | Path) -> Path:
    """The path with `~` and `~name` replaced by that user's home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"{path} begins with the home folder of a user who is not known here; correct it") from None
