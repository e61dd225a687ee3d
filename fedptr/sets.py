"""All owners' auxiliary sets over the rounds, for audits: auxiliary/round0007.safetensors, where `output.sets` asks.

    client3/X, client3/y     of client 3             server/X, server/y     of the server

An auxiliary set never leaves its owner; whoever simulates a federation may look into all of them.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedptr import sealed
from fedptr.errors import UserError
from fedptr.federation import Run
from fedptr.pictures import FOLDER, is_set
from fedptr.task import State

SERVER = "server"
NAME = re.compile(r"round(\d{4,9})\.safetensors")


def due(every: int, t: int, total: int) -> bool:
    """Whether the sets of round t (from 1) are kept. The first round's are as they started: matching comes later.

    >>> [t for t in range(1, 11) if due(4, t, 10)], [t for t in range(1, 11) if due(0, t, 10)]
    ([1, 4, 8, 10], [])
    """
    return every > 0 and (t in (1, total) or t % every == 0)


def save(run: Run, out: Path) -> None:
    """Nothing where nobody has a set."""
    owners = {SERVER: run.server} | {f"client{i}": run.clients[i] for i in run.clients}
    tensors = {f"{owner}/{name}": state[name] for owner, state in owners.items() if is_set(state) for name in "Xy"}
    if tensors:
        (out / FOLDER).mkdir(exist_ok=True)
        sealed.write(out / FOLDER / f"round{run.round:04}.safetensors", tensors, {"round": str(run.round)})


def load(out: Path) -> dict[int, dict[str, State]]:
    """Round -> owner -> X and y."""
    found: dict[int, dict[str, State]] = {}
    for path in sorted((out / FOLDER).glob("*")):
        if match := NAME.fullmatch(path.name):
            try:
                tensors, _ = sealed.read(path)
            except sealed.DamagedError as error:
                raise UserError(f"{out / FOLDER}: {error}; remove {out} and audit again") from None
            owners = dict.fromkeys(name.partition("/")[0] for name in tensors)
            found[int(match[1])] = {o: {name: tensors[f"{o}/{name}"] for name in "Xy"} for o in owners}
    return dict(sorted(found.items()))
