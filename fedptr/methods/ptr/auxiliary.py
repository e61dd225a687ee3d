"""The auxiliary dataset while it is learned, and what is drawn at random on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedptr.methods.ptr.dsa import Augmentation, draw_augmentation, identity
from fedptr.types import Batch

BETA_FLOOR = 1e-6  # a negative step size would make the student climb


class Auxiliary(NamedTuple):
    """The auxiliary dataset D̃ and its step size, with the momentum of both optimisers."""

    X: Tensor
    y: Tensor
    beta: Tensor
    X_velocity: Tensor
    beta_velocity: Tensor
    gain: Tensor = torch.tensor(1.0)  # factor on the outer steps; stays 1 unless they are careful
    Y: Tensor | None = None  # soft labels: a number for every class
    Y_velocity: Tensor | None = None
    bases: Tensor | None = None  # what factorised images are made from; see `styles.py`
    bases_velocity: Tensor | None = None
    styles: Tensor | None = None
    styles_velocity: Tensor | None = None

    @property
    def labels(self) -> Tensor:
        return self.y if self.Y is None else self.Y


@dataclass(frozen=True)
class MatchingSettings:
    """How to match; the meaning of each is in `fedptr.methods.ptr.trajectory`."""

    H: int
    R: int
    lr_img: float
    lr_beta: float
    momentum: float
    batch: int  # images per student step; 0 = all
    dsa: bool
    stop: float = 0.0  # see `has_stalled`
    pace: bool = False  # whether β may be taken from the trajectory
    careful: bool = False  # whether outer steps grow while the loss falls, and are taken back when it rises
    matching: Literal["trajectory", "gradient"] = "trajectory"
    lr_label: float = 0.0
    starts: Literal["first", "segment"] = "first"
    lr_style: float = 0.0


class StudentStep(NamedTuple):
    """The random part of one student step: which images, and how they are augmented."""

    rows: Tensor | None
    augment: Augmentation
    room: Tensor | None = None  # see `Batch`

    def batch(self, X: Tensor, y: Tensor) -> Batch:
        if self.rows is not None:
            X, y = X[self.rows], y[self.rows]
        return Batch(self.augment(X), y, room=None if self.room is None else self.room[: len(y)])


def draw_steps(
    how: MatchingSettings, n: int, shape: tuple[int, ...], order: torch.Generator, noise: torch.Generator
) -> list[StudentStep]:
    """The random parts of R student steps; minibatches run through the whole set before it is shuffled again."""
    steps: list[StudentStep] = []
    chunks: list[Tensor] = []
    for _ in range(how.R):
        rows = None
        if how.batch and how.batch < n:
            chunks = chunks or list(torch.randperm(n, generator=order).split(how.batch))
            rows = chunks.pop(0)
        augment = draw_augmentation(n if rows is None else len(rows), shape, noise) if how.dsa else identity
        steps.append(StudentStep(rows, augment))
    return steps


def reset_momentum(aux: Auxiliary) -> Auxiliary:
    """Without the momentum of earlier outer steps."""
    moving = {name: part for name, part in aux._asdict().items() if name.endswith("_velocity") and part is not None}
    return aux._replace(**{name: torch.zeros_like(part) for name, part in moving.items()})


def squared_distance(a: Tensor, b: Tensor) -> float:
    """‖a − b‖²"""
    return float((a - b).square().sum())
