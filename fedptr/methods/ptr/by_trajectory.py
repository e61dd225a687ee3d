"""Matching training trajectories (MTT): a student that trains on the set should arrive where the global model did.

    X, y        auxiliary images and their fixed labels           β      the learnable step size of the student
    w_start     where the student starts, w^{t−m}                 w_end  where it should arrive, w^t
    R           steps of the student                              a      the adjoint ∂L/∂ŵ_r
    L           ‖ŵ_R − w_end‖² / ‖w_start − w_end‖²

The gradient of L is exact and comes from an adjoint sweep instead of a graph over all R steps: the student's R
first-order steps are taken keeping only the ŵ_r, then, from the last step to the first, one vector–Jacobian product of
⟨∇ℓ(ŵ_r, X), a⟩ gives the part of X and carries the adjoint back. Memory hardly grows with R.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from fedptr.core.task import Task
from fedptr.methods.ptr.auxiliary import (
    BETA_FLOOR,
    Auxiliary,
    MatchingSettings,
    StudentStep,
    draw_steps,
    squared_distance,
)
from fedptr.methods.ptr.objective import Draw, Draws, Gradient, adjoint_of_set, draw_start

KEPT = 16  # student steps whose models are all kept
ROOM = 400e6  # bytes for what else is kept of them
PACES = (1.0, 0.5, 0.25)  # see `fit_beta`


class Walk(NamedTuple):
    """The student on its way: ŵ_0 … ŵ_R, and the steps, with what their gradients left for the adjoint."""

    path: list[Tensor]
    steps: list[StudentStep]


class TrajectoryMatching:
    """The `Objective` of `matching = "trajectory"`."""

    def __init__(self, task: Task, start: Tensor, end: Tensor, how: MatchingSettings) -> None:
        self.task, self.w_start, self.w_end, self.how = task, start, end, how
        self.walk: Walk | None = None  # of the student who tried the first β

    def draw(self, aux: Auxiliary, draws: Draws) -> Draw:
        """A student that starts after a part of the way takes as many steps fewer."""
        passed = draw_start(self.how, draws)
        steps = draw_steps(self.how, len(aux.y), tuple(aux.X.shape[1:]), draws.order, draws.noise)
        return Draw(steps[passed:], passed / self.how.R)

    def begin(self, aux: Auxiliary, draw: Draw) -> Auxiliary:
        if self.how.pace:
            start = draw.start(self.w_start, self.w_end)
            aux, self.walk = fit_beta(self.task, start, self.w_end, aux, draw.steps)
        return aux

    def gradient(self, aux: Auxiliary, draw: Draw) -> Gradient:
        walk, self.walk = self.walk, None
        return meta_gradient(self.task, draw.start(self.w_start, self.w_end), self.w_end, aux, draw.steps, walk)

    def end(self, aux: Auxiliary, draw: Draw) -> tuple[Auxiliary, float]:
        start = draw.start(self.w_start, self.w_end)
        arrived = train_student(self.task, start, aux, draw.steps)
        return aux, squared_distance(arrived, self.w_end) / squared_distance(start, self.w_end)


def fit_beta(
    task: Task, start: Tensor, end: Tensor, aux: Auxiliary, steps: list[StudentStep]
) -> tuple[Auxiliary, Walk | None]:
    """With a β that suits the trajectory's length, unless the student gets nearer to its end with the one there is.

    In that case its walk comes with it, if it is short enough to be kept. A new β is such that R steps of it along the
    first gradient are as long as the trajectory, half or a quarter as long, whichever brings the student nearest to the
    end.
    """
    span = (end - start).norm()

    def missed(beta: Tensor) -> float:
        return float((train_student(task, start, aux._replace(beta=beta), steps) - end).norm())

    if float(aux.beta) > 0:
        if stretch_length(len(steps)) == len(steps):
            walk = walk_stretch(task, start, aux, steps, make_rooms(task, aux, steps))
            if float((walk.path[-1] - end).norm()) < float(span):
                return aux, walk
        elif missed(aux.beta) < float(span):
            return aux, None
    g, _ = task.grad(start, steps[0].batch(aux.X, aux.labels))
    whole = (span / (len(steps) * g.norm())).to(aux.beta)
    tried = {part: missed(part * whole) for part in PACES} if bool(whole.isfinite()) else {}
    sound = {part: miss for part, miss in tried.items() if math.isfinite(miss)}
    if sound:
        aux = aux._replace(beta=(min(sound, key=sound.__getitem__) * whole).clamp(min=BETA_FLOOR))
    return aux, None


def student_path(task: Task, start: Tensor, aux: Auxiliary, steps: list[StudentStep]) -> Iterator[Tensor]:
    """The student's trajectory ŵ_0 … ŵ_R: plain gradient descent with step size β."""
    w = start
    yield w
    for step in steps:
        g, _ = task.grad(w, step.batch(aux.X, aux.labels))
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


