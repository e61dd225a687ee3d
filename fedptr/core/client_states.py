"""Clients' states: the most recently used are in memory, up to a budget, the others on disk. Readers see no difference.

    ClientStates   client -> state after some round; never changes, and shares what did not change with the round before
    StateStore     holds the states of all rounds, in memory or in a temporary folder
    StoredState    one state in a store; it is kept for as long as any `ClientStates` refers to it

A state that leaves memory is written to the folder. If a checkpoint has already written it, the folder gets a hard link
to that file instead, so the state is still there when the checkpoint is removed.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
import sys
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from fedptr import atomic_files
from fedptr.core.round_record import count_bytes
from fedptr.errors import UserError
from fedptr.types import State

LEAF = 64  # clients whose entries are copied together when one of them changes
PREFIX = "states-"  # of temporary folders


class StateStore:
    """Keeps up to `budget` bytes of states in memory, and the rest in a temporary folder inside `place`.

    The folder is removed by `close`, when the store is garbage-collected, or when the process ends.

    >>> states = ClientStates({0: {"v": torch.ones(2)}}, StateStore(budget=0))
    >>> states.updated({0: {"v": torch.zeros(2)}})[0]["v"].tolist(), states[0]["v"].tolist()
    ([0.0, 0.0], [1.0, 1.0])
    """

    def __init__(self, budget: float = math.inf, place: Path | None = None) -> None:
        self.budget, self.place = budget, place
        self.used = 0  # bytes in memory
        self.states: OrderedDict[int, State] = OrderedDict()  # in memory, the least recently used first
        self.devices: dict[int, dict[str, torch.device]] = {}  # of states on disk: the tensors that were not on the CPU
        self.numbers = itertools.count()
        self.lock = threading.RLock()  # clients may visit in threads
        self.remove: weakref.finalize[Any, Any] | None = None
        self.folder: Path | None = None

    def put(self, states: Mapping[int, State]) -> dict[int, StoredState]:
        """Stores new states. They stay in memory until the next call, so that they can be saved first."""
        with self.lock:
            self.trim()
            stored = {i: StoredState(self, next(self.numbers)) for i in states}
            for i, state in states.items():
                self.hold(stored[i].number, state)
            return stored

    def get(self, number: int) -> State:
        """A state, from memory or from disk."""
        with self.lock:
            if number in self.states:
                self.states.move_to_end(number)
                return self.states[number]
            state = self.read(number)
            self.hold(number, state)
            self.trim()
            return state

    def mark_saved(self, number: int, path: Path) -> None:
        """Remembers that the file at `path` holds this state."""
        with self.lock:
            if self.budget < math.inf and number not in self.devices:
                with contextlib.suppress(OSError):  # no hard links here: the state will be written instead
                    os.link(path, self.file(number))
                    self.devices[number] = devices_of(self.states[number])

    def drop(self, number: int) -> None:
        """Forgets a state that nobody refers to any more."""
        with self.lock:
            self.used -= count_bytes(self.states.pop(number, {}))
            if self.devices.pop(number, None) is not None:
                self.file(number).unlink(missing_ok=True)

    def hold(self, number: int, state: State) -> None:
        """Puts a state into memory."""
        self.states[number] = state
        self.used += count_bytes(state)

    def trim(self) -> None:
        """Moves the least recently used states to disk until the rest fits the budget."""
        while self.used > self.budget:
            number, state = next(iter(self.states.items()))
            if number not in self.devices:
                self.file(number).write_bytes(atomic_files.pack_tensors(state, {}))
                self.devices[number] = devices_of(state)
            del self.states[number]
            self.used -= count_bytes(state)

    def read(self, number: int) -> State:
        """A state from disk, on the devices that it came from."""
        try:
            state, _ = atomic_files.read_tensors(self.file(number))
        except atomic_files.DamagedFileError as error:
            where = f"{self.folder} does not give back a client's state as it was put there ({error})"
            raise UserError(f"{where}; check the disk, and resume from the last checkpoint") from None
        return {name: value.to(self.devices[number].get(name, "cpu")) for name, value in state.items()}

    def file(self, number: int) -> Path:
        """Where a state is on disk; makes the folder when it is first asked."""
        if self.folder is None:
            if self.place is not None:
                self.place.mkdir(parents=True, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self.place))
            self.remove = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        return self.folder / f"{number}.safetensors"

    def close(self) -> None:
        """Removes the folder; states that are not in memory are lost."""
        if self.remove is not None:
            self.remove()


def devices_of(state: State) -> dict[str, torch.device]:
    return {name: value.device for name, value in state.items() if value.device.type != "cpu"}


class StoredState:
    """One state in a store."""

    __slots__ = ("number", "store")

    def __init__(self, store: StateStore, number: int) -> None:
        self.store, self.number = store, number

    def __del__(self) -> None:  # a `weakref.finalize` for each of a hundred thousand clients would take 40 MB
        if not sys.is_finalizing():
            self.store.drop(self.number)

    def get(self) -> State:
        return self.store.get(self.number)

    def mark_saved(self, path: Path) -> None:
        self.store.mark_saved(self.number, path)


class ClientStates(Mapping[int, State]):
    """The clients' states after a round, in client order. Those of later rounds go into the same store."""

    def __init__(self, states: Mapping[int, State] | None = None, store: StateStore | None = None) -> None:
        self.store = store or StateStore()
        self.leaves: dict[int, dict[int, StoredState]] = {}
        if states:
            self.leaves = self.updated(states).leaves

    def updated(self, states: Mapping[int, State]) -> ClientStates:
        """The states of the next round, in which these clients have new ones."""
        return self.with_stored(self.store.put(states))

    def with_stored(self, stored: Mapping[int, StoredState]) -> ClientStates:
        new = ClientStates(store=self.store)
        changed = {i // LEAF: dict(self.leaves.get(i // LEAF, {})) for i in stored}
        for i, state in stored.items():
            changed[i // LEAF][i] = state
        new.leaves = {**self.leaves, **changed}
        return new

    def stored(self, i: int) -> StoredState:
        return self.leaves[i // LEAF][i]

    def changed(self, since: ClientStates) -> list[int]:
        """The clients whose state differs from the one in `since`; leaves that both share are skipped."""
        pairs = [(leaf, since.leaves.get(key, {})) for key, leaf in self.leaves.items()]
        return sorted(i for new, old in pairs if new is not old for i in new if new[i] is not old.get(i))

    def __getitem__(self, i: int) -> State:
        return self.stored(i).get()

    def __contains__(self, i: object) -> bool:
        return isinstance(i, int) and i in self.leaves.get(i // LEAF, {})

    def __iter__(self) -> Iterator[int]:
        return (i for key in sorted(self.leaves) for i in sorted(self.leaves[key]))

    def __len__(self) -> int:
        return sum(map(len, self.leaves.values()))

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, also by `pickle`, has everything in memory."""
        return ClientStates, (dict(self),)
