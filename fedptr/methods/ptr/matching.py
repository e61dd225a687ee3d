"""Matching: learn a tiny dataset that mimics a stretch of the global model's trajectory.

    X, y        auxiliary images and their fixed labels           β      the step size that goes with them
    H           outer steps on (X, β)                             L      the loss that they lower

`by_trajectory.py` and `by_gradient.py` are two ways to say how well a set mimics a trajectory. The outer steps here are
the same for both: SGD with momentum, or careful steps of their own length.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fedptr.core.randomness import Key
from fedptr.core.task import Task
from fedptr.methods.ptr.auxiliary import (
    BETA_FLOOR,
    Auxiliary,
    MatchingSettings,
    reset_momentum,
    squared_distance,
)
from fedptr.methods.ptr.by_gradient import GradientMatching
from fedptr.methods.ptr.by_trajectory import TrajectoryMatching
from fedptr.methods.ptr.dsa import draw_augmentation, identity
from fedptr.methods.ptr.objective import Draws, Gradient, Objective
from fedptr.methods.ptr.styles import NOISE, derivatives_by_factors, show_bases
from fedptr.types import Batch

RISE, GROW, CUT = 1.1, 1.5, 1 / 3  # of careful steps: a loss this much higher is a step too far; longer, shorter steps
WAYS: dict[str, type[GradientMatching] | type[TrajectoryMatching]] = {
    "trajectory": TrajectoryMatching,
    "gradient": GradientMatching,
}


class MatchingReport(NamedTuple):
    """What one call of `match_trajectory` did."""

    before: float  # L before the first outer step
    after: float  # L after the last one, under the same random draw as `before`
    span: float  # ‖w_end − w_start‖
    peak: float  # max |X|
    skipped: bool  # there was no trajectory to match
    stopped: bool  # L or its gradient was not finite; the last finite X and β were kept
    clamped: bool  # β hit its floor
    steps: int  # outer steps taken, up to H
    gain: float  # see `Auxiliary`


class OuterPoint(NamedTuple):
    """Where an outer step begins: D̃, with its loss and gradient."""

    aux: Auxiliary
    found: Gradient


def match_trajectory(
    task: Task, start: Tensor, end: Tensor, aux: Auxiliary, how: MatchingSettings, key: Key
) -> tuple[Auxiliary, MatchingReport]:
    """H outer steps on (X, β). Leaves its arguments alone; a call that goes wrong keeps the last sound D̃."""
    span2 = squared_distance(start, end)
    if span2 == 0 or not math.isfinite(span2):
        return aux, MatchingReport(
            math.nan, math.nan, math.sqrt(span2), largest_value(aux.X), True, False, False, 0, float(aux.gain)
        )
    aim: Objective = WAYS[how.matching](task, start, end, how)
    draws, first = Draws(key), None
    after, stopped, clamped = math.nan, False, False
    losses: list[float] = []
    here: OuterPoint | None = None  # the last place from which it was sound to continue
    for _ in range(how.H):
        if first is None or not how.careful:  # who compares losses, compares them under the same random draw
            draw = aim.draw(aux, draws)
        if first is None:
            first, aux = draw, aim.begin(aux, draw)
        there = OuterPoint(aux, aim.gradient(aux, draw))
        if there.found.sound and not (how.careful and here and there.found.L > RISE * here.found.L):
            here = there._replace(aux=scale_outer_steps(there.aux, GROW)) if how.careful else there
        elif how.careful and here:
            here = here._replace(aux=reset_momentum(scale_outer_steps(here.aux, CUT)))
        else:
            stopped = True
            break
        losses.append(there.found.L)
        aux = take_outer_step(*here, how)
        clamped = clamped or bool(aux.beta <= BETA_FLOOR)
        if how.stop and has_stalled(losses, how.stop):
            break
    if first and not stopped:
        left, after = aim.end(aux, first)
        stopped = not math.isfinite(after)
    if first and (stopped or (how.careful and here and after > RISE * here.found.L)):
        left, after = aim.end(here.aux if here else aux, first)
    aux = left if first else aux
    before = losses[0] if losses else math.nan
    span, gain = math.sqrt(span2), float(aux.gain)
    return aux, MatchingReport(before, after, span, largest_value(aux.X), False, stopped, clamped, len(losses), gain)


def scale_outer_steps(aux: Auxiliary, factor: float) -> Auxiliary:
    """With longer or shorter outer steps."""
    return aux._replace(gain=(aux.gain * factor).clamp(1e-6, 1e6))


def has_stalled(losses: list[float], part: float) -> bool:
    """Whether two outer steps in a row found no loss that is lower, by this part, than the best before them.

    >>> has_stalled([1.0, 0.9, 0.89, 0.9], 0.02), has_stalled([1.0, 0.9, 0.95, 0.8], 0.02)
    (True, False)
    """
    return len(losses) > 2 and min(losses[-2:]) > (1 - part) * min(losses[:-2])


def take_outer_step(aux: Auxiliary, g: Gradient, how: MatchingSettings) -> Auxiliary:
    """One SGD step with momentum on the images, one on soft labels, and one on β, which stays positive."""
    vbeta = how.momentum * aux.beta_velocity + g.beta
    gain = float(aux.gain)
    beta = (aux.beta - gain * how.lr_beta * vbeta).clamp(min=BETA_FLOOR)
    aux = move_images(aux, g.X, how)._replace(beta=beta, beta_velocity=vbeta)
    if aux.Y is None or aux.Y_velocity is None or g.Y is None:
        return aux
    vY = how.momentum * aux.Y_velocity + g.Y
    return aux._replace(Y=aux.Y - gain * how.lr_label * vY, Y_velocity=vY)


def move_images(aux: Auxiliary, gX: Tensor, how: MatchingSettings) -> Auxiliary:
    """The step on the images, or on what they are made from."""
    if aux.bases is None or aux.bases_velocity is None or aux.styles is None or aux.styles_velocity is None:
        vX = how.momentum * aux.X_velocity + gX
        return aux._replace(X=aux.X - limit_step(float(aux.gain) * how.lr_img * vX, 1.0, how), X_velocity=vX)
    gB, gS = derivatives_by_factors(aux.bases, aux.styles, gX)
    vB, vS = how.momentum * aux.bases_velocity + gB, how.momentum * aux.styles_velocity + gS
    bases = aux.bases - limit_step(float(aux.gain) * how.lr_img * vB, 1.0, how)
    styles = aux.styles - limit_step(float(aux.gain) * how.lr_style * vS, NOISE, how)
    factors = {"bases": bases, "bases_velocity": vB, "styles": styles, "styles_velocity": vS}
    return aux._replace(X=show_bases(bases, styles), **factors)


def limit_step(step: Tensor, size: float, how: MatchingSettings) -> Tensor:
    """Careful steps are no longer than what they move: images moved further may end where nothing has a gradient."""
    return step / (step.square().mean().sqrt() / size).clamp(min=1) if how.careful else step


def project_model(
    task: Task, x: Tensor, X: Tensor, y: Tensor, K: int, lr: float, momentum: float, dsa: bool, key: Key
) -> Tensor:
    """w̃: K steps of gradient descent from x on the whole auxiliary set."""
    w, velocity, noise = x, torch.zeros_like(x), key("projection-aug")
    for _ in range(K):
        augment = draw_augmentation(len(y), tuple(X.shape[1:]), noise) if dsa else identity
        g, _ = task.grad(w, Batch(augment(X), y))
        velocity = momentum * velocity + g
        w = w - lr * velocity
    return w


def largest_value(X: Tensor) -> float:
    return float(X.abs().max())
