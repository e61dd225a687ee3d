"""Matching training trajectories (MTT): learn a tiny dataset whose training reproduces a stretch of the real one.

    X, y        auxiliary images and their fixed labels           β      the learnable step size of the student
    w_start     where the student starts, w^{t−m}                 w_end  where it should arrive, w^t
    H, R        outer steps on (X, β), inner steps of the student
    L           ‖ŵ_R − w_end‖² / ‖w_start − w_end‖²               a      the adjoint ∂L/∂ŵ_r

The gradient of L is exact and comes from an adjoint sweep instead of a graph over all R steps: the student's R
first-order steps are taken keeping only the ŵ_r, then, from the last step to the first, one vector–Jacobian product of
⟨∇ℓ(ŵ_r, X), a⟩ gives the part of X and carries the adjoint back. Memory hardly grows with R.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from fedptr.core.randomness import Key
from fedptr.core.task import Task
from fedptr.methods.ptr.dsa import Augmentation, draw_augmentation, identity
from fedptr.types import Batch

BETA_FLOOR = 1e-6  # a negative step size would make the student climb
KEPT = 16  # student steps whose models are all kept
ROOM = 400e6  # bytes for what else is kept of them
RISE, GROW, CUT = 1.1, 1.5, 1 / 3  # of careful steps: a loss this much higher is a step too far; longer, shorter steps
PACES = (1.0, 0.5, 0.25)  # see `fit_beta`


class Auxiliary(NamedTuple):
    """The auxiliary dataset D̃ and its step size, with the momentum of both optimisers."""

    X: Tensor
    y: Tensor
    beta: Tensor
    X_velocity: Tensor
    beta_velocity: Tensor
    gain: Tensor = torch.tensor(1.0)  # factor on the outer steps; stays 1 unless they are careful


class StudentStep(NamedTuple):
    """The random part of one student step: which images, and how they are augmented."""

    rows: Tensor | None
    augment: Augmentation
    room: Tensor | None = None  # see `Batch`

    def batch(self, X: Tensor, y: Tensor) -> Batch:
        if self.rows is not None:
            X, y = X[self.rows], y[self.rows]
        return Batch(self.augment(X), y, room=None if self.room is None else self.room[: len(y)])


@dataclass(frozen=True)
class MatchingSettings:
    """How to match; the meaning of each is in `fedptr.methods.ptr.projection`."""

    H: int
    R: int
    lr_img: float
    lr_beta: float
    momentum: float
    batch: int  # images per student step; 0 = all
    dsa: bool
    stop: float = 0.0  # see `has_stalled`
    pace: bool = False  # whether β may be taken from the trajectory, see `fit_beta`
    careful: bool = False  # whether outer steps grow while the loss falls, and are taken back when it rises


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
    L: float
    gX: Tensor  # noqa: N815
    gbeta: Tensor

    @property
    def sound(self) -> bool:
        return math.isfinite(self.L) and bool(self.gX.isfinite().all()) and bool(self.gbeta.isfinite())


def match_trajectory(
    task: Task, start: Tensor, end: Tensor, aux: Auxiliary, how: MatchingSettings, key: Key
) -> tuple[Auxiliary, MatchingReport]:
    """H outer steps on (X, β). Leaves its arguments alone; a call that goes wrong keeps the last sound D̃."""
    span2 = squared_distance(start, end)
    if span2 == 0 or not math.isfinite(span2):
        return aux, MatchingReport(
            math.nan, math.nan, math.sqrt(span2), largest_value(aux.X), True, False, False, 0, float(aux.gain)
        )
    order, noise, first = key("mtt-batch"), key("mtt-aug"), None
    after, stopped, clamped = math.nan, False, False
    losses: list[float] = []
    here: OuterPoint | None = None  # the last place from which it was sound to continue
    for _ in range(how.H):
        if first is None or not how.careful:  # who compares losses, compares them under the same random draw
            steps = draw_steps(how, len(aux.y), tuple(aux.X.shape[1:]), order, noise)
        if first is None:
            first, aux = steps, fit_beta(task, start, end, aux, steps) if how.pace else aux
        there = OuterPoint(aux, *meta_gradient(task, start, end, aux, steps))
        if there.sound and not (how.careful and here and there.L > RISE * here.L):
            here = there._replace(aux=scale_outer_steps(there.aux, GROW)) if how.careful else there
        elif how.careful and here:
            here = here._replace(aux=reset_momentum(scale_outer_steps(here.aux, CUT)))
        else:
            stopped = True
            break
        losses.append(there.L)
        aux = take_outer_step(here.aux, here.gX, here.gbeta, how)
        clamped = clamped or bool(aux.beta <= BETA_FLOOR)
        if how.stop and has_stalled(losses, how.stop):
            break
    if first and not stopped:
        after = squared_distance(train_student(task, start, aux, first), end) / span2
        stopped = not math.isfinite(after)
    if stopped or (how.careful and here and after > RISE * here.L):
        aux = here.aux if here else aux
        after = squared_distance(train_student(task, start, aux, first or []), end) / span2
    before = losses[0] if losses else math.nan
    span, gain = math.sqrt(span2), float(aux.gain)
    return aux, MatchingReport(before, after, span, largest_value(aux.X), False, stopped, clamped, len(losses), gain)


def scale_outer_steps(aux: Auxiliary, factor: float) -> Auxiliary:
    """With longer or shorter outer steps."""
    return aux._replace(gain=(aux.gain * factor).clamp(1e-6, 1e6))


def reset_momentum(aux: Auxiliary) -> Auxiliary:
    """Without the momentum of earlier outer steps."""
    return aux._replace(X_velocity=torch.zeros_like(aux.X), beta_velocity=torch.zeros_like(aux.beta))


def fit_beta(task: Task, start: Tensor, end: Tensor, aux: Auxiliary, steps: list[StudentStep]) -> Auxiliary:
    """With a β that suits the trajectory's length, unless the student gets nearer to its end with the one there is.

    R steps of it along the first gradient are as long as the trajectory, half or a quarter as long, whichever brings
    the student nearest to the end.
    """
    span = (end - start).norm()

    def missed(beta: Tensor) -> float:
        return float((train_student(task, start, aux._replace(beta=beta), steps) - end).norm())

    if float(aux.beta) > 0 and missed(aux.beta) < float(span):
        return aux
    g, _ = task.grad(start, steps[0].batch(aux.X, aux.y))
    whole = (span / (len(steps) * g.norm())).to(aux.beta)
    tried = {part: missed(part * whole) for part in PACES} if bool(whole.isfinite()) else {}
    sound = {part: miss for part, miss in tried.items() if math.isfinite(miss)}
    return aux._replace(beta=(min(sound, key=sound.__getitem__) * whole).clamp(min=BETA_FLOOR)) if sound else aux


def has_stalled(losses: list[float], part: float) -> bool:
    """Whether two outer steps in a row found no loss that is lower, by this part, than the best before them.

    >>> has_stalled([1.0, 0.9, 0.89, 0.9], 0.02), has_stalled([1.0, 0.9, 0.95, 0.8], 0.02)
    (True, False)
    """
    return len(losses) > 2 and min(losses[-2:]) > (1 - part) * min(losses[:-2])


def take_outer_step(aux: Auxiliary, gX: Tensor, gbeta: Tensor, how: MatchingSettings) -> Auxiliary:
    """One SGD step with momentum on the images and one on β, which stays positive."""
    vX = how.momentum * aux.X_velocity + gX
    vbeta = how.momentum * aux.beta_velocity + gbeta
    gain = float(aux.gain)
    beta = (aux.beta - gain * how.lr_beta * vbeta).clamp(min=BETA_FLOOR)
    step = gain * how.lr_img * vX
    if how.careful:  # images are normalised; moved by more than their size they may end where nothing has a gradient
        step = step / step.square().mean().sqrt().clamp(min=1)
    return Auxiliary(aux.X - step, aux.y, beta, vX, vbeta, aux.gain)


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


def student_path(task: Task, start: Tensor, aux: Auxiliary, steps: list[StudentStep]) -> Iterator[Tensor]:
    """The student's trajectory ŵ_0 … ŵ_R: plain gradient descent with step size β."""
    w = start
    yield w
    for step in steps:
        g, _ = task.grad(w, step.batch(aux.X, aux.y))
        w = w - aux.beta * g
        yield w


