"""The theory check: does ‖∇L‖² fall with the rounds T as FedPTR's theorem says, and do the theorem's conditions hold?

The real methods run through the real engine, on the problems of problems.py; the theorem is in theorem.py. It is about
a fixed λ, one projection step (K = 1), full participation and a uniform mean, so FedPTR runs with these. FedAvg, and
FedPTR with its usual settings, run for comparison. The theorem's w^0 is the first model that is projected: warm-up is
not counted. β is fixed at 1/λ + η, the length of a round's step, so that ∇L̃_i mimics ∇L and not a multiple of it.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedptr.compute.cores import count_cores
from fedptr.core.federation import Rounds, Run, federate
from fedptr.core.local_training import Local
from fedptr.core.method import Method
from fedptr.errors import UserError
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.fedptr import FedPTR
from fedptr.methods.fedptr_s import FedPTRS
from fedptr.theory.problems import PROBLEMS, SmoothProblem, sigmoid_problem
from fedptr.theory.theorem import RateResult, Trace, check_conditions, compute_bound, smallest_lambda
from fedptr.types import Batch

METHODS = ("fedptr", "fedptr-s")  # that the theorem is about
EVERYWHERE = ("fedavg", "fedptr")  # on every problem
ON_SIGMOID = ("fedptr, usual settings",)  # also on the sigmoid problem
ROUNDS = (25, 50, 100, 200, 400)
CLIENTS = 10
ONE_PROCESS = 2000  # up to this many rounds, other processes take longer to start than to help
STEPS = 2  # local steps; as λ is large, they solve the local problem to a part in thousands
M = 2  # rounds that matching spans; the first M rounds have no projection


def parse_rounds(text: str) -> tuple[int, ...]:
    """`25,50,100` as numbers of rounds, in order."""
    try:
        rounds = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UserError(f"--rounds {text!r} must be whole numbers with commas between them, e.g. 25,50,100") from None
    if len(rounds) < 2 or rounds[0] < 2:
        raise UserError(f"--rounds {text!r} must be at least two different numbers, each 2 or more, to fit a slope")
    return tuple(rounds)


class RateJob(NamedTuple):
    """What one process does at a time: a method on a problem, for one T, or for all if T changes nothing."""

    make: Callable[[int, int], SmoothProblem]
    seed: int
    clients: int
    method: str
    rounds: tuple[int, ...]


def check_rates(
    rounds: Sequence[int] = ROUNDS, seeds: int = 1, clients: int = CLIENTS, tell: Callable[[str], None] = print
) -> list[RateResult]:
    """Runs every method on every problem, spread over the cores if the rounds are many."""
    jobs = [
        RateJob(make, seed, clients, name, part)
        for seed in range(seeds)
        for make in PROBLEMS
        for name in (*EVERYWHERE, *(ON_SIGMOID if make is sigmoid_problem else ()))
        for part in ([(T,) for T in rounds] if name in METHODS else [tuple(rounds)])
    ]
    found: dict[tuple[int, str, str], list[Trace]] = {}
    with contextlib.ExitStack() as stack:
        results: Iterable[list[Trace]] = map(run_job, jobs)
        if sum(max(job.rounds) for job in jobs) > ONE_PROCESS:
            pool = multiprocessing.get_context("spawn").Pool(count_cores(), set_up_worker)
            results = stack.enter_context(pool).imap(run_job, jobs)
        for job, traces in zip(jobs, results, strict=True):
            problem = job.make(job.seed, job.clients)
            found.setdefault((job.seed, problem.name, job.method), []).extend(traces)
            tell(f"{problem.name}, seed {job.seed}: {job.method}, T = {max(job.rounds)}")
    return [
        summarise_traces(seed, problem, method, traces, clients) for (seed, problem, method), traces in found.items()
    ]


def set_up_worker() -> None:
    """Sets up one process among several: one thread, and its parent handles Ctrl-C."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_job(job: RateJob) -> list[Trace]:
    problem = job.make(job.seed, job.clients)
    lam = smallest_lambda(problem.L, problem.L_minus, job.clients)
    if job.method in METHODS:
        method = theorem_method(job.method, problem, lam, job.rounds[0])
    else:
        method = FedAvg(weighting="uniform") if job.method == "fedavg" else usual_method(problem)
    return list(trace_run(problem, method, lam, job.rounds, job.seed))


