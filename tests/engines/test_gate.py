"""The SuperLink's gate: over the network it serves nodes only, and on its own machine its own user only."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedptr[flower]'")

import httpx
import uvicorn
from wait_until import until

from fedptr.engines.flower.patches import superlink_gate
from fedptr.engines.flower.patches.superlink_gate import Gate
from fedptr.engines.flower.wire import peer_user

pytestmark = pytest.mark.real

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="connections are looked up in /proc")
COMMANDS = ("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/docs", "/")


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def status_of(path: str, client: str) -> int:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "client": (client, 1), "server": ("127.0.0.1", 2)}
    asyncio.run(Gate(hello)(scope, None, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize("path", COMMANDS)
def test_commands_from_another_machine_are_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert status_of(path, "192.0.2.7") == 403
    assert status_of(path, "not an address") == 403
    monkeypatch.setattr(superlink_gate, "is_ours", lambda scope, receive: True)
    assert status_of(path, "192.0.2.7") == 403
    assert status_of(path, "127.0.0.1") == 200


def test_nodes_are_served_from_anywhere() -> None:
    assert status_of("/v1/fleet/pull-messages", "192.0.2.7") == 200
    assert status_of("/v1/fleet/../control/start-run", "192.0.2.7") == 403


@pytest.fixture(params=["127.0.0.1", "0.0.0.0"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """A real server behind the gate, as the SuperLink is."""
    with socket.socket() as listener:
        listener.bind((request.param, 0))
        server = uvicorn.Server(uvicorn.Config(Gate(hello), log_level="error", lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        until(lambda: server.started, "the server")
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join()


@linux
def test_the_own_user_may_give_commands(port: int) -> None:
    with httpx.Client() as client:
        for path in COMMANDS:
            assert client.get(f"http://127.0.0.1:{port}{path}").status_code == 200


ASK = """
import encodings.idna, http.client, os, sys
os.setuid(65534)
link = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
link.request("GET", "/v1/control/start-run")
print(link.getresponse().status)
"""


@linux
@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can be another user")
def test_another_user_may_not(port: int) -> None:
    done = subprocess.run([sys.executable, "-c", ASK, str(port)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "403", done.stderr


@linux
def test_a_request_whose_sender_has_gone_is_refused(port: int) -> None:
    """It is not known any more who it was; its port may be another's by now."""
    before_table = peer_user.find_peer_user

    def look_late(client: Any, server: Any) -> bool:
        link.close()
        until(lambda: before_table(client, server) is None, "the end of the connection")
        return True  # as if a process of ours had got the port

    with pytest.MonkeyPatch.context() as patch, socket.create_connection(("127.0.0.1", port)) as link:
        patch.setattr(superlink_gate, "is_own_user", look_late)
        served: list[str] = []
        patch.setattr(superlink_gate, "is_ours", note_answer(superlink_gate.is_ours, served))
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset when it is closed
        link.sendall(b"GET /v1/control/start-run HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: served, "the gate's answer")
    assert served == ["False"]


def note_answer(ask: Any, into: list[str]) -> Any:
    def asked(*arguments: Any) -> bool:
        into.append(str(ask(*arguments)))
        return into[-1] == "True"

    return asked


@linux
def test_an_unknown_connection_has_no_user() -> None:
    assert peer_user.find_peer_user(("127.0.0.1", 1), ("127.0.0.1", 2)) is None
    assert not peer_user.is_own_user(("127.0.0.1", 1), ("127.0.0.1", 2))