def train_student(task: Task, start: Tensor, aux: Auxiliary, steps: list[StudentStep]) -> Tensor:
    """ŵ_R"""
    return deque(student_path(task, start, aux, steps), maxlen=1)[0]


def stretch_length(R: int) -> int:
    """How many of R student steps are kept at a time for the way back."""
    return R if R <= KEPT else math.isqrt(R)


def room_for(size: int, steps: int) -> int:
    """How many of the steps kept at a time have a place, of this many bytes, for what their adjoint can use."""
    return min(steps, int(ROOM // size)) if size else 0


def student_path_backwards(
    task: Task, start: Tensor, aux: Auxiliary, steps: list[StudentStep]
) -> Iterator[tuple[Tensor, StudentStep | None]]:
    """The student's trajectory from its end ŵ_R, each ŵ_r with the step that leaves it.

    Of a long trajectory only every √R-th model is kept, and the stretch after it is computed again when its turn comes.
    """
    stride = stretch_length(len(steps))
    images = max(len(aux.y) if step.rows is None else len(step.rows) for step in steps)
    one = task.room(images)
    places = [task.room(images) for _ in range(room_for(0 if one is None else one.nbytes, stride))]
    stretches = [steps[r : r + stride] for r in range(0, len(steps), stride)]
    begins = [start]
    for stretch in stretches[:-1]:
        begins.append(train_student(task, begins[-1], aux, stretch))
    for n, (begin, plain) in enumerate(zip(reversed(begins), reversed(stretches), strict=True)):
        stretch = [step._replace(room=place) for step, place in zip_longest(plain, places[: len(plain)])]
        path = list(student_path(task, begin, aux, stretch))
        if n == 0:
            yield path[-1], None
        yield from zip(path[-2::-1], reversed(stretch), strict=True)


def meta_gradient(
    task: Task, start: Tensor, end: Tensor, aux: Auxiliary, steps: list[StudentStep]
) -> tuple[float, Tensor, Tensor]:
    """L and its exact gradient with respect to X and β, by the adjoint sweep."""
    path = student_path_backwards(task, start, aux, steps)
    arrived, _ = next(path)
    span2 = (start - end).square().sum()
    L = squared_distance(arrived, end) / float(span2)
    a = 2 * (arrived - end) / span2
    gX, gbeta = torch.zeros_like(aux.X), torch.zeros_like(aux.beta)
    for w, step in path:
        assert step is not None
        X = aux.X.detach().requires_grad_()
        batch = step.batch(X, aux.y)
        along, hx, hw = task.adjoint(w, batch, a, by_w=w is not start)  # nothing is asked of w_start
        (hX,) = torch.autograd.grad(batch.x, X, hx)  # back through the augmentation
        gX -= aux.beta * hX
        gbeta -= along
        a = a if hw is None else a - aux.beta * hw
    return L, gX, gbeta


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


def squared_distance(a: Tensor, b: Tensor) -> float:
    """‖a − b‖²"""
    return float((a - b).square().sum())


def largest_value(X: Tensor) -> float:
    return float(X.abs().max())