def summarise_traces(seed: int, name: str, method: str, traces: list[Trace], clients: int) -> RateResult:
    """A method's result on a problem, with the theorem's bound and conditions if it is about the method."""
    (problem,) = [found for make in PROBLEMS if (found := make(seed, clients)).name == name]
    if method not in METHODS:
        return RateResult(name, method, seed, traces)
    lam = smallest_lambda(problem.L, problem.L_minus, clients)
    traces = [replace(trace, bound=compute_bound(problem, lam, trace)) for trace in traces]
    return RateResult(name, method, seed, traces, lam, check_conditions(problem, lam, traces))


def theorem_method(name: str, problem: SmoothProblem, lam: float, T: int) -> Method:
    """FedPTR with the theorem's settings."""
    eta = 1 / (lam * math.sqrt(T))
    settings: dict[str, Any] = {
        "weighting": "uniform", "regulariser": "fixed", "lam": lam, "K": 1, "eta": eta, "dsa": False,
        "m": M, "warmup": "early", "H": 5, "R": 2, "ipc": 2, "mtt_every": 10,
        "mtt_max_loss": 1e9,  # the theorem allows any auxiliary data; σ_d says how good it is
        "beta": M / 2 * (1 / lam + eta), "lr_beta": 0.0, "lr_img": problem.lr_img,
    }  # fmt: skip
    return FedPTR(**settings) if name == "fedptr" else FedPTRS(**settings)


def usual_method(problem: SmoothProblem) -> FedPTR:
    """FedPTR as it is usually set: a small λ for each layer, five projection steps. Matching is as cheap as above."""
    return FedPTR(
        weighting="uniform", dsa=False, m=M, warmup="early", H=5, R=2, ipc=2, mtt_every=10, lr_img=problem.lr_img
    )


def trace_run(problem: SmoothProblem, method: Method, lam: float, rounds: Sequence[int], seed: int) -> Iterator[Trace]:
    """Runs max(rounds) rounds after warm-up, and yields what was observed until each of `rounds`."""
    local = Local(lr=1 / (lam + problem.L), momentum=0.0, batch=10**6, epochs=STEPS)
    how = Rounds(rounds=M + max(rounds), seed=seed)
    seen, w, start = Trace(0, gamma=bound_inexactness(problem, lam)), problem.task.init(), 0.0
    batches = [Batch(*data.take(torch.arange(len(data)))) for data in problem.clients]
    last: tuple[Tensor, Tensor] | None = None  # the model before w, and its gradients
    for run in federate(method, problem.task, problem.clients, rounds=how, local=local):
        if run.round > M:
            gradients = torch.stack([problem.task.grad(w, batch)[0] for batch in batches])
            if last is None:
                start = evaluate_objective(problem, w)
            else:
                seen.L = max(seen.L, float((gradients - last[1]).norm(dim=1).max() / (w - last[0]).norm()))
            trace_round(seen, problem, run, w, gradients)
            last = w, gradients
            if seen.T in rounds:
                yield replace(seen, delta=start - evaluate_objective(problem, run.w))
        w = run.w


def trace_round(seen: Trace, problem: SmoothProblem, run: Run, w: Tensor, gradients: Tensor) -> None:
    """Adds the round from w to run.w to what was observed."""
    mean = gradients.mean(0)
    G = float(mean.square().sum())
    seen.T, seen.G = seen.T + 1, min(seen.G, G)
    seen.B = max(seen.B, math.sqrt(float(gradients.square().sum(1).mean()) / G))
    seen.sigma_last = 0.0
    for owner in [run.server, *(run.clients[i] for i in run.record["cohort"])]:
        if "X" in owner:
            auxiliary, _ = problem.task.grad(w, Batch(owner["X"], owner["y"]))
            seen.sigma_last = max(seen.sigma_last, float((mean - auxiliary).norm()))
    seen.sigma = max(seen.sigma, seen.sigma_last)


def bound_inexactness(problem: SmoothProblem, lam: float) -> float:
    """A bound on γ, as h's curvature is between μ and λ + L, and the STEPS local steps have the rate 1/(λ + L)."""
    return float(((problem.L + problem.L_minus) / (lam + problem.L)) ** STEPS)


def evaluate_objective(problem: SmoothProblem, w: Tensor) -> float:
    """(1/N) Σ L_i(w)"""
    return sum(problem.task.evaluate(w, data, None)["loss"] for data in problem.clients) / len(problem.clients)
