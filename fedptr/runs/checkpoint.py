"""Checkpoints: all that a run is, so that it continues bit for bit after a kill at any instant.

    server-R.safetensors     the server's state after round R, and which file holds each client's; the commit point
    client-I-R.safetensors   client I's state after round R, written only when I took part

A client that did not take part costs a checkpoint sixteen bytes. The last two checkpoints are kept; what neither needs
is removed after the newer one is safe. Randomness is derived from (seed, round, client) and optimisers are new in every
round, so nothing else has to be kept.
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedptr import atomic_files
from fedptr.atomic_files import DamagedFileError, Header
from fedptr.core.client_states import ClientStates, StateStore, StoredState
from fedptr.core.early_stopping import NO_SCORE, BestScore
from fedptr.core.federation import Run
from fedptr.runs.rounds_file import to_json_values
from fedptr.types import State

FORMAT = "1"
KEPT = 2
RECORD = "record"  # in the header of a checkpoint whose round is not evaluated yet: what is known of the round
BEST = "best"  # in the header of a run that may stop early: its best score, and the evaluations since
MOST = 10**9  # rounds, and clients
SERVER = re.compile(r"server-(0|[1-9][0-9]*)\.safetensors")
INDEX = "clients"  # beside the server's own entries, which start with "server/"


class CheckpointStore:
    """The checkpoints of one run, in a folder; the last two are kept.

    `save` a run in the loop over `federate`, and resume with `start=store.load_newest()`. Loaded states go to
    `state_store`: into memory, as its budget allows.
    """

    def __init__(self, folder: str | Path, state_store: StateStore | None = None) -> None:
        self.folder, self.state_store = Path(folder), state_store or StateStore()
        self.states = ClientStates()  # as last saved
        self.indices: dict[int, Tensor] = {}  # kept checkpoint -> round of each client's file; 0 = it has none

    def save(self, run: Run, header: Header | None = None) -> None:
        """One atomic step: the clients' files first, then the server's, whose name makes it count."""
        self.folder.mkdir(parents=True, exist_ok=True)
        changed = run.clients.changed(self.states)
        for i in changed:
            path = self.client(i, run.round)
            atomic_files.write_tensors(path, run.clients[i], {"client": str(i), "round": str(run.round)})
            run.clients.stored(i).mark_saved(path)
        last = self.indices[max(self.indices)] if self.indices else torch.zeros(0, dtype=torch.int64)
        index = torch.cat([last, last.new_zeros(max(0, max(changed, default=0) + 1 - len(last)))])
        index[torch.tensor(changed, dtype=torch.int64)] = run.round
        tensors = {INDEX: pairs_of(index), **{f"server/{name}": value for name, value in run.server.items()}}
        own = {"format": FORMAT, "round": str(run.round)}
        if not run.evaluated:  # its line is not in rounds.jsonl yet
            own[RECORD] = json.dumps(to_json_values(run.record))
        if run.best != NO_SCORE:
            own[BEST] = json.dumps(run.best)
        atomic_files.write_tensors(self.server(run.round), tensors, {**(header or {}), **own})
        self.states, self.indices[run.round] = run.clients, index
        self.prune()

    def prune(self, keep: int = KEPT) -> None:
        """Removes what only checkpoints before the last ones needed."""
        while len(self.indices) > keep:
            oldest, following = sorted(self.indices)[:2]
            old, new = self.indices[oldest], self.indices[following]
            for i, written in pairs_of(old * (old != new[: len(old)])).tolist():
                self.client(i, written).unlink(missing_ok=True)
            self.server(oldest).unlink(missing_ok=True)
            del self.indices[oldest]

    def rounds(self) -> list[int]:
        """The rounds there are checkpoints of, newest first; sound or not."""
        found = (SERVER.fullmatch(path.name) for path in self.folder.glob("server-*"))
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def load_newest(self, device: str = "cpu") -> Run | None:
        """The newest sound checkpoint, to be passed to `federate` as `start`; None if nothing was saved yet.

        Raises DamagedFileError if none of those that are there is sound.
        """
        problem: DamagedFileError | None = None
        for round_ in self.rounds():
            try:
                run, _ = self.load(round_, device)
            except DamagedFileError as error:
                problem = problem or error
                continue
            self.adopt(run)
            return run
        if problem:
            raise problem
        return None

    def load(self, round_: int, device: str = "cpu") -> tuple[Run, Header]:
        """A checkpoint, checked to the last byte; raises DamagedFileError where anything is not as it was written."""
        tensors, header = self.read_server(round_, device)
        pairs = read_index(tensors, self.server(round_).name).tolist()
        server = {name.removeprefix("server/"): value for name, value in tensors.items()}
        stored: dict[int, StoredState] = {}
        for i, written in pairs:  # all are read, and those beyond the store's budget dropped from memory again
            path = self.client(i, written)
            state, own = atomic_files.read_tensors(path, device)
            if own != {"client": str(i), "round": str(written)}:
                raise DamagedFileError(f"{path.name} is of client {own.get('client')}")
            stored |= self.state_store.put({i: state})
            stored[i].mark_saved(path)
        clients, record = ClientStates(store=self.state_store).with_stored(stored), read_record(header)
        return Run(round_, server, clients, record, evaluated=RECORD not in header, best=read_best(header)), header

    def read_server(self, round_: int, device: str = "cpu") -> tuple[State, Header]:
        """The server's file of a round; raises DamagedFileError, also where it is another file under this name."""
        tensors, header = atomic_files.read_tensors(self.server(round_), device)
        if header.get("format") != FORMAT:
            raise DamagedFileError(f"it has format {header.get('format', 'unknown')!r}, and this fedptr reads {FORMAT}")
        if header.get("round") != str(round_):
            raise DamagedFileError(f"{self.server(round_).name} is of round {header.get('round')}")
        if INDEX not in tensors:
            raise DamagedFileError(f"{self.server(round_).name} does not say which clients it has")
        return tensors, header

    def adopt(self, run: Run) -> None:
        """Goes on from `run`, which was loaded. What is newer is not removed; the run will come by and replace it."""
        self.states = run.clients
        for round_ in self.rounds():
            if round_ <= run.round:
                with contextlib.suppress(DamagedFileError):
                    tensors, _ = self.read_server(round_)
                    self.indices[round_] = index_of(read_index(tensors, self.server(round_).name))

    def server(self, round_: int) -> Path:
        """The file with the server's state after a round."""
        return self.folder / f"server-{round_}.safetensors"

    def client(self, i: int, round_: int) -> Path:
        """The file with a client's state after a round."""
        return self.folder / f"client-{i}-{round_}.safetensors"


