"""Differentiable siamese augmentation (DSA) with the constants of the dataset-condensation and MTT code.

One family is picked per call, with random parameters per image. The draw and its application are apart: a draw is
made once and applied as often as needed, so that a gradient can be taken through the very same augmentation again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Augmentation = Callable[[Tensor], Tensor]

FLIP = 0.5  # probability
SCALE = 1.2  # factors between 1/1.2 and 1.2 on either axis
ROTATE = 15.0  # degrees to either side
CROP = 0.125  # shift up to this part of the side
CUTOUT = 0.5  # side of the removed square
BRIGHTNESS = 1.0  # added: U(−½, ½)
SATURATION = 2.0  # factor about the channel mean: U(0, 2)
CONTRAST = 0.5  # factor about the image mean: U(0.5, 1.5)


def identity(x: Tensor) -> Tensor:
    return x


def draw_augmentation(n: int, shape: tuple[int, ...], generator: torch.Generator) -> Augmentation:
    """A random augmentation for n images of this shape."""
    family = FAMILIES[int(torch.randint(len(FAMILIES), (), generator=generator))]
    return family(n, shape[-2:], generator)


def draw_color(n: int, size: tuple[int, ...], generator: torch.Generator) -> Augmentation:
    brightness, saturation, contrast = torch.rand(3, n, 1, 1, 1, generator=generator).unbind()
    brightness, saturation, contrast = (brightness - 0.5) * BRIGHTNESS, saturation * SATURATION, contrast + CONTRAST

    def apply(x: Tensor) -> Tensor:
        x = x + brightness.to(x)
        grey = x.mean(1, keepdim=True)
        x = (x - grey) * saturation.to(x) + grey
        level: Tensor = x.mean((1, 2, 3), keepdim=True)
        return (x - level) * contrast.to(x) + level

    return apply


def draw_crop(n: int, size: tuple[int, ...], generator: torch.Generator) -> Augmentation:
    """A shift; what comes in from outside is zero."""
    reach = [int(side * CROP + 0.5) for side in size]
    down, right = (torch.randint(-r, r + 1, (n,), generator=generator) for r in reach)

    def apply(x: Tensor) -> Tensor:
        height, width = size
        rows = (torch.arange(height) + down[:, None]).clamp(-1, height) + 1  # 0 and height + 1 are the zero border
        columns = (torch.arange(width) + right[:, None]).clamp(-1, width) + 1
        image = torch.arange(n)[:, None, None]
        padded = F.pad(x, (1, 1, 1, 1)).permute(0, 2, 3, 1)
        return padded[image, rows[:, :, None].to(x.device), columns[:, None, :].to(x.device)].permute(0, 3, 1, 2)

    return apply


def draw_cutout(n: int, size: tuple[int, ...], generator: torch.Generator) -> Augmentation:
    """A zero square of half the side, centred anywhere, cut off at the border."""
    kept = []
    for side in size:
        hole = int(side * CUTOUT + 0.5)
        centre = torch.randint(0, side + (1 - hole % 2), (n, 1), generator=generator)
        offset = torch.arange(side) - centre + hole // 2
        kept.append((offset < 0) | (offset >= hole))
    mask = (kept[0][:, :, None] | kept[1][:, None, :])[:, None]
    return lambda x: x * mask.to(x)


def draw_flip(n: int, size: tuple[int, ...], generator: torch.Generator) -> Augmentation:
    flipped = (torch.rand(n, generator=generator) < FLIP).view(n, 1, 1, 1)
    return lambda x: torch.where(flipped.to(x.device), x.flip(3), x)


def draw_scale(n: int, size: tuple[int, ...], generator: torch.Generator) -> Augmentation:
    sx, sy = torch.rand(2, n, generator=generator) * (SCALE - 1 / SCALE) + 1 / SCALE
    zero = torch.zeros(n)
    return make_affine(torch.stack([sx, zero, zero, zero, sy, zero], 1))


def draw_rotation(n: int, size: tuple[int, ...], generator: torch.Generator) -> Augmentation:
    angle = (torch.rand(n, generator=generator) - 0.5) * 2 * ROTATE / 180 * math.pi
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros(n)
    return make_affine(torch.stack([cos, -sin, zero, sin, cos, zero], 1))


def make_affine(theta: Tensor) -> Augmentation:
    def apply(x: Tensor) -> Tensor:
        grid = F.affine_grid(theta.view(-1, 2, 3).to(x), list(x.shape), align_corners=True)
        return F.grid_sample(x, grid, align_corners=True)

    return apply


FAMILIES = (draw_color, draw_crop, draw_cutout, draw_flip, draw_scale, draw_rotation)
