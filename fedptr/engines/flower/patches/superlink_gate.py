"""A gate in Flower's SuperLink: over the network it serves nodes, and nothing else, and each speaks for itself alone.

A SuperLink answers nodes, the `flwr` command line and its own child processes on one port. Without Flower's account
server the command line needs no key, so whoever reaches the port could submit an app, which means running code on the
server, or register a node. With the gate, everything but the nodes' part answers to this machine only, and there only
to the user who runs the SuperLink, and root: other accounts of the machine can neither submit an app nor use the token
of a child process, which they see in the list of processes.

Flower checks that a node's request is signed with that node's key, and not whom the messages in it are from. So
one node could answer in another's place. Here a push with a message from anybody else is refused and logged.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from fedptr.engines.flower.patches.flower_code import FlowerCode
from fedptr.engines.flower.wire.peer_user import is_own_user

FLOWER = (
    FlowerCode(
        "flwr.superlink.main", "_get_middleware", 103, "def _get_middleware() -> list[Middleware]:", "acdbc2dce1520f8f"
    ),
    FlowerCode("flwr.superlink.main", "create_app", 197, "middleware=_get_middleware(),", "ee966b630c8ba8b5"),
    FlowerCode(
        "flwr.superlink.servicer.fleet.fleet_handlers", "push_messages", 247, "def push_messages(", "70c2fe927c6693b0"
    ),
    FlowerCode(
        "flwr.superlink.routers.fleet.router",
        "fleet_push_messages",
        149,
        "return fleet_handlers.push_messages(request=request, state=state)",
        "925bc195db096d43",
    ),
)
OPEN = ("/v1/fleet/", "/health")  # to nodes, which sign what they send
Scope = dict[str, Any]
Asgi = Callable[[Scope, Any, Any], Awaitable[None]]
Push = Callable[..., Any]


class Gate:
    """403 for requests from other machines, and of other users, to anything that is not for nodes."""

    def __init__(self, app: Asgi) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        path, client = scope.get("path", ""), scope.get("client")
        if scope["type"] == "lifespan" or is_open(path) or (is_local(client) and is_ours(scope, receive)):
            await self.app(scope, receive, send)
            return
        logging.getLogger("flwr").warning("fedptr: a request to %r from %s was refused", path[:80], client)
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"only on the server itself"})


def is_open(path: str) -> bool:
    """
    >>> is_open("/v1/fleet/pull"), is_open("/v1/control/start-run")
    (True, False)
    """
    return path.startswith(OPEN) and "/../" not in path


def is_local(client: tuple[str, int] | None) -> bool:
    """
    >>> is_local(("10.0.0.7", 5)), is_local(("127.0.0.1", 5)), is_local(None)
    (False, True, False)
    """
    try:
        return client is not None and ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


def is_ours(scope: Scope, receive: Any) -> bool:
    """Whether the process at the other end is one of this user's.

    The connection must still be there afterwards: otherwise another process may have been looked up that has its port.
    """
    if not is_own_user(tuple(scope["client"]), tuple(scope["server"])):
        return False
    transport: Any = getattr(getattr(receive, "__self__", None), "transport", None)  # of uvicorn
    try:
        own = transport.get_extra_info("socket").fileno()  # what uvloop gives for it remembers its peer for ever
        with socket.socket(fileno=os.dup(own)) as still:
            return bool(still.getpeername()[1] == scope["client"][1])
    except (OSError, AttributeError):
        return False


def refuse_other_senders(push: Push) -> Push:
    """Flower's handler of pushed replies, which refuses those that are from another node than the one that pushes."""
    from flwr.supercore.error import ApiErrorCode, FlowerError

    def push_messages(request: Any, state: Any) -> Any:
        for message in request.messages_list:
            if message.metadata.src_node_id != request.node.node_id:
                words = f"node {request.node.node_id} pushed a reply of node {message.metadata.src_node_id}"
                logging.getLogger("flwr").warning("fedptr: %s; it was refused", words)
                raise FlowerError(ApiErrorCode.NO_PERMISSIONS, words)
        return push(request=request, state=state)

    return push_messages


def install_gate() -> None:
    """The gate becomes the outermost middleware of the SuperLink that this process starts."""
    from flwr.superlink import main as superlink
    from flwr.superlink.servicer.fleet import fleet_handlers
    from starlette.middleware import Middleware

    inner = getattr(superlink, "_get_middleware", None)
    if inner is None:
        raise SystemExit("fedptr: this Flower has no place for the gate; install the one of fedptr[flower]")
    superlink._get_middleware = lambda: [Middleware(Gate), *inner()]
    fleet_handlers.push_messages = refuse_other_senders(fleet_handlers.push_messages)
