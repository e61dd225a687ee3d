"""Regression: a model that predicts numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedptr.core.task import ModelTask
from fedptr.errors import UserError
from fedptr.types import Shape

AUXILIARY = 10  # groups of FedPTR's auxiliary samples, as many as for ten classes


class Regression(ModelTask):
    """What is learned: the squared error of a model, as a mean over its outputs. Scores: loss (MSE), mae and r2.

    Labels have the shape of the outputs; for one output a number per sample is enough. FedPTR's auxiliary samples have
    labels spread like a standard normal variable, so scale your labels to mean 0 and deviation 1. With `label_std`, the
    deviation that they were divided by, mae is in their own units, and so is a further score mse; the loss stays as it
    is trained.

    >>> task = Regression(torch.nn.Linear(3, 1), (3,))
    >>> task.losses(torch.zeros(2, 1), torch.tensor([1.0, 2.0])).tolist()
    [1.0, 4.0]
    """

    def __init__(
        self,
        model: nn.Module,
        shape: Shape | tuple[int, ...],
        device: str = "cpu",
        freeze: str = "",
        local: str = "",
        label_std: float | None = None,
    ) -> None:
        super().__init__(model, shape, device, freeze, local)
        self.label_std = label_std

    @property
    def groups(self) -> int:
        return AUXILIARY

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - fit_labels(outputs, y)).square().flatten(1).mean(1)

    def scores(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        y = fit_labels(outputs, y).double().flatten(1)
        columns = {f"label {k}": float(total) for k, total in enumerate(y.sum(0))}
        errors = (outputs.double().flatten(1) - y).abs().mean(1)
        return {"mae": float(errors.sum()), "square": float(y.square().mean(1).sum()), **columns}

    def score_sums(self, sums: dict[str, float], n: int) -> dict[str, float]:
        """R² is 1 − MSE / variance, each output's about its own mean; 0 if the labels are constant."""
        means = [total / n for name, total in sums.items() if name.startswith("label ")]
        variance = sums["square"] / n - sum(mean**2 for mean in means) / len(means)
        loss, mae = sums["loss"] / n, sums["mae"] / n
        r2 = 1 - loss / variance if variance > 0 else 0.0
        if self.label_std is None:
            return {"loss": loss, "mae": mae, "r2": r2}
        return {"loss": loss, "mse": loss * self.label_std**2, "mae": mae * self.label_std, "r2": r2}

    def check_labels(self, y: Tensor, whose: str) -> None:
        if not y.is_floating_point():
            raise UserError(f"{whose} has whole numbers as labels; Regression takes floats: convert them with .float()")

    def auxiliary_labels(self, ipc: int) -> Tensor:
        """Quantiles of the standard normal distribution."""
        n = ipc * AUXILIARY
        quantiles: Tensor = torch.special.ndtri((torch.arange(n, dtype=torch.float64) + 0.5) / n)
        return quantiles.float()


def fit_labels(outputs: Tensor, y: Tensor) -> Tensor:
    """The labels in the shape of the outputs; never broadcast, which would compare each output with each label."""
    if y.shape == outputs.shape:
        return y
    if y.numel() == outputs.numel():
        return y.view(outputs.shape)
    raise UserError(
        f"the model's outputs have shape {list(outputs.shape)} and the labels {list(y.shape)}; make them the same"
    )
