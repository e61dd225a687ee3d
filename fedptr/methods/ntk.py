"""The neural tangent kernel of an infinitely wide fully connected ReLU network.

    d      inputs' dimension          k    covariance of a layer's outputs      W²   variance of weights (times width)
    L      hidden layers              Θ    the tangent kernel                   b²   variance of biases

k = W²⟨x, x'⟩/d + b², Θ = k; then for each hidden layer, with θ = acos(k(x, x')/√(k(x, x)k(x', x'))):
    κ ← √(k(x, x)k(x', x'))·(sin θ + (π − θ) cos θ)/2π;  k ← W²κ + b²;  Θ ← k + W²Θ(π − θ)/2π.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

W2, B2, LAYERS = 2.0, 0.01, 4  # of FedD3


def tangent_kernel(x: Tensor, other: Tensor, layers: int = LAYERS, w2: float = W2, b2: float = B2) -> Tensor:
    """Θ between the rows of x and those of `other`; in the precision that they have.

    >>> x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    >>> round(float(tangent_kernel(x, x, layers=1, b2=0.0)), 4)  # 2(L + 1)‖x‖²/d
    50.0
    """
    d, sharp = x.shape[1], 1 - 1000 * torch.finfo(x.dtype).eps  # at 1 acos has no derivative
    k = w2 * (x @ other.mT) / d + b2
    kx, ko = (w2 * part.square().sum(1) / d + b2 for part in (x, other))
    theta_kernel = k
    for _ in range(layers):
        size = (kx[:, None] * ko[None]).sqrt()
        cosine = (k / size).clamp(-sharp, sharp)
        angle = cosine.acos()
        k = w2 * size * (angle.sin() + (math.pi - angle) * cosine) / (2 * math.pi) + b2
        theta_kernel = k + w2 * theta_kernel * (math.pi - angle) / (2 * math.pi)
        kx, ko = w2 * kx / 2 + b2, w2 * ko / 2 + b2
    return theta_kernel


def regress(
    X: Tensor, Y: Tensor, T: Tensor, ridge: float, layers: int = LAYERS, w2: float = W2, b2: float = B2
) -> Tensor:
    """What kernel ridge regression on (X, Y) predicts at T; the ridge is relative to the kernel's mean diagonal."""
    own = tangent_kernel(X, X, layers, w2, b2)
    ridge_term = ridge * own.diagonal().mean() * torch.eye(len(X), dtype=X.dtype, device=X.device)
    weights: Tensor = torch.linalg.solve(own + ridge_term, Y)
    return tangent_kernel(T, X, layers, w2, b2) @ weights
