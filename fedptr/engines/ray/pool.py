"""A connection to Ray, and worker processes that several runs use one after another."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

from fedptr.compute.cores import count_cores
from fedptr.compute.workload import MachinePlan
from fedptr.engines.ray.worker import Worker
from fedptr.errors import UserError
from fedptr.messages import install_command, print_notice

# No usage statistics are sent. Workers get the normal priority, where Ray gives the lowest. Ray does not mention
# graphics cards, which are not used. On a busy machine, a worker has ten minutes to start, where Ray gives it one. The
# user's own environment takes precedence.
ENV = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_register_timeout_seconds": "600",
}
CONNECT = 30  # seconds for a cluster to answer
STARTS = 5  # attempts to start Ray, which gives itself half a minute each time
TOO_SLOW = "timed out during startup"  # in Ray's message
SETTINGS = 4  # the type of the first frame of each side of HTTP/2


class Pool:
    """Starts Ray and its workers when they are first needed; keeps workers between two runs."""

    def __init__(self, machine: MachinePlan) -> None:
        self.machine, self.threads = machine, threads_per_worker(machine)
        self.workers: list[Any] = []  # not used by any run now
        self.open = contextlib.ExitStack()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            self.ray.kill(worker)
        self.open.close()

    @functools.cached_property
    def ray(self) -> Any:
        """The `ray` module, connected."""
        return self.open.enter_context(connect_ray(self.machine))

    @functools.cached_property
    def limit(self) -> int:
        """How many workers a run may have."""
        return self.machine.workers or max(1, int(self.ray.cluster_resources().get("CPU", 1)) // self.threads)

    @functools.cached_property
    def new_worker(self) -> Any:
        return self.ray.remote(num_cpus=self.threads)(Worker)

    def take_worker(self) -> Any:
        return self.workers.pop() if self.workers else self.new_worker.remote()


def check_ray(address: str) -> None:
    """Raises unless Ray is installed and something listens at the address of its cluster."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(f'machine.engine = "ray" needs Ray; install it with: {install_command("ray")}')
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not address or address == "auto":
        return
    if not colon or not host or not port.isdecimal():
        raise UserError(f"machine.ray_address must be host:port or auto, not {address!r}")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT) as peer:
            speaks = os.environ.get("RAY_USE_TLS") == "1" or speaks_http2(peer)
    except (OSError, OverflowError, UnicodeError) as error:
        raise UserError(f"there is no Ray cluster at {address} ({error}); see `ray status` on its head") from None
    if not speaks:
        raise UserError(f"what listens at {address} is not a Ray cluster; see `ray status` on its head")


def speaks_http2(peer: socket.socket) -> bool:
    """Whether the peer speaks HTTP/2, as Ray does. Ray itself would try a wrong address for many minutes."""
    peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]))
    answer = peer.recv(9)
    return len(answer) == 9 and answer[3] == SETTINGS


@contextlib.contextmanager
def connect_ray(machine: MachinePlan) -> Iterator[Any]:
    """Yields the `ray` module, connected: to Ray as this process already is, to the cluster, or to a new Ray."""
    check_ray(machine.ray_address)
    for name, value in ENV.items():
        os.environ.setdefault(name, value)
    with keep_signal_handlers():
        import ray

        ours = not ray.is_initialized()
        if ours:
            start_or_join_ray(ray, machine)
    try:
        yield ray
    finally:
        if ours:
            with keep_signal_handlers():
                ray.shutdown()


def start_or_join_ray(ray: Any, machine: MachinePlan) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if machine.ray_address:
            ray.init(machine.ray_address, **quiet)
        else:  # not None, which may be a cluster named by the environment
            cpus = machine.workers * threads_per_worker(machine) or max(count_cores(), threads_per_worker(machine))
            start_ray(ray, {"num_cpus": cpus, "include_dashboard": False, **quiet})
    except Exception as error:  # no cluster, another version of Ray or Python, no room …
        where = f"connect to {machine.ray_address}" if machine.ray_address else "start on this machine"
        raise UserError(f"Ray cannot {where}: {last_line_of_error(error)}") from error


def start_ray(ray: Any, settings: dict[str, Any]) -> None:
    """Starts Ray on this machine; again where the machine was too busy for the time that Ray allows for it."""
    for left in reversed(range(STARTS)):
        try:
            ray.init("local", **settings)
            return
        except Exception as error:
            if TOO_SLOW not in str(error) or not left:
                raise
            print_notice("Ray did not start within the time it has, as the machine is busy; trying again")
            ray.shutdown()


@contextlib.contextmanager
def keep_signal_handlers() -> Iterator[None]:
    """Restores the signal handlers: Ray takes over SIGTERM, and a run could no longer stop cleanly."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def threads_per_worker(machine: MachinePlan) -> int:
    """One unless it was chosen: many workers with one thread each are faster than few with several."""
    return machine.threads or 1


def last_line_of_error(error: BaseException) -> str:
    """The line of an error that says what happened: Ray's messages end with a traceback, so the last one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__
