"""From a dataset to the samples that clients train on."""

from __future__ import annotations

import numpy as np
import torch

from fedptr.core.samples import Samples
from fedptr.data.dataset import Dataset
from fedptr.data.targets import standardise


def to_samples(dataset: Dataset, device: str = "cpu") -> tuple[Samples, Samples]:
    """The training and the test set; images are not copied."""
    per_channel = (1, -1, 1, 1)
    mean = torch.tensor(dataset.mean, dtype=torch.float32).reshape(per_channel)
    std = torch.tensor(dataset.std, dtype=torch.float32).reshape(per_channel)

    def samples(x: np.ndarray, y: np.ndarray) -> Samples:
        if dataset.target == "number":
            y = standardise(y, dataset.label_mean, dataset.label_std)
        if dataset.vocabulary:  # token numbers stay as they are
            return Samples(torch.from_numpy(x), torch.from_numpy(y), device=device)
        return Samples(torch.from_numpy(x), torch.from_numpy(y), mean=mean, std=std, device=device)

    return samples(dataset.train_x, dataset.train_y), samples(dataset.test_x, dataset.test_y)
