"""Whatever somebody else has named is opened only if it is a regular file of a sensible size."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fedptr.regular_files import expand_home, open_regular, read_bytes, read_text


def make_fifo(folder: Path) -> Path:
    os.mkfifo(folder / "fifo")
    return folder / "fifo"


def make_socket(folder: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(folder / "socket"))
    return folder / "socket"


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\r\ntwo")
    (tmp_path / "b").symlink_to("a")
    assert read_bytes(tmp_path / "b") == b"one\r\ntwo"
    assert read_text(tmp_path / "a", 8) == "one\ntwo"
    with open_regular(tmp_path / "a") as file:
        assert file.read(3) == b"one"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (make_fifo, "it is a FIFO, not a regular file"),  # opened as usual, it waits for ever
        (lambda _: Path("/dev/zero"), "it is a device, not a regular file"),
        (lambda _: Path("/dev/full"), "it is a device, not a regular file"),
        (make_socket, "No such device or address"),
        (lambda folder: folder, "Is a directory"),
        (lambda folder: folder / "none", "No such file or directory"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, make: object, words: str) -> None:
    path = make(tmp_path)  # type: ignore[operator]
    with pytest.raises(OSError, match=words) as caught:
        read_bytes(path)
    assert caught.value.filename == str(path)
    assert words == caught.value.strerror


def test_a_file_that_is_too_long_is_refused_before_it_takes_memory(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 43)
    with pytest.raises(OSError, match="longer than 100 bytes"):
        read_bytes(tmp_path / "sparse", 100)
    with pytest.raises(OSError, match="longer than"):
        read_bytes(tmp_path / "sparse")


def test_a_file_without_a_size_is_read_up_to_the_limit() -> None:
    """Files in /proc say that they are empty."""
    assert len(read_bytes("/proc/self/status", 1 << 20)) > 100
    with pytest.raises(OSError, match="longer than 100 bytes"):
        read_bytes("/proc/self/status", 100)


def test_home_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert expand_home("~/data") == Path("/home/me/data")
    assert expand_home("data/~") == Path("data/~")
