"""A dataset seen by a frozen model: the inputs of its last linear layer in place of the images.

With them methods for linear models, as MOCHA, have more to work with than pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fedptr.core.predictor import Predictor
from fedptr.data.dataset import Array, Dataset
from fedptr.errors import UserError
from fedptr.messages import print_notice
from fedptr.runs.trained_model import load_model

CHUNK = 500  # images


def replace_by_features(dataset: Dataset, folder: str) -> Dataset:
    """The dataset with [n, F, 1, 1] features of the model of a finished run, normalised by their own moments."""
    model = load_model(folder)
    if dataset.vocabulary:
        raise UserError(f"data.features is for images and tables, and {dataset.name} has texts; leave it out")
    if model.shape != dataset.train_x.shape[1:]:
        there, here = ("×".join(map(str, shape)) for shape in (model.shape, dataset.train_x.shape[1:]))
        raise UserError(f"data.features: the model of {folder} takes {there} inputs, and {dataset.name} has {here}")
    train, test = (compute_features(model, x) for x in (dataset.train_x, dataset.test_x))
    mean = train.mean(axis=(0, 2, 3), dtype=np.float64)
    std = train.std(axis=(0, 2, 3), dtype=np.float64)
    std = np.where(std > 1e-6, std, 1.0)  # of a feature that never fires
    print_notice(f"{dataset.name}: {train.shape[1]} features of the model in {folder} instead of images")
    return replace(
        dataset,
        train_x=train,
        test_x=test,
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
        source=f"{dataset.source}, {train.shape[1]} features of a frozen model",
    )


@torch.no_grad()
def compute_features(model: Predictor, x: Array) -> Array:
    """The inputs of the linear layer that runs last, as [n, F, 1, 1]."""
    seen: list[Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        for layer in model.modules()
        if isinstance(layer, nn.Linear)
    ]

    def features() -> Iterator[Tensor]:
        for start in range(0, len(x), CHUNK):
            seen.clear()
            model(torch.from_numpy(np.ascontiguousarray(x[start : start + CHUNK])))
            if not seen:
                raise UserError("data.features needs a model with a last nn.Linear layer, and this one has none")
            yield seen[-1].flatten(1)

    try:
        return np.asarray(torch.cat(list(features())))[:, :, None, None].copy()
    finally:
        for hook in hooks:
            hook.remove()
