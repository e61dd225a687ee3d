"""What every test has: one thread, time, no other machine unless it is marked `real`, and the small world."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from small_world import World

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a machine may be
settings.load_profile("busy")
torch.set_num_threads(1)  # tests run side by side, and one thread is what bit-for-bit is promised for
collect_ignore_glob = ["*conftest.py", "helpers/*"]  # no doctests there
connect = socket.socket.connect


def connect_nearby(self: socket.socket, address: Any) -> None:
    """Connects within this machine only."""
    if self.family != socket.AF_UNIX:
        assert address[0] in ("127.0.0.1", "::1", "localhost"), f"a test that connects to {address} is marked `real`"
    connect(self, address)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if not item.get_closest_marker("real"):
            patch.setattr(socket.socket, "connect", connect_nearby)
        return (yield)


@pytest.fixture(scope="session")
def world() -> World:
    return World()
