"""A run as one file: server state, every client's state, and the round; from it a run goes on bit for bit.

Nothing else has to be kept: randomness is derived from (seed, round, client), and optimisers are new in every round.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedptr.errors import UserError
from fedptr.federation import Run

FORMAT = "1"


def save(run: Run, path: str | Path) -> None:
    """Writes beside the file and renames, so that a reader sees the old one or the new one."""
    tensors = {f"server/{name}": value for name, value in run.server.items()}
    for i, state in run.clients.items():
        tensors |= {f"client/{i}/{name}": value for name, value in state.items()}
    meta = {"format": FORMAT, "round": str(run.round), "clients": json.dumps(sorted(run.clients))}
    scratch = Path(f"{path}.{os.getpid()}.tmp")
    # Clones, because states may share memory (a trail's last model is the server's) and files may not.
    save_file({name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}, scratch, meta)
    os.replace(scratch, path)


def load(path: str | Path, device: str = "cpu") -> Run:
    """The run a file holds, to be given to `federate(…, start=run)`."""
    try:
        with safe_open(path, "pt", device=device) as file:
            meta = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"checkpoint {path} cannot be read ({error})") from None
    if meta.get("format") != FORMAT:
        raise UserError(f"checkpoint {path} is not of format {FORMAT}, which this fedptr reads")
    clients: dict[int, dict[str, torch.Tensor]] = {i: {} for i in json.loads(meta["clients"])}
    server = {}
    for name, value in tensors.items():
        owner, rest = name.split("/", 1)
        if owner == "server":
            server[rest] = value
        else:
            i, entry = rest.split("/", 1)
            clients[int(i)][entry] = value
    return Run(int(meta["round"]), server, clients)
