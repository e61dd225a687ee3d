"""Checkpoints: all that a run is, so that it goes on bit for bit after a kill at any instant.

    server-R.safetensors     the server's state after round R, and which file holds each client's; the commit point
    client-I-R.safetensors   client I's state after round R, written only when I took part

A client that did not take part costs a checkpoint sixteen bytes. The last two checkpoints are kept; what neither needs
is removed after the newer one is safe. Randomness is derived from (seed, round, client) and optimisers are new in every
round, so nothing else has to be kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import torch

from fedptr import sealed
from fedptr.federation import Run
from fedptr.sealed import DamagedError, Header
from fedptr.task import State

FORMAT = "1"
KEPT = 2
INDEX = "clients"  # beside the server's own entries, which start with "server/"


class Store:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.states: Mapping[int, State] = {}  # as last saved: a state that is another object has changed
        self.indices: dict[int, dict[int, int]] = {}  # kept checkpoint -> client -> round of its file

    def save(self, run: Run, header: Header) -> None:
        """One atomic step: the clients' files first, then the server's, whose name makes it count."""
        self.folder.mkdir(parents=True, exist_ok=True)
        index = dict(self.indices[max(self.indices)]) if self.indices else {}
        for i, state in run.clients.items():
            if self.states.get(i) is not state:
                sealed.write(self.client(i, run.round), state, {"client": str(i), "round": str(run.round)})
                index[i] = run.round
        pairs = torch.tensor(sorted(index.items()), dtype=torch.int64).reshape(-1, 2)
        tensors = {INDEX: pairs, **{f"server/{name}": value for name, value in run.server.items()}}
        sealed.write(self.server(run.round), tensors, {**header, "format": FORMAT, "round": str(run.round)})
        self.states, self.indices[run.round] = dict(run.clients), index
        self.prune()

    def prune(self, keep: int = KEPT) -> None:
        """Removes what only checkpoints before the last ones needed."""
        while len(self.indices) > keep:
            oldest, following = sorted(self.indices)[:2]
            for i, written in self.indices[oldest].items():
                if self.indices[following][i] != written:
                    self.client(i, written).unlink(missing_ok=True)
            self.server(oldest).unlink(missing_ok=True)
            del self.indices[oldest]

    def rounds(self) -> list[int]:
        """The rounds there are checkpoints of, newest first; sound or not."""
        names = (
            path.name.removeprefix("server-").removesuffix(".safetensors") for path in self.folder.glob("server-*")
        )
        return sorted((int(name) for name in names if name.isdigit()), reverse=True)

    def load(self, round_: int, device: str = "cpu") -> tuple[Run, Header]:
        """A checkpoint, checked to the last byte; raises DamagedError where anything is not as it was written."""
        tensors, header = sealed.read(self.server(round_), device)
        if header.get("format") != FORMAT:
            raise DamagedError(f"it has format {header.get('format', 'unknown')!r}, and this fedptr reads {FORMAT}")
        if header.get("round") != str(round_):
            raise DamagedError(f"{self.server(round_).name} is of round {header.get('round')}")
        index = dict(tensors.pop(INDEX).tolist())
        server = {name.removeprefix("server/"): value for name, value in tensors.items()}
        clients = {}
        for i, written in index.items():
            clients[i], own = sealed.read(self.client(i, written), device)
            if own != {"client": str(i), "round": str(written)}:
                raise DamagedError(f"{self.client(i, written).name} is of client {own.get('client')}")
        return Run(round_, server, clients), header

    def adopt(self, run: Run) -> None:
        """Goes on from `run`, which was loaded. What is newer is not removed; the run will come by and replace it."""
        self.states = dict(run.clients)
        for round_ in self.rounds():
            if round_ <= run.round:
                with contextlib.suppress(DamagedError):
                    tensors, _ = sealed.read(self.server(round_))
                    self.indices[round_] = dict(tensors[INDEX].tolist())

    def server(self, round_: int) -> Path:
        return self.folder / f"server-{round_}.safetensors"

    def client(self, i: int, round_: int) -> Path:
        return self.folder / f"client-{i}-{round_}.safetensors"
