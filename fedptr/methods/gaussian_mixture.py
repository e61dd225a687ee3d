"""The means of a Gaussian mixture with diagonal covariances, by expectation maximisation.

N, d    samples and their dimension        r    responsibilities, N × k        μ, σ², π    of the components
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 30
FLOOR = 1e-3  # of a variance, as a part of the mean variance of the samples


def mixture_means(x: Tensor, count: int, generator: torch.Generator, steps: int = STEPS) -> Tensor:
    """μ of up to `count` components for the rows of x; it starts from as many rows, drawn at random."""
    count = min(count, len(x))
    if count == len(x):
        return x.clone()
    data = x.double()
    means = data[torch.randperm(len(x), generator=generator)[:count]]
    overall = data.var(0, unbiased=False)
    floor = FLOOR * overall.mean().clamp(min=1e-12)
    variances, weights = (overall + floor).expand(count, -1), data.new_full((count,), 1 / count)
    for _ in range(steps):
        r = responsibilities(data, means, variances, weights)
        mass = r.sum(0)
        used = mass > 1e-9  # a component that no sample belongs to stays where it is
        share = r / mass.clamp(min=1e-9)
        means = torch.where(used[:, None], share.mT @ data, means)
        spread = share.mT @ data.square() - means.square()
        variances = torch.where(used[:, None], spread.clamp(min=0) + floor, variances)
        weights = mass / len(data)
    return means.to(x)


def responsibilities(x: Tensor, means: Tensor, variances: Tensor, weights: Tensor) -> Tensor:
    """How much of each sample belongs to each component; rows sum to 1."""
    precise = 1 / variances
    distances = x.square() @ precise.mT - 2 * x @ (means * precise).mT + (means.square() * precise).sum(1)
    logs = weights.clamp(min=1e-300).log() - 0.5 * (distances + variances.log().sum(1))
    return logs.softmax(1)
