"""A small federated world that every method can be run in, in milliseconds."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedptr.core.federation import Rounds, Run, federate
from fedptr.core.local_training import Local
from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.methods import all_methods, make_method
from fedptr.methods.fedavg import FedAvg
from fedptr.models.networks import MLP, LinearModel
from fedptr.privacy.differential import Privacy

SHAPE, CLASSES = (1, 4, 4), 3
SIZES = (7, 5, 9, 12)  # with batches of 4: partial batches, and different numbers of steps
LOCAL = Local(lr=0.05, batch=4)
# Small matching, so that every method runs in milliseconds, and projection also where it is as poor as that.
QUICK = {"H": 2, "R": 3, "ipc": 2, "dsa": False, "mtt_max_loss": 1e9}
BRIEF = {**QUICK, "server_epochs": 2, "steps": 2, "L": 2}  # also for methods that send sets, or wait for L rounds


def quick(name: str, **settings: object) -> FedAvg:
    """A method by name with cheap matching, and early where it has to wait for a trajectory of L rounds."""
    known = all_methods()[name].__dataclass_fields__
    early = {**BRIEF, **settings}
    return make_method(name, **{key: value for key, value in early.items() if key in known or key in settings})


def part_for(name: str, part: float) -> float:
    """A participation, or 1 for a method that needs everyone."""
    return 1.0 if all_methods()[name].everyone else part


class World:
    """Four clients, each short of a class, and a task."""

    def __init__(
        self, model: object = None, dtype: torch.dtype = torch.float32, sizes: tuple[int, ...] = SIZES
    ) -> None:
        with Key(1).fixed("world"):
            self.task = Classification(model or MLP(SHAPE, CLASSES, width=6).to(dtype), SHAPE, CLASSES)
            centres = torch.randn(CLASSES, *SHAPE)
            self.clients = []
            for i, m in enumerate(sizes):
                y = (torch.randint(2, (m,)) + i) % CLASSES
                self.clients.append(Samples((centres[y] + torch.randn(m, *SHAPE)).to(dtype), y))
            y = torch.arange(30) % CLASSES
            self.test = Samples((centres[y] + torch.randn(30, *SHAPE)).to(dtype), y)
            self.linear = self.task if model else Classification(LinearModel(SHAPE, CLASSES).to(dtype), SHAPE, CLASSES)

    def task_for(self, method: FedAvg) -> Classification:
        """The task, with a linear model where the method needs one and no model was given."""
        return self.linear if method.needs_linear else self.task

    def runs(
        self,
        method: FedAvg,
        rounds: int = 6,
        local: Local = LOCAL,
        start: Run | None = None,
        privacy: Privacy | None = None,
        **how: object,
    ) -> list[Run]:
        plan = replace(Rounds(rounds=rounds), **how)
        return list(
            federate(method, self.task_for(method), self.clients, self.test, plan, local, start=start, privacy=privacy)
        )

    def weights(self, method: FedAvg, rounds: int = 6, local: Local = LOCAL, **how: object) -> list[torch.Tensor]:
        return [run.w for run in self.runs(method, rounds, local, **how)]
