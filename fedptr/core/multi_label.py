"""Classification in which a sample may have several classes, or none."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedptr.core.task import ModelTask
from fedptr.errors import UserError
from fedptr.types import Shape


class MultiLabel(ModelTask):
    """What is learned: binary cross-entropy of a model with a logit per class. Scores: loss, exact and f1.

    Labels are rows of zeros and ones. `exact` is the fraction of samples with every class right, `f1` the F1 score over
    all samples and classes. FedPTR needs to know how many `labels` there are: its auxiliary samples have one each.

    >>> task = MultiLabel(torch.nn.Linear(3, 2), (3,))
    >>> task.scores(torch.tensor([[4.0, -4.0]]), torch.tensor([[1.0, 1.0]]))
    {'exact': 0, 'hits': 1, 'misses': 1}
    """

    def __init__(
        self,
        model: nn.Module,
        shape: Shape | tuple[int, ...],
        device: str = "cpu",
        freeze: str = "",
        local: str = "",
        labels: int = 0,
    ) -> None:
        super().__init__(model, shape, device, freeze, local)
        self.labels = labels

    @property
    def groups(self) -> int:
        return self.labels

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, y.to(outputs), reduction="none").mean(1)

    def scores(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        predicted, true = outputs > 0, y > 0.5
        return {
            "exact": int((predicted == true).all(1).sum()),
            "hits": int((predicted & true).sum()),
            "misses": int((predicted != true).sum()),
        }

    def score_sums(self, sums: dict[str, float], n: int) -> dict[str, float]:
        hits, misses = sums["hits"], sums["misses"]
        f1 = 2 * hits / (2 * hits + misses) if hits + misses else 1.0
        return {"loss": sums["loss"] / n, "exact": sums["exact"] / n, "f1": f1}

    def check_labels(self, y: Tensor, whose: str) -> None:
        if y.dim() != 2 or bool(((y != 0) & (y != 1)).any()):
            raise UserError(f"{whose} has labels of shape {list(y.shape)}; MultiLabel takes a row of 0s and 1s each")

    def auxiliary_labels(self, ipc: int) -> Tensor:
        """`ipc` samples of each label, which have no other."""
        return torch.eye(self.labels).repeat_interleave(ipc, 0) if self.labels else super().auxiliary_labels(ipc)
