"""The theory check: does ‖∇L‖² fall with the rounds T as FedPTR's theorem says, and do the theorem's conditions hold?

    G       ‖∇L(w^t)‖², smallest over the T rounds             Δ    L(w^0) − L(w^T)
    μ       λ − L₋, the strong convexity of h_i                σ_d  sup ‖∇L − ∇L̃_i‖, as observed
    B, γ    observed dissimilarity and inexactness             η    1/(λ√T), the corollary's Θ(1/√T)

The real methods run through the real engine, on problems from `fedptr.smooth`. The theorem is about a fixed λ, one
projection step (K = 1), everyone taking part and a uniform mean, so FedPTR runs with these; its usual settings run
beside it, and FedAvg. The theorem's w^0 is the first model that is projected: warm-up is not counted.

Numbered details:
1. The printed condition is evaluated as printed. It has no B and a term 1/(λN), while the steps before it have B², and
   a mean over clients where that term has 1/N twice. `bound` therefore carries the terms through anew.
2. γ is relative to ‖∇h_i‖ at w^t, where training starts, and not at w̃.
3. β is fixed at 1/λ + η, the length of a round's step, so that ∇L̃_i and not a multiple of it mimics ∇L.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedptr.errors import UserError
from fedptr.federation import Rounds, Run, federate
from fedptr.local import Local
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.fedptr import FedPTR
from fedptr.methods.fedptr_s import FedPTRS
from fedptr.smooth import PROBLEMS, Smooth, sigmoid
from fedptr.task import Batch, full_gradient

METHODS = ("fedptr", "fedptr-s")  # which the theorem is about
BOTH = ("fedavg", "fedptr")  # on every problem
MORE = ("fedptr-s", "fedptr, usual settings")  # on the last
ROUNDS = (25, 50, 100, 200, 400, 800)
CLIENTS = 10
ALONE = 2000  # up to so many rounds, other processes take longer to start than to help
STEPS = 2  # local steps; with so large a λ they solve the local problem to a part in thousands
M = 2  # span of matching; the first M rounds have no projection


@dataclass
class Trace:
    """What was seen on the way; T rounds, after warm-up."""

    T: int
    G: float = math.inf
    delta: float = 0.0
    L: float = 0.0
    B: float = 0.0
    sigma: float = 0.0
    sigma_last: float = 0.0  # σ_d in the last round alone
    gamma: float = 0.0
    bound: float = math.inf


@dataclass
class Result:
    """A method on a problem, for every T."""

    problem: str
    method: str
    seed: int
    traces: list[Trace]
    lam: float = 0.0
    conditions: dict[str, str] = field(default_factory=dict)  # what -> "yes: …", "no: …"

    def slope(self, last: int = 0) -> float:
        """Of log G against log T, over all T or the last few."""
        return fit([trace.T for trace in self.traces[-last:]], [trace.G for trace in self.traces[-last:]])


def fit(T: Sequence[float], G: Sequence[float]) -> float:
    """The exponent of the power law nearest to the points.

    >>> round(fit([25, 50, 100], [4.0, 2.0, 1.0]), 6)
    -1.0
    """
    x, y = torch.tensor(T, dtype=torch.float64).log(), torch.tensor(G, dtype=torch.float64).log()
    x = x - x.mean()
    return float((x * y).sum() / x.square().sum())


def parse_rounds(text: str) -> tuple[int, ...]:
    """`25,50,100` as numbers of rounds, in order."""
    try:
        rounds = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UserError(f"--rounds {text!r} must be whole numbers with commas between them, e.g. 25,50,100") from None
    if len(rounds) < 2 or rounds[0] < 2:
        raise UserError(f"--rounds {text!r} must be at least two different numbers, each 2 or more, to fit a slope")
    return tuple(rounds)


class Job(NamedTuple):
    """What one process does at a time: a method on a problem, for one T or, where T changes nothing, for all."""

    make: Callable[[int, int], Smooth]
    seed: int
    clients: int
    method: str
    rounds: tuple[int, ...]


def check(
    rounds: Sequence[int] = ROUNDS, seeds: int = 1, clients: int = CLIENTS, tell: Callable[[str], None] = print
) -> list[Result]:
    """Every method on every problem, spread over the cores where that is worth while."""
    jobs = [
        Job(make, seed, clients, name, part)
        for seed in range(seeds)
        for make in PROBLEMS
        for name in (*BOTH, *(MORE if make is sigmoid else ()))
        for part in ([(T,) for T in rounds] if name in METHODS else [tuple(rounds)])
    ]
    found: dict[tuple[int, str, str], list[Trace]] = {}
    with contextlib.ExitStack() as stack:
        results: Iterable[list[Trace]] = map(work, jobs)
        if sum(max(job.rounds) for job in jobs) > ALONE:
            pool = multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0)), alone)
            results = stack.enter_context(pool).imap(work, jobs)
        for job, traces in zip(jobs, results, strict=True):
            problem = job.make(job.seed, job.clients)
            found.setdefault((job.seed, problem.name, job.method), []).extend(traces)
            tell(f"{problem.name}, seed {job.seed}: {job.method}, T = {max(job.rounds)}")
    return [summary(seed, problem, method, traces, clients) for (seed, problem, method), traces in found.items()]


def alone() -> None:
    """A process among several: one thread, and Ctrl-C is its parent's business."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def work(job: Job) -> list[Trace]:
    problem = job.make(job.seed, job.clients)
    lam = smallest_lambda(problem.L, problem.L_minus, job.clients)
    if job.method in METHODS:
        method = theorem_method(job.method, problem, lam, job.rounds[0])
    else:
        method = FedAvg(weighting="uniform") if job.method == "fedavg" else usual(problem)
    return list(watch(problem, method, lam, job.rounds, job.seed))


