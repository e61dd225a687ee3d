"""LiRA, the likelihood-ratio attack (Carlini et al., S&P 2022, arXiv:2112.03570).

    φ        log p/(1−p) of an example by the target          μ_in, σ_in     of the φ by shadows that were trained on it
    s        number of shadows                                μ_out, σ_out   by those that were not

Online:   score = log N(φ; μ_in, σ_in²) − log N(φ; μ_out, σ_out²)
Offline:  score = Φ((φ − μ_out)/σ_out), of which (φ − μ_out)/σ_out is returned: the same order, and it never rounds to 1

Numbered details:
1. Centres are medians, as in the authors' code.
2. With few shadows σ cannot be told for each example. `shared` is one σ_in and one σ_out for all: the root mean square
   of the deviations from each example's own centre, with one degree of freedom less an example. (The authors' code
   takes the standard deviation over all examples together, which is wider, and σ_out from the IN scores, a mistake.)
3. σ is at least 1e-6.
4. The offline score is one-sided, as in the paper; the authors' code scores with the density, which is two-sided.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from fedptr.audit.roc import Flags, Floats

FLOOR = 1e-6
MANY = 64  # shadows from which on every example gets a σ of its own
Variance = Literal["shared", "example"]


class Gaussians(NamedTuple):
    """The Gaussians of all examples, IN or OUT; σ may be one number for all."""

    mu: Floats
    sigma: Floats


def fit_gaussians(phi: Floats, side: Flags, variance: Variance) -> Gaussians:
    """From φ [shadow, example], of those entries where `side` is true."""
    values = np.where(side, phi, np.nan)
    mu = np.nanmedian(values, axis=0)
    squares = np.nansum((values - mu) ** 2, axis=0)
    freedom = side.sum(axis=0) - 1
    if variance == "shared":
        squares, freedom = squares.sum(keepdims=True), freedom.sum(keepdims=True)
    sigma = np.sqrt(squares / np.maximum(freedom, 1))
    return Gaussians(mu, np.maximum(sigma, FLOOR))


def score_online(target: Floats, phi: Floats, inside: Flags, variance: Variance) -> Floats:
    """The log-likelihood ratio of every example."""
    own, other = fit_gaussians(phi, inside, variance), fit_gaussians(phi, ~inside, variance)
    return log_density(target, own) - log_density(target, other)


def score_offline(target: Floats, phi: Floats, inside: Flags, variance: Variance) -> Floats:
    """From the shadows alone that have not seen an example, so that none need be trained for it."""
    out = fit_gaussians(phi, ~inside, variance)
    score: Floats = (target - out.mu) / out.sigma
    return score


def log_density(x: Floats, side: Gaussians) -> Floats:
    """log N(x; μ, σ²) without its constant."""
    value: Floats = -(((x - side.mu) / side.sigma) ** 2) / 2 - np.log(side.sigma)
    return value
