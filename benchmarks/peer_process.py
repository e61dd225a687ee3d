"""Another library's rounds, one at a time on request, so that they can take turns with ours.

A peer runs in its own process and environment (benchmarks/.venv, see peers.txt). It gets a folder with the work,
starts, and waits on a socket before every round. The final model comes back as a file in the folder.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

HERE = Path(__file__).parent
PYTHON = Path(os.environ.get("PEERS", HERE / ".venv")) / "bin" / "python"
FOLDER = "FEDPTR_BENCH_FOLDER"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
}
PATIENCE = 600  # seconds to wait for a start or a round


class PeerError(Exception):
    """A peer is not installed, or did not do what it was asked to."""


class Peer:
    """The peer as we see it. `with Peer(…) as peer: peer.run_round()`"""

    def __init__(self, script: str, setting: Sequence[str], work: dict[str, Any]) -> None:
        if not PYTHON.exists():
            raise PeerError("not installed; `make bench` installs it")
        self.temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.folder = Path(self.temporary.name)
        torch.save(work, self.folder / "work.pt")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.folder / "socket"))
        listener.listen(1)
        listener.settimeout(1)
        paths = os.pathsep.join([str(HERE), str(HERE.parent)])
        env = {**os.environ, **QUIET, FOLDER: str(self.folder), "PYTHONPATH": paths, "FLWR_HOME": str(self.folder)}
        command = [part.format(script=HERE / script) for part in setting]
        self.log = (self.folder / "log").open("wb")
        self.process = subprocess.Popen(
            [str(PYTHON), *command],
            cwd=self.folder,  # not this folder: Ray's workers import what is in the current folder first
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )
        with listener:
            self.connection = self.accept(listener)

    def accept(self, listener: socket.socket) -> socket.socket:
        """Waits until the peer is ready for its first round."""
        for _ in range(PATIENCE):
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if self.process.poll() is not None:
                    break
                continue
            connection.settimeout(PATIENCE)
            return connection
        self.close()
        error = self.make_error("did not start")
        self.temporary.cleanup()
        raise error

    def run_round(self) -> None:
        try:
            self.connection.sendall(b"g")
            answer = self.connection.recv(1)
        except OSError as error:
            raise self.make_error(f"did not answer ({error})") from None
        if not answer:
            raise self.make_error("stopped")

    def load_state(self) -> dict[str, Tensor]:
        """The global model after the last round."""
        found: dict[str, Tensor] = torch.load(self.folder / "state.pt", weights_only=True)
        return found

    def make_error(self, words: str) -> PeerError:
        """An error with the last line of the peer's log that looks like a reason."""
        lines = (self.folder / "log").read_text(errors="replace").splitlines()
        reasons = [line for line in lines if "Error" in line] or lines or ["its log is empty"]
        return PeerError(f"{words}: {reasons[-1]}")

    def close(self) -> None:
        """Ends the peer and everything it started; all of it is in one session."""
        try:
            self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()
        self.close()
        self.temporary.cleanup()


class RoundGate:
    """The other end, inside the peer: call `wait` before the first round and after each one."""

    def __init__(self) -> None:
        self.done = 0
        self.connection = socket.socket(socket.AF_UNIX)

    def wait(self, state: dict[str, Tensor]) -> None:
        rounds = load_work()["rounds"]
        if self.done == 0:
            self.connection.connect(os.path.join(os.environ[FOLDER], "socket"))
        else:
            if self.done == rounds:
                torch.save(state, os.path.join(os.environ[FOLDER], "state.pt"))
            self.connection.sendall(b"d")
        # Also after the last round, until we close: shutting down takes time while others are still measured.
        if not self.connection.recv(1) and self.done < rounds:
            raise SystemExit("nobody waits for the next round")
        self.done += 1


@functools.cache
def load_work() -> dict[str, Any]:
    """The work, read once per process: x, y, state, network, shape, width, clients, cohort, rounds, local."""
    found: dict[str, Any] = torch.load(os.path.join(os.environ[FOLDER], "work.pt"), weights_only=True)
    return found


def client_samples(i: int) -> tuple[Tensor, Tensor]:
    """The images and labels of one client; images in bytes are normalised, as ours are."""
    work = load_work()
    size = len(work["y"]) // work["clients"]
    x, y = (work[name][i * size : (i + 1) * size] for name in ("x", "y"))
    return (x if x.is_floating_point() else (x.float() - work["mean"]) / work["std"]), y
