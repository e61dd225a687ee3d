"""Smooth federated problems whose constants are known, for `fedptr theory`.

    L       every client's gradient is L-Lipschitz             L₋   every client's Hessian is at least −L₋
    B       (1/N) Σ ‖∇L_i‖² ≤ B² ‖∇L‖², at every w             ∇L   (1/N) Σ ∇L_i

A finite B means that every ∇L_i vanishes where ∇L does: the clients share their optimum. In the first and the last of
the three problems they do, in the second they do not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedptr.core.samples import Samples
from fedptr.core.task import Differentiable, Task
from fedptr.theory.oracle import QuadraticTask
from fedptr.types import Batch, Layer

MAX_CURVATURE = 1 / (6 * math.sqrt(3))  # the largest |second derivative| of the logistic function


@dataclass(frozen=True)
class SmoothProblem:
    name: str
    task: Task
    clients: list[Samples]
    L: float
    L_minus: float
    B: float  # infinite where the clients' optima differ
    lr_img: float  # a step size of matching that suits the problem's scale


class WideSpectrumTask(QuadraticTask):
    """Quadratics in one eigenbasis whose curvatures h span two decades, starting at a loss of ½ in every direction.

    Gradient descent on them is as slow as 1/T allows: at any time some direction is just about to converge.
    """

    def __init__(self, A: Tensor, start: Tensor) -> None:
        super().__init__(A)
        self.start = start

    def init(self) -> Tensor:
        return self.start.clone()


class SigmoidTask(Differentiable):
    """Two classes, loss 1/(1 + exp(s⟨x, w⟩)) with s = ±1: smooth, bounded, and not convex."""

    classes = 2

    def __init__(self, start: Tensor) -> None:
        self.start, d = start, len(start)
        self.shape: tuple[int, ...] = (d,)
        self.layers: tuple[Layer, ...] = (
            Layer("first", 0, d // 2, (d // 2,)),
            Layer("second", d // 2, d, (d - d // 2,)),
        )

    def init(self) -> Tensor:
        return self.start.clone()

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        return torch.sigmoid(-sign_images(batch) @ w).mean()

    def grad(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        sx = sign_images(batch)
        p = torch.sigmoid(-sx @ w)
        return -(p * (1 - p)) @ sx / len(sx), p.mean()

    def evaluate(self, w: Tensor, data: Samples, buffers: Tensor | None = None) -> dict[str, float]:
        x, y = data.take(torch.arange(len(data)))
        return {"loss": float(self.loss(w, Batch(x, y)))}


def sign_images(batch: Batch) -> Tensor:
    """s·x: its product with w is positive where the model is right, whatever the class."""
    return (2 * batch.y - 1)[:, None] * batch.x


def shared_optimum_problem(seed: int, clients: int) -> SmoothProblem:
    """All clients share one optimum, and differ only in curvature."""
    return quadratic_problem("quadratic, one optimum", seed, clients, apart=0.0)


def different_optima_problem(seed: int, clients: int) -> SmoothProblem:
    """Every client has an optimum of its own, so no B is large enough."""
    return quadratic_problem("quadratic, different optima", seed, clients, apart=10.0)


def quadratic_problem(name: str, seed: int, clients: int, apart: float, classes: int = 4, d: int = 12) -> SmoothProblem:
    """Every client has one or two classes, each with its own curvatures; optima lie `apart` from a common centre."""
    g = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(draw_normal(g, d, d)).Q
    h = torch.logspace(-2, 0, d, dtype=torch.float64)
    A = Q @ torch.diag_embed(h * (0.5 + torch.rand(classes, d, generator=g, dtype=torch.float64))) @ Q.mT
    centre, sets = draw_normal(g, d), []
    for i in range(clients):
        m = int(torch.randint(2, 12, (), generator=g))
        y = torch.tensor([i % classes, (i + 1) % classes])[torch.randint(2, (m,), generator=g)]
        sets.append(Samples((centre + apart * draw_normal(g, d)).expand(m, -1), y))
    H = torch.stack([A[data.y].mean(0) for data in sets])
    inverse = torch.linalg.inv(H.mean(0))
    B = float(torch.linalg.eigvalsh(inverse @ (H @ H).mean(0) @ inverse).max()) ** 0.5
    L = float(torch.linalg.eigvalsh(H).max())
    return SmoothProblem(
        name, WideSpectrumTask(A, centre + Q @ h.rsqrt()), sets, L, 0.0, math.inf if apart else B, lr_img=0.3
    )


def sigmoid_problem(seed: int, clients: int, d: int = 8, margin: float = 1.0) -> SmoothProblem:
    """Separable with a margin, so that B is known; every client has its own centre and mostly one class.

    With ⟨sx, u⟩ ≥ margin and ‖x‖ ≤ R, ‖∇L_i‖ ≤ R·p_i and ‖∇L‖ ≥ margin·mean p_i, where p_i is the mean slope of the
    loss on client i; so B² ≤ N·R²/margin².
    """
    g = torch.Generator().manual_seed(seed)
    u, sets = F.normalize(draw_normal(g, d), dim=0), []
    for i in range(clients):
        m = int(torch.randint(6, 16, (), generator=g))
        y = (torch.rand(m, generator=g) < (0.9 if i % 2 else 0.1)).long()
        aside = 0.3 * draw_normal(g, d) + 0.2 * draw_normal(g, m, d)
        along = margin * (1 + torch.rand(m, 1, generator=g, dtype=torch.float64))
        sx = aside - (aside @ u)[:, None] * u + along * u
        sets.append(Samples((2 * y - 1)[:, None] * sx, y))
    L = MAX_CURVATURE * max(float(torch.linalg.eigvalsh(data.x.mT @ data.x / len(data)).max()) for data in sets)
    R = max(float(data.x.norm(dim=1).max()) for data in sets)
    B = math.sqrt(clients) * R / margin
    return SmoothProblem("sigmoid, not convex", SigmoidTask(0.5 * draw_normal(g, d)), sets, L, L, B, lr_img=0.5)


def draw_normal(g: torch.Generator, *size: int) -> Tensor:
    return torch.randn(*size, generator=g, dtype=torch.float64)


PROBLEMS = (shared_optimum_problem, different_optima_problem, sigmoid_problem)
