"""What the closed forms of `Method.quadratic_limit` share. Client i has the loss ½ (w − c_i)ᵀ A_i (w − c_i)."""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_centre(M: Tensor, c: Tensor) -> Tensor:
    """μ(M) = (Σ M_i)⁻¹ Σ M_i c_i: where an average of clients rests that each moves by M_i (c_i − w)."""
    centre: Tensor = torch.linalg.solve(M.sum(0), torch.einsum("nij,nj->i", M, c))
    return centre


def fedavg_limit(A: Tensor, c: Tensor, K: int, lr: float) -> Tensor:
    """FedAvg with K local steps rests at μ(I − (I − lr·A_i)^K)."""
    eye = torch.eye(A.shape[-1], dtype=A.dtype)
    return weighted_centre(eye - torch.linalg.matrix_power(eye - lr * A, K), c)


def pulled_minima(A: Tensor, c: Tensor, strength: float, centre: Tensor) -> Tensor:
    """The minimisers of L_i(v) + strength/2 ‖v − centre‖², row by row."""
    eye = torch.eye(A.shape[-1], dtype=A.dtype)
    right = torch.einsum("nij,nj->ni", A, c) + strength * centre
    minima: Tensor = torch.linalg.solve(A + strength * eye, right)
    return minima


def take_steps(A: Tensor, c: Tensor, K: int, lr: float, start: Tensor) -> Tensor:
    """Where K steps of size lr on each L_i lead from `start`: c_i + (I − lr·A_i)^K (start − c_i), row by row."""
    eye = torch.eye(A.shape[-1], dtype=A.dtype)
    ends: Tensor = c + torch.einsum("nij,nj->ni", torch.linalg.matrix_power(eye - lr * A, K), start - c)
    return ends
