"""FedPTR's theorem as numbers: its conditions, and the bound that its proof gives.

    G       ‖∇L(w^t)‖², smallest over the T rounds             Δ    L(w^0) − L(w^T)
    μ       λ − L₋, the strong convexity of h_i                σ_d  sup ‖∇L − ∇L̃_i‖
    B       (1/N) Σ ‖∇L_i‖² ≤ B² ‖∇L‖²                         h_i  L_i + (λ/2)‖w − w̃_i‖²
    γ       ‖∇h_i‖ after local training, relative to before    η    1/(λ√T), the corollary's Θ(1/√T)

Numbered details:
1. The inequality between λ, μ, L and N is evaluated as printed. It has no B, and a term 1/(λN); the steps of the proof
   before it have B², and lead to a term without N. So `compute_bound` carries all terms through again.
2. γ is relative to ‖∇h_i‖ at w̃, where training starts, as in the paper's definition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from fedptr.errors import UserError
from fedptr.theory.problems import SmoothProblem


@dataclass
class Trace:
    """What was observed during T rounds, after warm-up."""

    T: int
    G: float = math.inf
    delta: float = 0.0
    L: float = 0.0
    B: float = 0.0
    sigma: float = 0.0
    sigma_last: float = 0.0  # σ_d in the last round
    gamma: float = 0.0
    bound: float = math.inf


@dataclass
class RateResult:
    """A method on a problem, for every T."""

    problem: str
    method: str
    seed: int
    traces: list[Trace]
    lam: float = 0.0
    conditions: dict[str, str] = field(default_factory=dict)  # what -> "yes: …", "no: …", "no bound at …: …"

    def slope(self, last: int = 0) -> float:
        """The slope of log G against log T, over all T or the last few."""
        return fit_exponent([trace.T for trace in self.traces[-last:]], [trace.G for trace in self.traces[-last:]])


def fit_exponent(T: Sequence[float], G: Sequence[float]) -> float:
    """The exponent of the power law that fits the points best, in logarithms.

    >>> round(fit_exponent([25, 50, 100], [4.0, 2.0, 1.0]), 6)
    -1.0
    """
    x, y = torch.tensor(T, dtype=torch.float64).log(), torch.tensor(G, dtype=torch.float64).log()
    x = x - x.mean()
    return float((x * y).sum() / x.square().sum())


def printed_inequality(L: float, L_minus: float, lam: float, N: int) -> float:
    """The left side of the theorem's inequality as printed; it must be at least 0."""
    mu = lam - L_minus
    return 1 / (6 * lam) - 6 * L**2 / (lam * mu**2) - 1 / (lam * N) - 6 * L / mu**2


def smallest_lambda(L: float, L_minus: float, N: int) -> float:
    """A little more than the smallest λ for which the printed inequality holds; for N ≤ 6 there is none."""
    if N <= 6:
        raise UserError(f"the theorem's condition holds for no λ with {N} clients; it needs more than 6")
    low, high = L_minus, 1e6 * (L + L_minus)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if printed_inequality(L, L_minus, middle, N) >= 0 else (middle, high)
    return 1.02 * high


def compute_bound(problem: SmoothProblem, lam: float, seen: Trace) -> float:
    """(Δ/T + S σ_d²)/D, the bound on min ‖∇L‖² from the theorem's proof, with B², γ and all means carried through.

    From w⁺ − w = −(∇L + r)/λ follows L(w⁺) ≤ L(w) − ‖∇L‖²/2λ + ‖r‖²/2λ for λ ≥ L, with r the mean of
    ∇L_i(w_i⁺) − ∇L_i(w), of λη∇L̃_i, and of −∇h_i(w_i⁺). In this, ‖w_i⁺ − w‖ ≤ (‖∇h_i(w_i⁺)‖ + ‖∇h_i(w)‖)/μ by strong
    convexity, ‖∇h_i(w_i⁺)‖ ≤ γ‖∇h_i(w̃)‖, both ‖∇h_i(w)‖² and ‖∇h_i(w̃)‖² = ‖∇L_i(w̃)‖² are at most
    2‖∇L_i‖² + 2λ²η²‖∇L̃_i‖², and ‖∇L̃_i‖² ≤ 2‖∇L‖² + 2σ_d². Infinite where D is not positive.
    """
    mu, e = lam - problem.L_minus, 1 / seen.T  # e = λ²η²
    c = (problem.L * (1 + seen.gamma) / mu) ** 2 + seen.gamma**2
    D = (0.5 - 3 * (c * (seen.B**2 + 2 * e) + e)) / lam
    S = 3 * e * (2 * c + 1) / lam
    return (seen.delta / seen.T + S * seen.sigma**2) / D if D > 0 and lam >= problem.L else math.inf


def check_conditions(problem: SmoothProblem, lam: float, traces: Sequence[Trace]) -> dict[str, str]:
    """Every condition of the theorem, whether it held, and by which numbers."""
    N, first, last = len(problem.clients), traces[0], traces[-1]
    value = printed_inequality(problem.L, problem.L_minus, lam, N)
    gamma = max(trace.gamma for trace in traces)
    bounded = [trace for trace in traces if trace.bound < math.inf]
    parts = ", ".join(f"{trace.G / trace.bound:.1g}" for trace in bounded)
    beyond = ", ".join(str(trace.T) for trace in traces if math.isinf(trace.bound))
    others = " at the other T" if beyond else ""
    parts = f"min ‖∇L‖² is {parts} of it{others}" if parts else "the proof divides by zero or less there"

    def first_and_last(name: str) -> str:
        return f"observed {getattr(first, name):.3g} at T = {first.T}, {getattr(last, name):.3g} at T = {last.T}"

    known = f"at most {problem.B:.3g}" if math.isfinite(problem.B) else "no B exists, as the clients' optima differ"
    found: dict[str, tuple[bool, str]] = {
        "L-smooth": (last.L <= problem.L * (1 + 1e-9), f"observed {last.L:.3g}, by construction ≤ {problem.L:.3g}"),
        "B-dissimilar": (math.isfinite(problem.B) and last.B <= problem.B, f"{first_and_last('B')}; {known}"),
        "∇L̃ within σ_d of ∇L": (
            last.sigma <= 2 * first.sigma,
            f"{first_and_last('sigma')}; in the end {last.sigma_last:.2g}",
        ),
        "μ = λ − L₋ > 0": (lam > problem.L_minus, f"λ = {lam:.3g}, L₋ = {problem.L_minus:.3g}"),
        "η ≤ 1/(2λ)": (first.T >= 4, f"η = 1/(λ√T) is at most {1 / math.sqrt(first.T):.2g}/λ"),
        "γ small": (gamma < 0.1, f"by construction at most {gamma:.1g}"),
        "the printed inequality": (value >= 0, f"λ times its left side is {lam * value:.2g}; N = {N}"),
        "below the proof's bound": (all(t.bound >= t.G for t in traces), parts),
    }
    answers = {what: f"{'yes' if held else 'no'}: {words}" for what, (held, words) in found.items()}
    if beyond and found["below the proof's bound"][0]:  # nothing to be below of is neither yes nor no
        answers["below the proof's bound"] = f"no bound at T = {beyond}: {parts}"
    return answers
