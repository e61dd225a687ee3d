"""What a model says about an example: its loss, and LiRA's statistic φ.

    z   logits, in float64          y   labels          p   the softmax probability of the right class

>>> z, y = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])
>>> p = z.softmax(1)[0, 0]
>>> torch.allclose(compute_phi(z, y), (p / (1 - p)).log().double())
True
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from fedptr.core.samples import Samples
from fedptr.core.task import Classification

CHUNK = 100  # images at a time, so that layers' outputs stay in the cache


@torch.no_grad()
def compute_logits(
    task: Classification, w: Tensor, data: Samples, buffers: Tensor | None, flip: bool = False
) -> Tensor:
    """z of every example, in evaluation mode and without augmentation; `flip` mirrors the images."""
    task.model.eval()
    state = {**task.parameters(w), **task.unpack_buffers(buffers)}
    parts = [functional_call(task.model, state, (x.flip(-1) if flip else x,)) for x, _ in data.chunks(CHUNK)]
    return torch.cat(parts).double().cpu()


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    """−log p of every example."""
    return F.cross_entropy(z.double(), y, reduction="none")


def compute_phi(z: Tensor, y: Tensor) -> Tensor:
    """φ = z_y − logsumexp over the others = log p/(1−p), which stays finite where p rounds to 0 or 1."""
    z = z.double()
    own = F.one_hot(y, z.shape[1]).bool()
    return z[own] - z.masked_fill(own, -torch.inf).logsumexp(1)