def summary(seed: int, name: str, method: str, traces: list[Trace], clients: int) -> Result:
    """With the theorem's bound and conditions, for the methods it is about."""
    (problem,) = [found for make in PROBLEMS if (found := make(seed, clients)).name == name]
    if method not in METHODS:
        return Result(name, method, seed, traces)
    lam = smallest_lambda(problem.L, problem.L_minus, clients)
    traces = [replace(trace, bound=bound(problem, lam, trace)) for trace in traces]
    return Result(name, method, seed, traces, lam, conditions(problem, lam, traces))


def theorem_method(name: str, problem: Smooth, lam: float, T: int) -> FedAvg:
    """FedPTR as the theorem has it."""
    eta = 1 / (lam * math.sqrt(T))
    settings: dict[str, Any] = {
        "weighting": "uniform", "regulariser": "fixed", "lam": lam, "K": 1, "eta": eta, "dsa": False,
        "m": M, "warmup": "early", "H": 5, "R": 2, "ipc": 2, "mtt_every": 10,
        "beta": M / 2 * (1 / lam + eta), "lr_beta": 0.0, "lr_img": problem.lr_img,
    }  # fmt: skip
    return FedPTR(**settings) if name == "fedptr" else FedPTRS(**settings)


def usual(problem: Smooth) -> FedPTR:
    """FedPTR as it is used: a small λ for each layer, five projection steps. Matching is as cheap as above."""
    return FedPTR(
        weighting="uniform", dsa=False, m=M, warmup="early", H=5, R=2, ipc=2, mtt_every=10, lr_img=problem.lr_img
    )


def watch(problem: Smooth, method: FedAvg, lam: float, rounds: Sequence[int], seed: int) -> Iterator[Trace]:
    """Runs max(rounds) rounds after warm-up, and yields what was seen until each of `rounds`."""
    local = Local(lr=1 / (lam + problem.L), momentum=0.0, batch=10**6, epochs=STEPS, record_gamma=True)
    how = Rounds(rounds=M + max(rounds), seed=seed)
    seen, w, start = Trace(0), problem.task.init(), 0.0
    last: tuple[Tensor, Tensor] | None = None  # the model before w, and its gradients
    for run in federate(method, problem.task, problem.clients, rounds=how, local=local):
        if run.round > M:
            gradients = torch.stack([full_gradient(problem.task, w, data) for data in problem.clients])
            if last is None:
                start = objective(problem, w)
            else:
                seen.L = max(seen.L, float((gradients - last[1]).norm(dim=1).max() / (w - last[0]).norm()))
            look(seen, problem, run, w, gradients)
            last = w, gradients
            if seen.T in rounds:
                yield replace(seen, delta=start - objective(problem, run.w))
        w = run.w


def look(seen: Trace, problem: Smooth, run: Run, w: Tensor, gradients: Tensor) -> None:
    """The round that led from w to run.w."""
    mean = gradients.mean(0)
    G = float(mean.square().sum())
    seen.T, seen.G = seen.T + 1, min(seen.G, G)
    seen.B = max(seen.B, math.sqrt(float(gradients.square().sum(1).mean()) / G))
    seen.gamma = max(seen.gamma, *(client["gamma"] for client in run.record["clients"]))
    seen.sigma_last = 0.0
    for owner in [run.server, *(run.clients[i] for i in run.record["cohort"])]:
        if "X" in owner:
            auxiliary, _ = problem.task.grad(w, Batch(owner["X"], owner["y"]))
            seen.sigma_last = max(seen.sigma_last, float((mean - auxiliary).norm()))
    seen.sigma = max(seen.sigma, seen.sigma_last)


