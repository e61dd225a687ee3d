"""The disk as a workbench: the state of long work within a round, until the round's checkpoint is written.

`unfinished/round-3-client-7-HASH.safetensors` in the run folder is client 7's in round 4; see `fedptr.core.long_work`.
It is used only by the same run, computed in the same way. Nothing depends on it: what is damaged, or cannot be written,
is computed again.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
from dataclasses import dataclass, field
from pathlib import Path

from fedptr.atomic_files import DamagedFileError, Header, read_tensors, write_tensors
from fedptr.compute.describe_computing import describe_computing
from fedptr.core.task import ModelTask, Task
from fedptr.messages import print_notice
from fedptr.runs.leftovers import UNFINISHED
from fedptr.types import State

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class UnfinishedWork:
    """The unfinished work of a run. Worker processes on this machine may have copies."""

    run: Path  # the run's folder
    same: Header  # what must not have changed
    host: str = field(default_factory=socket.gethostname)

    @property
    def folder(self) -> Path:
        return self.run / UNFINISHED

    def header(self, name: str, task: Task) -> Header:
        computed = describe_computing(task) if isinstance(task, ModelTask) else {}
        return {**self.same, "work": name, "computed": json.dumps(computed)}

    def find(self, name: str, task: Task) -> State | None:
        """What was kept of this work, if it is sound and from this run."""
        with contextlib.suppress(DamagedFileError):
            state, header = read_tensors(self.folder / f"{name}{SUFFIX}")
            if header == self.header(name, task):
                return state
        return None

    def keep(self, name: str, task: Task, state: State) -> bool:
        """Replaces what was kept of this work; whether it could."""
        if self.host != socket.gethostname():  # a worker elsewhere: its folder of that name would be another
            return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_tensors(self.folder / f"{name}{SUFFIX}", state, self.header(name, task))
        except OSError as error:
            print_notice(f"unfinished work cannot be kept in {self.folder} ({error.strerror or error})")
            return False
        return True

    def clear(self) -> None:
        """Removes what a checkpoint has made useless."""
        if self.folder.is_dir() and not self.folder.is_symlink():
            shutil.rmtree(self.folder, ignore_errors=True)
