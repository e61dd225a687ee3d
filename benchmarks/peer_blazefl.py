"""FedAvg rounds in BlazeFL, with a plain training loop as its client. Argument: how two clients train at once.

`threads` or `processes`, BlazeFL's two ways; packages between processes go through shared memory. Needs Python 3.12.
"""

from __future__ import annotations

import random
import sys
import threading
from typing import Any, NamedTuple

import torch
import torch.multiprocessing as mp
from blazefl.core import (
    IPCMode,
    ProcessPoolClientTrainer,
    SHMHandle,
    ThreadPoolClientTrainer,
    deserialize_model,
    serialize_model,
)
from peer_process import RoundGate, client_samples, load_work
from plain_references import train_on_tensors
from torch import Tensor
from workload import make_network_of

AT_ONCE = 2


class Package:
    """What a client sends: its parameters, or the handle of what is in shared memory, and its number of samples."""

    def __init__(self, parameters: Tensor | SHMHandle, size: int) -> None:
        self.parameters, self.size = parameters, size


class Down(NamedTuple):
    parameters: Tensor


def train(i: int, parameters: Tensor) -> Package:
    work = load_work()
    model = make_network_of(work)
    deserialize_model(model, parameters)
    x, y = client_samples(i)
    return Package(serialize_model(train_on_tensors(model, x, y, **work["local"])), len(y))


class Threads(ThreadPoolClientTrainer[Package, Down]):
    def __init__(self) -> None:
        self.num_parallels, self.device, self.device_count = AT_ONCE, "cpu", 0
        self.cache: list[Package] = []
        self.stop_event = threading.Event()

    def worker(self, cid: int, device: str, payload: Down, stop_event: threading.Event) -> Package:
        return train(cid, payload.parameters)

    def uplink_package(self) -> list[Package]:
        packages, self.cache = self.cache, []
        return packages


class Processes(ProcessPoolClientTrainer[Package, Down, int]):
    def __init__(self) -> None:
        self.num_parallels, self.device, self.device_count = AT_ONCE, "cpu", 0
        self.cache: list[Package] = []
        self.ipc_mode = IPCMode.SHARED_MEMORY
        self.stop_event = mp.Manager().Event()
        self.room = serialize_model(make_network_of(load_work()))

    def get_client_config(self, cid: int) -> int:
        return cid

    def prepare_uplink_package_buffer(self) -> Package:
        return Package(self.room.clone(), 0)

    @staticmethod
    def worker(config: Any, payload: Any, device: str, stop_event: Any, *, shm_buffer: Any = None) -> Package:
        done = train(config, payload.parameters)
        shm_buffer.parameters.copy_(done.parameters)
        return Package(SHMHandle(), done.size)

    def uplink_package(self) -> list[Package]:
        packages, self.cache = self.cache, []
        return packages


def main() -> None:
    torch.set_num_threads(1)  # the clients share the cores
    work, turns = load_work(), RoundGate()
    model = make_network_of(work)
    model.load_state_dict(work["state"])
    trainer: Any = Threads() if sys.argv[1] == "threads" else Processes()
    draw = random.Random(0)
    turns.wait(model.state_dict())
    for _ in range(work["rounds"]):
        cohort = sorted(draw.sample(range(work["clients"]), work["cohort"]))
        trainer.local_process(Down(serialize_model(model)), cohort)
        packages = trainer.uplink_package()
        total = sum(package.size for package in packages)
        deserialize_model(model, torch.stack([p.parameters * (p.size / total) for p in packages]).sum(0))
        turns.wait(model.state_dict())


if __name__ == "__main__":
    main()
