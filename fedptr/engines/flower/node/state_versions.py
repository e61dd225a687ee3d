"""A client's states on its node's disk: a file for every version that the server may still ask for.

    EXPERIMENT/client-I-ROUND-ATTEMPT.safetensors      client I's state after that round

The attempt is the number of the server's start. A server that was killed returns to its checkpoint and repeats rounds;
states of an earlier attempt must not be taken for those of the new one. The server says which version to continue from
and the oldest round it may return to. Older versions are removed once the new one is on disk.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedptr import atomic_files
from fedptr.atomic_files import DamagedFileError
from fedptr.errors import ReplyError
from fedptr.types import State

Version = tuple[int, int]  # round, attempt


class StateVersions:
    """The states of one client in one experiment."""

    def __init__(self, folder: Path, experiment: str, client: int) -> None:
        if not re.fullmatch(r"[0-9a-f]{8,64}", experiment):
            raise ReplyError("the experiment's name is not valid")
        self.folder, self.client = folder / experiment, client

    def path(self, version: Version) -> Path:
        return self.folder / f"client-{self.client}-{version[0]}-{version[1]}.safetensors"

    def load(self, version: Version, device: str = "cpu") -> State:
        path = self.path(version)
        try:
            state, header = atomic_files.read_tensors(path, device)
        except DamagedFileError as error:
            raise ReplyError(f"lost its state of round {version[0]} ({error})") from None
        if header != {"client": str(self.client), "round": str(version[0])}:
            raise ReplyError(f"lost its state of round {version[0]} ({path.name} is of another)")
        return state

    def save(self, version: Version, state: State, floor: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_files.write_tensors(self.path(version), state, {"client": str(self.client), "round": str(version[0])})
        for path in self.folder.glob(f"client-{self.client}-*.safetensors"):
            if int(path.name.split("-")[2]) < floor:
                path.unlink(missing_ok=True)