def read_index(tensors: State, name: str) -> Tensor:
    """Takes (client, round) of every client's file out of a server's tensors; a checksum fits whatever was written."""
    pairs = tensors.pop(INDEX, None)
    sound = pairs is not None and pairs.dtype == torch.int64 and pairs.dim() == 2 and pairs.shape[1] == 2
    if pairs is None or not sound or bool(((pairs < 0) | (pairs > MOST)).any() or (pairs.diff(dim=0)[:, 0] <= 0).any()):
        raise DamagedFileError(f"{name} does not say which files its clients have")
    return pairs


def read_record(header: Header) -> dict[str, Any]:
    """What is known of a round that is not evaluated yet."""
    try:
        record = json.loads(header.get(RECORD, "{}"))
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise DamagedFileError("its record of the round is not JSON")
    return record


def read_best(header: Header) -> BestScore:
    """What early stopping knows of the rounds so far."""
    try:
        score, waited = json.loads(header[BEST]) if BEST in header else NO_SCORE
    except (ValueError, TypeError, RecursionError):
        raise DamagedFileError("its best score is not JSON") from None
    if not isinstance(score, float) or type(waited) is not int:
        raise DamagedFileError("its best score is no number")
    return BestScore(score, waited)


def index_of(pairs: Tensor) -> Tensor:
    """The round of each client's file, from (client, round)."""
    clients, rounds = pairs.T
    index = torch.zeros(int(clients[-1]) + 1 if len(clients) else 0, dtype=torch.int64)
    index[clients] = rounds
    return index


def pairs_of(index: Tensor) -> Tensor:
    """(client, round) of each client that has a file, in client order."""
    clients = index.nonzero().flatten()
    return torch.stack([clients, index[clients]], dim=1)