def objective(problem: Smooth, w: Tensor) -> float:
    """(1/N) Σ L_i(w)"""
    return sum(problem.task.evaluate(w, data, None)["loss"] for data in problem.clients) / len(problem.clients)


def printed(L: float, L_minus: float, lam: float, N: int) -> float:
    """The theorem's inequality as printed; it asks for a value of at least 0."""
    mu = lam - L_minus
    return 1 / (6 * lam) - 6 * L**2 / (lam * mu**2) - 1 / (lam * N) - 6 * L / mu**2


def smallest_lambda(L: float, L_minus: float, N: int) -> float:
    """A little more than the smallest λ of which the printed inequality holds, which for N ≤ 6 there is none of."""
    if N <= 6:
        raise UserError(f"the theorem's condition holds for no λ with {N} clients; it needs more than 6")
    low, high = L_minus, 1e6 * (L + L_minus)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if printed(L, L_minus, middle, N) >= 0 else (middle, high)
    return 1.02 * high


def bound(problem: Smooth, lam: float, seen: Trace) -> float:
    """(Δ/T + S σ_d²)/D, what the theorem's proof gives for min ‖∇L‖² when B², γ and all means are carried through.

    From w⁺ − w = −(∇L + r)/λ follows L(w⁺) ≤ L(w) − ‖∇L‖²/2λ + ‖r‖²/2λ for λ ≥ L, with r the mean of
    ∇L_i(w_i⁺) − ∇L_i(w), of λη∇L̃_i, and of −∇h_i(w_i⁺). In this, ‖w_i⁺ − w‖ ≤ (1+γ)/μ · ‖∇h_i(w)‖ by strong convexity,
    ‖∇h_i(w)‖² ≤ 2‖∇L_i‖² + 2λ²η²‖∇L̃_i‖², and ‖∇L̃_i‖² ≤ 2‖∇L‖² + 2σ_d². Infinite where D is not positive.
    """
    mu, e = lam - problem.L_minus, (1 / math.sqrt(seen.T)) ** 2  # e = λ²η²
    c = (problem.L * (1 + seen.gamma) / mu) ** 2 + seen.gamma**2
    D = (0.5 - 3 * (c * (seen.B**2 + 2 * e) + e)) / lam
    S = 3 * e * (2 * c + 1) / lam
    return (seen.delta / seen.T + S * seen.sigma**2) / D if D > 0 and lam >= problem.L else math.inf


def conditions(problem: Smooth, lam: float, traces: Sequence[Trace]) -> dict[str, str]:
    """Every condition of the theorem, whether it held, and by what."""
    N, first, last = len(problem.clients), traces[0], traces[-1]
    value = printed(problem.L, problem.L_minus, lam, N)
    gamma = max(trace.gamma for trace in traces)
    parts = ", ".join(f"{trace.G / trace.bound:.1g}" for trace in traces)

    def both(name: str) -> str:
        return f"observed {getattr(first, name):.3g} at T = {first.T}, {getattr(last, name):.3g} at T = {last.T}"

    known = f"at most {problem.B:.3g}" if math.isfinite(problem.B) else "no B exists, as the clients' optima differ"
    found: dict[str, tuple[bool, str]] = {
        "L-smooth": (last.L <= problem.L * (1 + 1e-9), f"observed {last.L:.3g}, by construction ≤ {problem.L:.3g}"),
        "B-dissimilar": (math.isfinite(problem.B) and last.B <= problem.B, f"{both('B')}; {known}"),
        "∇L̃ within σ_d of ∇L": (last.sigma <= 2 * first.sigma, f"{both('sigma')}; in the end {last.sigma_last:.2g}"),
        "μ = λ − L₋ > 0": (lam > problem.L_minus, f"λ = {lam:.3g}, L₋ = {problem.L_minus:.3g}"),
        "η ≤ 1/(2λ)": (first.T >= 4, f"η = 1/(λ√T) is at most {1 / math.sqrt(first.T):.2g}/λ"),
        "γ small": (gamma < 0.1, f"observed at most {gamma:.1g}"),
        "the printed inequality": (value >= 0, f"λ times its left side is {lam * value:.2g}; N = {N}"),
        "below the proof's bound": (all(t.G <= t.bound < math.inf for t in traces), f"min ‖∇L‖² is {parts} of it"),
    }
    return {what: f"{'yes' if held else 'no'}: {words}" for what, (held, words) in found.items()}
