"""Flower's SuperLink with a gate: over the network nodes are served, and nothing else is.

A SuperLink answers nodes, the `flwr` command line and its own child processes on one port. Without Flower's account
server the command line needs no key, so whoever reaches the port could submit an app, that is, run code on the server
and on every node, or register a node of his own. Here everything but the nodes' part answers to this machine only.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Awaitable, Callable
from typing import Any

OPEN = ("/v1/fleet/", "/health")  # to nodes, which sign what they send
Scope = dict[str, Any]
Asgi = Callable[[Scope, Any, Any], Awaitable[None]]


class Gate:
    """403 for requests from other machines to anything that is not for nodes."""

    def __init__(self, app: Asgi) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or allowed(scope.get("path", ""), scope.get("client")):
            await self.app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"only on the server itself"})


def allowed(path: str, client: tuple[str, int] | None) -> bool:
    """
    >>> allowed("/v1/control/start-run", ("10.0.0.7", 5)), allowed("/v1/control/start-run", ("127.0.0.1", 5))
    (False, True)
    >>> allowed("/v1/fleet/pull", ("10.0.0.7", 5))
    True
    """
    if path.startswith(OPEN) and "/../" not in path:
        return True
    try:
        return client is not None and ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


def main() -> None:
    from flwr.superlink import main as superlink
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    inner = getattr(superlink, "_get_middleware", None)
    if inner is None:
        raise SystemExit("fedptr: this Flower has no place for the gate; install the one of fedptr[flower]")
    superlink._get_middleware = lambda: [Middleware(Gate), *inner()]
    flower_superlink()


if __name__ == "__main__":
    sys.argv[0] = "flower-superlink"
    main()
