"""What a method's function may read: the place where it runs. It has no other inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedptr.core.local_training import Local
from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import State, Task


@dataclass(frozen=True)
class Site:
    """A client in round t, or the server (which has no data)."""

    task: Task
    local: Local  # its `lr` is this round's, after decay
    key: Key
    round: int  # t, counted from 0
    clients: int  # N, the clients that have data
    data: Samples | None = None
    size: int = 0  # m_i, also where the data is elsewhere
    part: float = 1.0  # of its local steps a straggler has time for
    share: float = 1.0  # ω_i = N·m_i / M: the client's size relative to the average

    @property
    def samples(self) -> Samples:
        assert self.data is not None, "there is no data at this site"
        return self.data


class Reply(NamedTuple):
    """What one client sent back, with the number of its samples m_i and of the local steps it took."""

    client: int
    size: int
    state: State
    steps: int = 0
