"""A Ray cluster as docs/ray.md has it made, of two machines that are both this one; one is lost in the middle."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_runs import HALF, rounds_written
from wait_until import PATIENCE, end_of, until

from fedptr.cli.main import main
from fedptr.engines.ray import pool

pytestmark = pytest.mark.real

RAY = Path(sys.executable).parent / "ray"
ARGV = ["run", *HALF, "--method", "scaffold", "--rounds", "60"]


@contextlib.contextmanager
def machine(log: Path, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    """`ray start`, until it is there; all its processes end with it."""
    process = start_node(log, *argv)
    while pool.TOO_SLOW.encode() in log.read_bytes() and process.poll() is not None:
        process = start_node(log, *argv)  # Ray gives itself half a minute
    try:
        assert process.poll() is None, end_of(log)
        yield process
    finally:
        end(process)


def start_node(log: Path, *argv: str) -> subprocess.Popen[bytes]:
    """Returns when it is there, or has ended."""
    env = {**pool.ENV, **os.environ}
    with log.open("wb") as words:
        command = [str(RAY), "start", "--num-cpus=1", "--block", *argv]
        process = subprocess.Popen(command, stdout=words, stderr=words, env=env, start_new_session=True)
    started = b"Ray runtime started"
    until(lambda: started in log.read_bytes() or process.poll() is not None, "the start of Ray", logs=[log])
    if process.poll() is not None:
        end(process)
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENCE)


def free_port() -> int:
    """Of those that Ray does not take for its workers."""
    for port in range(6390, 6490):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no free port")


def test_a_cluster_that_loses_a_machine_gives_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="fedptr[ray] is not installed")
    address, out = f"127.0.0.1:{free_port()}", tmp_path / "run"
    with tempfile.TemporaryDirectory(prefix="ray") as short:  # Ray's sockets must have short names
        head = ["--head", f"--port={address.rpartition(':')[2]}", "--include-dashboard=false", f"--temp-dir={short}"]
        with (
            machine(tmp_path / "head.log", *head),
            machine(tmp_path / "other.log", f"--address={address}") as other,
        ):
            argv = [sys.executable, "-m", "fedptr", *ARGV, "--engine", "ray", "--ray-address", address]
            process = subprocess.Popen([*argv, "--out", str(out)], stderr=subprocess.PIPE)
            logs = [tmp_path / "head.log", tmp_path / "other.log"]
            until(lambda: rounds_written(out) > 9 or process.poll() is not None, "the tenth round", logs=logs)
            end(other)
            words = process.communicate(timeout=PATIENCE)[1].decode()
    assert process.returncode == 0, words
    assert "Traceback" not in words
    assert main([*ARGV, "--out", str(tmp_path / "here")]) == 0
    weights = [(folder / "weights.safetensors").read_bytes() for folder in (out, tmp_path / "here")]
    assert weights[0] == weights[1]
