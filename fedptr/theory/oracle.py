"""The oracle: federated problems whose optimum is known, solved through the real engine.

A sample (v, k) has the loss ½ (w − v)ᵀ A_k (w − v): classes differ in curvature, clients hold different classes, so
their optima differ, and the global optimum is the solution of a linear system. SCAFFOLD, FedDyn and FedDC must reach it
at any participation; FedAvg and FedProx with several local steps must not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedptr.core.federation import Rounds, federate, last_run
from fedptr.core.local_training import Local
from fedptr.core.method import Method
from fedptr.core.samples import Samples
from fedptr.core.task import Differentiable
from fedptr.types import Batch, Layer


class QuadraticTask(Differentiable):
    """One symmetric positive definite matrix per class; parameters, images and optimum live in the same space."""

    def __init__(self, A: Tensor) -> None:
        self.A = A
        self.classes, d = A.shape[0], A.shape[1]
        self.shape: tuple[int, ...] = (d,)
        self.layers: tuple[Layer, ...] = (
            Layer("first", 0, d // 2, (d // 2,)),
            Layer("second", d // 2, d, (d - d // 2,)),
        )

    def init(self) -> Tensor:
        return torch.ones(self.A.shape[1], dtype=self.A.dtype)

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        _, losses = self.outputs(w, batch)
        return losses.mean()

    def outputs(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The features w − v, and the losses, which are quadratic forms of them."""
        d = w - batch.x
        return d, 0.5 * torch.einsum("ni,nij,nj->n", d, self.A[batch.y], d)

    def grad(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        d = w - batch.x
        Ad = torch.einsum("nij,nj->ni", self.A[batch.y], d)
        return Ad.mean(0), 0.5 * (d * Ad).sum(1).mean()

    def evaluate(self, w: Tensor, data: Samples, buffers: Tensor | None = None) -> dict[str, float]:
        x, y = data.take(torch.arange(len(data)))
        return {"loss": float(self.loss(w, Batch(x, y)))}


@dataclass(frozen=True)
class QuadraticProblem:
    task: QuadraticTask
    clients: list[Samples]

    def optimum(self, weighted: bool = False) -> Tensor:
        """The minimiser of (1/N) Σ L_i, or of Σ (m_i/M) L_i."""
        left, right = torch.zeros_like(self.task.A[0]), torch.zeros_like(self.task.A[0, 0])
        for data in self.clients:
            x, y = data.take(torch.arange(len(data)))
            weight = len(data) if weighted else 1
            left = left + weight * self.task.A[y].mean(0)
            right = right + weight * torch.einsum("nij,nj->ni", self.task.A[y], x).mean(0)
        solution: Tensor = torch.linalg.solve(left, right)
        return solution


def make_problem(seed: int, clients: int = 10, classes: int = 5, d: int = 8) -> QuadraticProblem:
    """Random curvatures between ½ and 3; every client has one or two classes and its own centre."""
    g = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=g, dtype=torch.float64)

    Q = torch.linalg.qr(normal(classes, d, d)).Q
    eigenvalues = 0.5 + 2.5 * torch.rand(classes, d, generator=g, dtype=torch.float64)
    A = Q @ torch.diag_embed(eigenvalues) @ Q.mT
    sets = []
    for i in range(clients):
        m = int(torch.randint(2, 12, (), generator=g))
        y = torch.tensor([i % classes, (i + 1 + i // classes) % classes])[torch.randint(2, (m,), generator=g)]
        sets.append(Samples(3 * normal(d) + normal(m, d), y))
    return QuadraticProblem(QuadraticTask(A), sets)


LOCAL = Local(lr=0.1, momentum=0.0, batch=100, epochs=5)  # five full-batch steps: enough for FedAvg to drift


def measure_error(
    method: Method, at: QuadraticProblem, participation: float, rounds: int, local: Local = LOCAL, seed: int = 0
) -> float:
    """‖w − w*‖ / ‖w*‖ after this many rounds, with w* the optimum for the method's weighting of clients."""
    weighted = any(getattr(method, name, False) for name in ("weighted", "weighted_controls"))
    best = at.optimum(weighted or (method.weighting == "samples"))
    how = Rounds(rounds=rounds, participation=participation, seed=seed)
    run = last_run(federate(method, at.task, at.clients, rounds=how, local=local))
    return float((run.w - best).norm() / best.norm())