def make_rooms(task: Task, aux: Auxiliary, steps: list[StudentStep]) -> list[Tensor | None]:
    """Places for what the adjoint of the steps that are kept at a time can use."""
    images = max(len(aux.y) if step.rows is None else len(step.rows) for step in steps)
    one = task.room(images)
    more = room_for(0 if one is None else one.nbytes, stretch_length(len(steps)))
    return [task.room(images) for _ in range(more)]


def walk_stretch(
    task: Task, begin: Tensor, aux: Auxiliary, steps: list[StudentStep], places: list[Tensor | None]
) -> Walk:
    """A part of the student's trajectory; as many of its steps as there are places leave something for the adjoint."""
    kept = [step._replace(room=place) for step, place in zip_longest(steps, places[: len(steps)])]
    return Walk(list(student_path(task, begin, aux, kept)), kept)


def student_path_backwards(
    task: Task, start: Tensor, aux: Auxiliary, steps: list[StudentStep], walk: Walk | None = None
) -> Iterator[tuple[Tensor, StudentStep | None]]:
    """The student's trajectory from its end ŵ_R, each ŵ_r with the step that leaves it.

    Of a long trajectory only every √R-th model is kept, and the stretch after it is computed again when its turn comes.
    """
    stride, places = stretch_length(len(steps)), [] if walk else make_rooms(task, aux, steps)
    stretches = [steps[r : r + stride] for r in range(0, len(steps), stride)]
    begins = [start]
    for stretch in stretches[:-1]:
        begins.append(train_student(task, begins[-1], aux, stretch))
    for n, (begin, plain) in enumerate(zip(reversed(begins), reversed(stretches), strict=True)):
        path, stretch = walk or walk_stretch(task, begin, aux, plain, places)
        if n == 0:
            yield path[-1], None
        yield from zip(path[-2::-1], reversed(stretch), strict=True)


def meta_gradient(
    task: Task, start: Tensor, end: Tensor, aux: Auxiliary, steps: list[StudentStep], walk: Walk | None = None
) -> Gradient:
    """L and its exact gradient by X, β and soft labels, by the adjoint sweep; `walk`: the student's, if known."""
    path = student_path_backwards(task, start, aux, steps, walk)
    arrived, _ = next(path)
    span2 = (start - end).square().sum()
    L = squared_distance(arrived, end) / float(span2)
    a = 2 * (arrived - end) / span2
    gX, gbeta = torch.zeros_like(aux.X), torch.zeros_like(aux.beta)
    gY = None if aux.Y is None else torch.zeros_like(aux.Y)
    for w, step in path:
        assert step is not None
        along, hX, hw, hY = adjoint_of_set(task, w, step, aux, a, by_w=w is not start)  # nothing is asked of w_start
        gX -= aux.beta * hX
        gbeta -= along
        gY = gY if gY is None or hY is None else gY - aux.beta * hY
        a = a if hw is None else a - aux.beta * hw
    return Gradient(L, gX, gbeta, gY)
