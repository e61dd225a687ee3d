"""Gradient matching: the set's gradient should point where the global model came from.

    X, y        auxiliary images and their fixed labels           g      ∇ℓ(w^{t−m}; X, y)
    d           w^{t−m} − w^t, the way back to the start          a      ∂L/∂g
    R           steps of β that should go as far as d             L      mean over rows of 1 − cos(g_row, d_row)

A row is what leads to one output: a filter of a convolution, a row of a matrix. Biases and the gains of norms, which
have one dimension, are left out, and so are rows of d that are zero. An outer step needs one gradient and one
second-order product, where trajectory matching needs R of both: ∂L/∂X is ∂⟨∇ℓ(w^{t−m}; X), a⟩/∂X.

Cosines do not see how long g is. So β is no part of L. It is the step size whose R steps along g come nearest to d,
β = ⟨g, d⟩ / (R ‖g‖²): the worse the directions agree, the shorter it is.

Zhao, Mopuri, Bilen, 2021, arXiv:2006.05929, match gradients of real images in this way; here d is all that there is.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedptr.core.task import Task
from fedptr.methods.ptr.auxiliary import BETA_FLOOR, Auxiliary, MatchingSettings, draw_steps
from fedptr.methods.ptr.by_trajectory import room_for
from fedptr.methods.ptr.objective import Draw, Draws, Gradient, adjoint_of_set, draw_start
from fedptr.types import Layer


class GradientMatching:
    """The `Objective` of `matching = "gradient"`."""

    def __init__(self, task: Task, start: Tensor, end: Tensor, how: MatchingSettings) -> None:
        self.task, self.w_start, self.w_end, self.d, self.how = task, start, end, start - end, how

    def draw(self, aux: Auxiliary, draws: Draws) -> Draw:
        one = replace(self.how, R=1)
        steps = draw_steps(one, len(aux.y), tuple(aux.X.shape[1:]), draws.order, draws.noise)
        return Draw(steps, draw_start(self.how, draws) / self.how.R)

    def begin(self, aux: Auxiliary, draw: Draw) -> Auxiliary:
        return aux

    def gradient(self, aux: Auxiliary, draw: Draw) -> Gradient:
        w, (step,) = draw.start(self.w_start, self.w_end), draw.steps
        room = self.task.room(len(aux.y) if step.rows is None else len(step.rows))
        step = step._replace(room=room if room is not None and room_for(room.nbytes, 1) else None)
        g, _ = self.task.grad(w, step.batch(aux.X, aux.labels))
        L, a = compare_rows(g, self.d, self.task.layers)
        found = adjoint_of_set(self.task, w, step, aux, a, by_w=False)
        return Gradient(L, found.by_x, torch.zeros_like(aux.beta), found.by_y)

    def end(self, aux: Auxiliary, draw: Draw) -> tuple[Auxiliary, float]:
        w, (step,) = draw.start(self.w_start, self.w_end), draw.steps
        g, _ = self.task.grad(w, step.batch(aux.X, aux.labels))
        beta = torch.dot(g, self.d) / (self.how.R * g.square().sum())
        L, _ = compare_rows(g, self.d, self.task.layers)
        return aux._replace(beta=beta.to(aux.beta).clamp(min=BETA_FLOOR) if bool(beta.isfinite()) else aux.beta), L


def compare_rows(g: Tensor, d: Tensor, layers: tuple[Layer, ...]) -> tuple[float, Tensor]:
    """The mean over rows of 1 − cos(g_row, d_row), and its derivative by g. A row of g that is zero has cosine 0."""
    a, total, count = torch.zeros_like(g), 0.0, 0
    for layer in layers:
        if not has_rows(layer):
            continue
        G, D = (v[layer.start : layer.stop].view(layer.shape[0], -1) for v in (g, d))
        moved, turns = D.norm(dim=1, keepdim=True) > 0, G.norm(dim=1, keepdim=True) > 0
        unit = torch.where(moved, D / D.norm(dim=1, keepdim=True), 0)
        own = torch.where(turns & moved, G / G.norm(dim=1, keepdim=True), 0)
        cosine = (unit * own).sum(1, keepdim=True)
        slope = torch.where(turns & moved, (cosine * own - unit) / G.norm(dim=1, keepdim=True), 0)
        a[layer.start : layer.stop] = slope.flatten()
        total, count = total + float(moved.sum() - cosine.sum()), count + int(moved.sum())
    return total / max(count, 1), a / max(count, 1)


def has_rows(layer: Layer) -> bool:
    return len(layer.shape) > 1
