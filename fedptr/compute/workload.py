"""What a run demands of the machine: the parts of a plan that decide how much is computed, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from fedptr.core.federation import Rounds
from fedptr.core.local_training import Local
from fedptr.core.method import Method
from fedptr.models.networks import ModelPlan
from fedptr.settings import setting


@dataclass(frozen=True)
class MachinePlan:
    device: str = setting(
        "auto", "auto, cpu, cuda, cuda:1, mps …; auto = a GPU if there is one", affects="cost", example="cpu"
    )
    threads: int = setting(
        0, "CPU threads; 0 = every core this process may use", affects="cost", example=4, ge=0, le=1024
    )
    clients_at_once: int | Literal["auto"] = setting(
        "auto",
        "clients that train at the same time, in threads; auto = one for each of the threads where that is faster",
        affects="cost",
        example=1,
        ge=1,
        le=1024,
    )
    compile: Literal["auto", "on", "off"] = setting(
        "auto", "compile the model; auto = where it pays, in runs of minutes", affects="cost"
    )
    client_memory: int | Literal["auto"] = setting(
        "auto",
        "MB of clients' states kept in memory, the rest on disk; auto = 32, or less if little is free",
        affects="nothing",
        example=256,
        ge=0,
    )
    memory_check: bool = setting(True, "refuse a run whose estimated memory does not fit", affects="nothing")
    engine: Literal["local", "ray"] = setting(
        "local", "run clients in this process, or in Ray workers", affects="nothing"
    )
    ray_address: str = setting(
        "", "a Ray cluster, as host:port or auto; empty = start Ray on this machine", affects="nothing", example="auto"
    )
    workers: int = setting(
        0, "Ray: worker processes; 0 = as many as the cores allow", affects="nothing", example=4, ge=0, le=100_000
    )


class HasClients(Protocol):
    @property
    def clients(self) -> int: ...


class Workload(Protocol):
    """The parts of a `fedptr.runs.plan.Plan` that this package needs."""

    @property
    def run(self) -> Rounds: ...
    @property
    def local(self) -> Local: ...
    @property
    def method(self) -> Method: ...
    @property
    def model(self) -> ModelPlan: ...
    @property
    def machine(self) -> MachinePlan: ...
    @property
    def split(self) -> HasClients: ...
