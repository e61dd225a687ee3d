"""Clients' states: the most recently used in memory, up to a budget, the others on disk; readers see no difference.

    States   client -> state after some round; never changes, and shares what did not change with the round before
    Shelf    where the states of all rounds are, in memory or in a temporary folder
    Slot     one state on a shelf; it is there for as long as any `States` has it

What leaves memory is written to the folder, unless a checkpoint has written it: then the folder gets a second name (a
hard link) of that file, which is therefore still there when the checkpoint is gone.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from fedptr import atomic_files
from fedptr.core.round_record import nbytes
from fedptr.errors import UserError
from fedptr.types import State

LEAF = 64  # clients whose slots are copied together when one of them changes
PREFIX = "states-"  # of temporary folders


class Shelf:
    """Keeps up to `budget` bytes of states in memory, and the rest in a temporary folder inside `place`.

    The folder is removed by `close`, with the shelf, or when the process ends.
    """

    def __init__(self, budget: float = math.inf, place: Path | None = None) -> None:
        self.budget, self.place = budget, place
        self.used = 0  # bytes in memory
        self.states: OrderedDict[int, State] = OrderedDict()  # in memory, the least recently used first
        self.devices: dict[
            int, dict[str, torch.device]
        ] = {}  # what is on disk, and which of its tensors not on the CPU
        self.numbers = itertools.count()
        self.lock = threading.RLock()  # clients may visit in threads
        self.remove: weakref.finalize[Any, Any] | None = None
        self.folder: Path | None = None

    def put(self, states: Mapping[int, State]) -> dict[int, Slot]:
        """Slots for new states. These stay in memory until others are asked for, so that they can be saved first."""
        with self.lock:
            self.trim()
            slots = {i: Slot(self, next(self.numbers)) for i in states}
            for i, state in states.items():
                self.hold(slots[i].number, state)
            return slots

    def get(self, number: int) -> State:
        with self.lock:
            if number in self.states:
                self.states.move_to_end(number)
                return self.states[number]
            state = self.read(number)
            self.hold(number, state)
            self.trim()
            return state

    def saved(self, number: int, path: Path) -> None:
        """Takes note that a file holds this state."""
        with self.lock:
            if self.budget < math.inf and number not in self.devices:
                with contextlib.suppress(OSError):  # no links in this place: it will be written
                    os.link(path, self.file(number))
                    self.devices[number] = devices(self.states[number])

    def drop(self, number: int) -> None:
        """Nobody has this state any more."""
        with self.lock:
            self.used -= nbytes(self.states.pop(number, {}))
            if self.devices.pop(number, None) is not None:
                self.file(number).unlink(missing_ok=True)

    def hold(self, number: int, state: State) -> None:
        self.states[number] = state
        self.used += nbytes(state)

    def trim(self) -> None:
        """Back to the budget."""
        while self.used > self.budget:
            number, state = next(iter(self.states.items()))
            if number not in self.devices:
                self.file(number).write_bytes(atomic_files.pack_tensors(state, {}))
                self.devices[number] = devices(state)
            del self.states[number]
            self.used -= nbytes(state)

    def read(self, number: int) -> State:
        try:
            state, _ = atomic_files.read_tensors(self.file(number))
        except atomic_files.DamagedFileError as error:
            where = f"{self.folder} does not give back a client's state as it was put there ({error})"
            raise UserError(f"{where}; check the disk, and go on from the last checkpoint") from None
        return {name: value.to(self.devices[number].get(name, "cpu")) for name, value in state.items()}

    def file(self, number: int) -> Path:
        if self.folder is None:
            if self.place is not None:
                self.place.mkdir(parents=True, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self.place))
            self.remove = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        return self.folder / f"{number}.safetensors"

    def close(self) -> None:
        """Removes the folder; states that are not in memory are gone."""
        if self.remove is not None:
            self.remove()


def devices(state: State) -> dict[str, torch.device]:
    return {name: value.device for name, value in state.items() if value.device.type != "cpu"}


class Slot:
    """One state on a shelf."""

    __slots__ = ("__weakref__", "number", "shelf")

    def __init__(self, shelf: Shelf, number: int) -> None:
        self.shelf, self.number = shelf, number
        weakref.finalize(self, shelf.drop, number).atexit = False

    def get(self) -> State:
        return self.shelf.get(self.number)

    def saved(self, path: Path) -> None:
        self.shelf.saved(self.number, path)


class States(Mapping[int, State]):
    """The clients' states after a round, in client order. The shelf is where those of later rounds will be put."""

    def __init__(self, states: Mapping[int, State] | None = None, shelf: Shelf | None = None) -> None:
        self.shelf = shelf or Shelf()
        self.leaves: dict[int, dict[int, Slot]] = {}
        if states:
            self.leaves = self.updated(states).leaves

    def updated(self, states: Mapping[int, State]) -> States:
        """The next round's, in which these clients have new states."""
        return self.with_slots(self.shelf.put(states))

    def with_slots(self, slots: Mapping[int, Slot]) -> States:
        new = States(shelf=self.shelf)
        changed = {i // LEAF: dict(self.leaves.get(i // LEAF, {})) for i in slots}
        for i, slot in slots.items():
            changed[i // LEAF][i] = slot
        new.leaves = {**self.leaves, **changed}
        return new

    def slot(self, i: int) -> Slot:
        return self.leaves[i // LEAF][i]

    def changed(self, since: States) -> list[int]:
        """The clients whose state is another than it was; without a look at those that share a leaf with `since`."""
        pairs = [(leaf, since.leaves.get(key, {})) for key, leaf in self.leaves.items()]
        return sorted(i for new, old in pairs if new is not old for i in new if new[i] is not old.get(i))

    def __getitem__(self, i: int) -> State:
        return self.slot(i).get()

    def __contains__(self, i: object) -> bool:
        return isinstance(i, int) and i in self.leaves.get(i // LEAF, {})

    def __iter__(self) -> Iterator[int]:
        return (i for key in sorted(self.leaves) for i in sorted(self.leaves[key]))

    def __len__(self) -> int:
        return sum(map(len, self.leaves.values()))

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, also by `pickle`, has everything in memory."""
        return States, (dict(self),)
