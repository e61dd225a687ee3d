"""Whose learned images there are after a round: a client's or the server's own, or those that clients sent.

What clients sent is kept by the server, one client after another, with the client of every image as `owner`.
"""

from __future__ import annotations

from fedptr.core.federation import Run
from fedptr.types import State

SERVER = "server"
CLIENT = "client"


def were_sent(run: Run) -> bool:
    """Whether the server has sets that clients sent."""
    return "owner" in run.server and "X" in run.server


def list_owners(run: Run) -> list[str]:
    """Everybody who may have a set."""
    if were_sent(run):
        return [f"{CLIENT}{i}" for i in run.server["owner"].unique().tolist()]
    return [SERVER, *(f"{CLIENT}{i}" for i in run.clients)]


def owner_state(run: Run, owner: str) -> State:
    """The state that has an owner's set, if anything has it."""
    if owner == SERVER:
        return run.server
    i = client_number(owner)
    if were_sent(run):
        rows = run.server["owner"] == i
        return {name: run.server[name][rows] for name in "Xy"}
    return run.clients[i]


def client_number(owner: str) -> int:
    """
    >>> client_number("client12")
    12
    """
    return int(owner.removeprefix(CLIENT))


def has_set(state: State) -> bool:
    return "X" in state and "y" in state


def has_images(state: State) -> bool:
    """A table's rows, which have one pixel, are no pictures."""
    return has_set(state) and state["X"].dim() == 4 and state["X"][0, 0].numel() > 1
