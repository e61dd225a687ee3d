"""The oracle for personalised methods: where the global and the personal models end on quadratics, in closed form.

A_i, c_i    client i has the loss ½ (w − c_i)ᵀ A_i (w − c_i), up to a constant
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedptr.core.federation import Rounds, Run, federate, last_run, site_of_client
from fedptr.core.local_training import Local
from fedptr.core.method import Method, Site
from fedptr.core.randomness import Key
from fedptr.theory.oracle import LOCAL, QuadraticProblem
from fedptr.types import State


class LimitErrors(NamedTuple):
    """Distances from the closed form, relative to its norm."""

    x: float
    personal: float


def client_quadratics(problem: QuadraticProblem) -> tuple[Tensor, Tensor]:
    """A_i and c_i of every client, stacked."""
    A, c = [], []
    for data in problem.clients:
        v, y = data.take(torch.arange(len(data)))
        mean = problem.task.A[y].mean(0)
        A.append(mean)
        c.append(torch.linalg.solve(mean, torch.einsum("nij,nj->ni", problem.task.A[y], v).mean(0)))
    return torch.stack(A), torch.stack(c)


def personal_models(method: Method, run: Run, problem: QuadraticProblem, local: Local = LOCAL) -> Tensor:
    """The model that each client would use after this run, row by row."""
    n = len(problem.clients)
    server = Site(problem.task, local, Key(0), run.round, n, numbers=n)
    rows = []
    for i, data in enumerate(problem.clients):
        site = site_of_client(server, 0, i, data, len(data), 1.0)
        msg: State = {"x": run.w, **method.message(run.server, i)}
        rows.append(method.personal(msg, run.clients[i], site))
    return torch.stack(rows)


def measure_limit_errors(method: Method, problem: QuadraticProblem, rounds: int, local: Local = LOCAL) -> LimitErrors:
    """How far the models are from `quadratic_limit` after this many rounds with everyone."""
    A, c = client_quadratics(problem)
    limit = method.quadratic_limit(A, c, local.epochs, local.lr)
    assert limit is not None, f"{method.name} declares no limit"
    x, own = limit
    best = problem.task.init() if x is None else x, own
    run = last_run(federate(method, problem.task, problem.clients, rounds=Rounds(rounds=rounds), local=local))
    found = run.w, personal_models(method, run, problem, local)
    return LimitErrors(*(float((got - end).norm() / end.norm()) for got, end in zip(found, best, strict=True)))
