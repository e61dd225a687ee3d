"""A client's states on its node's disk: a file for every version that the server may still ask for.

    EXPERIMENT/client-I-ROUND-ATTEMPT.safetensors      client I's state after that round

The attempt is which start of the server asked: a server that was killed goes back to its checkpoint and asks for rounds
again, and what an earlier attempt left behind must not be taken for the new one's. The server says which version to go
on from and the oldest round it may go back to; what is older is removed once the new version is safe.
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
            raise ReplyError("the experiment's name is not one")
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
