"""A gate in Flower's SuperLink: over the network it serves nodes, and nothing else.

A SuperLink answers nodes, the `flwr` command line and its own child processes on one port. Without Flower's account
server the command line needs no key, so whoever reaches the port could submit an app, which means running code on the
server, or register a node. With the gate, everything but the nodes' part answers to this machine only.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any

from fedptr.engines.flower.patches.flower_code import FlowerCode

FLOWER = (
    FlowerCode(
        "flwr.superlink.main", "_get_middleware", 103, "def _get_middleware() -> list[Middleware]:", "acdbc2dce1520f8f"
    ),
    FlowerCode("flwr.superlink.main", "create_app", 197, "middleware=_get_middleware(),", "ee966b630c8ba8b5"),
)
OPEN = ("/v1/fleet/", "/health")  # to nodes, which sign what they send
Scope = dict[str, Any]
Asgi = Callable[[Scope, Any, Any], Awaitable[None]]


class Gate:
    """403 for requests from other machines to anything that is not for nodes."""

    def __init__(self, app: Asgi) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or is_allowed(scope.get("path", ""), scope.get("client")):
            await self.app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"only on the server itself"})


def is_allowed(path: str, client: tuple[str, int] | None) -> bool:
    """
    >>> is_allowed("/v1/control/start-run", ("10.0.0.7", 5)), is_allowed("/v1/control/start-run", ("127.0.0.1", 5))
    (False, True)
    >>> is_allowed("/v1/fleet/pull", ("10.0.0.7", 5))
    True
    """
    if path.startswith(OPEN) and "/../" not in path:
        return True
    try:
        return client is not None and ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


def install_gate() -> None:
    """The gate becomes the outermost middleware of the SuperLink that this process starts."""
    from flwr.superlink import main as superlink
    from starlette.middleware import Middleware

    inner = getattr(superlink, "_get_middleware", None)
    if inner is None:
        raise SystemExit("fedptr: this Flower has no place for the gate; install the one of fedptr[flower]")
    superlink._get_middleware = lambda: [Middleware(Gate), *inner()]
