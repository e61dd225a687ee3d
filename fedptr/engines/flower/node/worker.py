"""The node's worker: a process that keeps torch, the data and the model, and answers one question at a time.

Flower starts a process for every message. That process only passes the parcel on, through a socket in a folder that
only the node's user may enter, and starts the worker if it is not running. The worker ends when the SuperNode does
(FEDPTR_NODE_PID), or after a long time without a question.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fedptr.engines.flower.wire.parcel import Parcel, read_parcel, write_parcel
from fedptr.errors import ReplyError
from fedptr.messages import last_line
from fedptr.runs.leftovers import is_process_alive

PRIVATE = "worker"  # a folder in the node's folder
SOCKET, LOCK, LOG = "socket", "lock", "log"
START = 300.0  # seconds for a worker to load the node's data and listen
IDLE = 1800.0  # seconds without a question after which it ends
PID = "FEDPTR_NODE_PID"  # the SuperNode: when it ends, no more questions come
started: list[subprocess.Popen[bytes]] = []  # workers outlive the process that starts them


def ask_worker(folder: Path, parcel: Parcel) -> Parcel:
    """The answer of the node's worker."""
    place = make_private_folder(folder)
    try:
        with connect_to_worker(place, folder) as stream:
            write_parcel(stream.sendall, parcel)
            return read_parcel(make_receiver(stream))
    except OSError as error:
        raise ReplyError(f"has a worker that does not answer ({error}); see {place / LOG}") from None


def make_private_folder(folder: Path) -> Path:
    """The folder of the socket; only its owner may enter it."""
    place = folder / PRIVATE
    place.mkdir(mode=0o700, exist_ok=True)
    place.chmod(0o700)
    return place


@contextlib.contextmanager
def connect_to_worker(place: Path, folder: Path) -> Iterator[socket.socket]:
    """A stream to the worker, which is started if it is not running."""
    with socket.socket(socket.AF_UNIX) as stream:
        if not try_to_connect(stream, place):
            with open(place / LOCK, "a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # two messages at once start one worker
                if not try_to_connect(stream, place):
                    start_worker(place, folder, stream)
        yield stream


def try_to_connect(stream: socket.socket, place: Path) -> bool:
    try:
        stream.connect(socket_address(place))
        return True
    except (FileNotFoundError, ConnectionRefusedError):
        return False


def socket_address(place: Path) -> str:
    """The socket's path; by way of its folder's descriptor where it is too long for a socket."""
    name = str(place / SOCKET)
    if len(os.fsencode(name)) < 100:
        return name
    return f"/proc/self/fd/{os.open(place, os.O_RDONLY | os.O_DIRECTORY)}/{SOCKET}"


def start_worker(place: Path, folder: Path, stream: socket.socket) -> None:
    with open(place / LOG, "a") as log:
        command = [sys.executable, "-m", "fedptr.engines.flower.node.worker", str(folder)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=folder
        )
    started.append(process)
    until = time.monotonic() + START
    while not try_to_connect(stream, place):
        if process.poll() is not None or time.monotonic() > until:
            raise ReplyError(f"has a worker that did not start: {last_line(place / LOG) or 'it has said nothing'}")
        time.sleep(0.05)


def make_receiver(stream: socket.socket) -> Callable[[int], bytes]:
    """A function that reads exactly n bytes, or raises."""

    def receive(n: int) -> bytes:
        parts = []
        while n:
            part = stream.recv(min(n, 1 << 20))
            if not part:
                raise ConnectionError("the other side went away")
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    return receive


def main(folder: Path) -> None:
    """Answers questions until the SuperNode ends."""
    from fedptr.engines.flower.node.node import Node
    from fedptr.engines.flower.node.node_plan import read_node_plan as read_plan

    node = Node(read_plan(folder))
    place = make_private_folder(folder)
    with contextlib.suppress(FileNotFoundError):
        (place / SOCKET).unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(socket_address(place))
        listener.listen(8)
        listener.settimeout(1.0)
        last = time.monotonic()
        while is_supernode_alive() and time.monotonic() - last < IDLE:
            with contextlib.suppress(TimeoutError):
                stream, _ = listener.accept()
                with stream, contextlib.suppress(ConnectionError, ReplyError):
                    stream.settimeout(None)
                    write_parcel(stream.sendall, node.answer(read_parcel(make_receiver(stream))))
                last = time.monotonic()


def is_supernode_alive() -> bool:
    pid = os.environ.get(PID, "")
    return not pid.isdigit() or is_process_alive(int(pid))


if __name__ == "__main__":
    from fedptr.errors import UserError

    try:
        main(Path(sys.argv[1]))
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
