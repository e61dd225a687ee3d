"""Factorised images: a few base images, each shown in several learned styles.

    B   base images                 S_j   a style: a 3×3 convolution κ_j over channels and a shift b_j for each of them
    X   the images that are trained on, of every base in every style:  x = B_i + κ_j ∗ B_i + b_j

B and S are learned in place of X. Whatever matching lowers gives its derivative by X, and the chain rule gives those by
B and S; nothing else knows of them. With S_j = 0 a style is the identity. The first begins there and the others at
noise, since styles that are equal have equal gradients and would stay so.

The idea is HaBa's (Liu, Wang, Yang, Ye, Wang, 2022, arXiv:2210.16774). There a style is a small network, each step of
the student draws one style for all its bases, and a further loss keeps styles apart. Here a style is one convolution,
every step sees all of them, and noise is all that keeps them apart.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 3  # of a convolution
NOISE = 0.1  # of the numbers that a style begins with; with three channels it changes images by half their size


def draw_styles(count: int, channels: int, generator: torch.Generator, like: Tensor) -> Tensor:
    """As [count, channels, numbers]: for each channel that comes out its part of κ, and last its b."""
    styles = NOISE * torch.randn(count, channels, channels * SIDE**2 + 1, generator=generator)
    styles[0] = 0
    return styles.to(like)


def show_bases(bases: Tensor, styles: Tensor) -> Tensor:
    """Every base in every style, base by base."""
    count, channels = styles.shape[:2]
    kernels = styles[..., :-1].unflatten(-1, (channels, SIDE, SIDE)).flatten(0, 1)
    changes = F.conv2d(bases, kernels, styles[..., -1].flatten(), padding=SIDE // 2).unflatten(1, (count, channels))
    shown: Tensor = (bases[:, None] + changes).flatten(0, 1)
    return shown


def derivatives_by_factors(bases: Tensor, styles: Tensor, gX: Tensor) -> tuple[Tensor, Tensor]:
    """Those of a loss by B and by S, from its derivative by X."""
    B, S = (part.detach().requires_grad_() for part in (bases, styles))
    gB, gS = torch.autograd.grad(show_bases(B, S), (B, S), gX)
    return gB, gS
