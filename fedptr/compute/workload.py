"""What a run asks of the machine: the parts of a plan that decide how much is computed, and on what."""

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
    device: str = setting("auto", "auto, cpu, cuda, cuda:1, mps …; auto = a GPU where there is one", affects="cost")
    threads: int = setting(0, "CPU threads; 0 = every core this process may use", affects="cost", ge=0, le=1024)
    compile: Literal["auto", "on", "off"] = setting(
        "auto", "compile the model; auto = for long runs (minutes)", affects="cost"
    )
    client_memory: int | Literal["auto"] = setting(
        "auto",
        "MB of clients' states in memory, the rest is on disk; auto = 32, or less if little is free",
        affects="nothing",
        ge=0,
    )
    memory_check: bool = setting(True, "refuse a run that is estimated not to fit into memory", affects="nothing")
    engine: Literal["local", "ray"] = setting(
        "local", "let clients visit in this process, or in workers of Ray", affects="nothing"
    )
    ray_address: str = setting(
        "", "a Ray cluster, as host:port or auto; empty = a Ray of its own on this machine", affects="nothing"
    )
    workers: int = setting(
        0, "Ray: worker processes; 0 = as many as there are cores for", affects="nothing", ge=0, le=100_000
    )


class HasClients(Protocol):
    @property
    def clients(self) -> int: ...


class Workload(Protocol):
    """A `fedptr.runs.plan.Plan`, or as much of one as is needed here."""

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
