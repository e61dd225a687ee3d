"""A run: the complete state of a federation between two rounds, and the model in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedptr.core.client_states import ClientStates
from fedptr.core.early_stopping import NO_SCORE, BestScore
from fedptr.core.predictor import WEIGHTS, ModelCard, number_classes, write_weights
from fedptr.core.task import Classification, ModelTask, Task
from fedptr.errors import UserError
from fedptr.types import State


@dataclass(frozen=True)
class Run:
    """The complete state of a federation after `round` rounds; training can resume from it.

    It never changes while it is held, wherever its clients' states are kept and whatever later rounds do. `server` and
    `clients` hold what the method keeps there, by name; `record` holds the last round's numbers, a line of
    `rounds.jsonl`: `test_accuracy` (a fraction), `test_loss`, the cohort, bytes and seconds. All runs that `federate`
    yields are `evaluated`; it resumes from one that is not by evaluating it. `best` is what early stopping knows of the
    rounds so far.
    """

    round: int
    server: State
    clients: ClientStates
    record: dict[str, Any] = field(default_factory=dict)
    task: Task | None = field(default=None, compare=False, repr=False)
    evaluated: bool = True
    best: BestScore = NO_SCORE

    def __post_init__(self) -> None:
        if not isinstance(self.clients, ClientStates):  # a plain mapping is accepted too
            object.__setattr__(self, "clients", ClientStates(self.clients))

    @property
    def w(self) -> Tensor:
        """The global model as one vector."""
        return self.server["x"]

    @property
    def model(self) -> nn.Module:
        """The global model as a module of its own, ready to predict; the module that was given stays as it is."""
        if not isinstance(self.task, ModelTask):
            raise UserError("this run has no torch module: it is from a checkpoint, or its task has none; use run.w")
        return self.task.to_module(self.w, self.server.get("buffers"))

    def save(
        self,
        folder: str | Path,
        classes: Sequence[str] | None = None,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        factory: str = "",
    ) -> None:
        """Writes weights.safetensors and model.json, from which `fedptr.load_model` makes the model again.

        `mean` and `std` (per channel or feature) are those by which you normalised the inputs, so that the loaded model
        takes raw ones; without them it takes what it was trained on. `factory` is "module:function", which makes the
        network from (shape, classes); without it `load_model` must be given a network.
        """
        model, task, out = self.model, self.task, Path(folder)
        if not isinstance(task, Classification):
            raise UserError("only a Classification is saved with its classes; save run.model.state_dict() instead")
        out.mkdir(parents=True, exist_ok=True)
        write_weights(out / WEIGHTS, model.state_dict())
        made_by = {"rounds": self.round}
        names = number_classes(task.classes, classes)
        network = {"name": factory} if factory else None
        ModelCard(task.shape, names, tuple(mean), tuple(std), network=network, made_by=made_by).save(out)
