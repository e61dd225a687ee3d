"""Exact coordinate steps on the dual variables of linear models, one sample after another, all classes at once.

    y    targets ±1, a row per sample and a column per class          z    xᵀw for each, before the first step
    a    dual variables of the samples                                G    scaled inner products of the samples

A step changes a row of a by Δa, and by that all z of later samples k by G_kj·Δa. Each function gives the new a, and the
sum of the losses that each sample has when its turn comes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

TINY = 1e-100  # in place of the norm of an image that is all zeros, which no step can change


def squared_steps(y: Tensor, z: Tensor, a: Tensor, G: Tensor) -> tuple[Tensor, float]:
    """½(y − z)²: Δa_j = (y − z − a)/(1 + G_jj). All steps together are a triangular system."""
    lower = torch.tril(G)
    change = torch.linalg.solve_triangular(lower + torch.eye(len(G)).to(G), y - z - a, upper=False)
    met = z + torch.tril(G, -1) @ change
    return a + change, float(0.5 * (y - met).square().sum())


def hinge_steps(y: Tensor, z: Tensor, a: Tensor, G: Tensor) -> tuple[Tensor, float]:
    """max(0, 1 − yz): a·y ← clip(a·y + (1 − yz)/G_jj, 0, 1)."""
    signs, margins, duals, gram = (part.cpu().numpy() for part in (y, y * z, y * a, G))
    margins, new, loss = margins.copy(), duals.copy(), 0.0
    norms = np.maximum(gram.diagonal(), TINY)
    for j in range(len(new)):  # numpy: a step on so few numbers is all overhead, and torch has more of it
        slack = 1 - margins[j]
        loss += float(np.maximum(slack, 0).sum())
        new[j] = np.clip(duals[j] + slack / norms[j], 0, 1)
        change = (new[j] - duals[j]) * signs[j]
        margins[j + 1 :] += gram[j + 1 :, j, None] * (signs[j + 1 :] * change)
    return torch.from_numpy(new * signs).to(a.device), loss
