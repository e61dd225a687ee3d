"""The theory check: its problems have the constants they claim, its bound is one, and it tells what does not hold."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from fedptr.cli.main import main
from fedptr.core.federation import Rounds, federate
from fedptr.core.local_training import Local
from fedptr.core.samples import Samples
from fedptr.core.task import Differentiable, full_gradient
from fedptr.errors import UserError
from fedptr.theory import check_rates, theorem
from fedptr.theory.problems import (
    PROBLEMS,
    SmoothProblem,
    different_optima_problem,
    shared_optimum_problem,
    sigmoid_problem,
)
from fedptr.types import Batch

N = 8
ROUNDS = (8, 16, 32)
Capture = pytest.CaptureFixture[str]
MADE = pytest.mark.parametrize("make", PROBLEMS, ids=lambda make: make.__name__)


def whole(data: Samples) -> Batch:
    return Batch(*data.take(torch.arange(len(data))))


def places(problem: SmoothProblem) -> list[Tensor]:
    g = torch.Generator().manual_seed(5)
    start = problem.task.init()
    return [scale * torch.randn(len(start), generator=g, dtype=start.dtype) + start for scale in (0, 0.1, 1, 3, 10)]


@MADE
@pytest.mark.parametrize("seed", [0, 1])
def test_the_constants_are_right(make: Callable[[int, int], SmoothProblem], seed: int) -> None:
    """Every client's Hessian lies between −L₋ and L, and nowhere are clients less alike than B."""
    problem = make(seed, N)
    extremes = []
    for w in places(problem):
        for data in problem.clients:
            H = torch.autograd.functional.hessian(lambda v, data=data: problem.task.loss(v, whole(data)), w)
            extremes += torch.linalg.eigvalsh(H).tolist()
        gradients = torch.stack([full_gradient(problem.task, w, data) for data in problem.clients])
        ratio = gradients.square().sum(1).mean() / gradients.mean(0).square().sum()
        assert math.sqrt(float(ratio)) <= problem.B * (1 + 1e-9)
    assert max(extremes) <= problem.L * (1 + 1e-9)
    assert min(extremes) >= -problem.L_minus - 1e-12
    assert max(extremes) > problem.L / 4, "L is not just anything large"
    if make is sigmoid_problem:
        assert min(extremes) < -problem.L_minus / 10, "it should not be convex"


def test_clients_that_differ_have_no_b() -> None:
    """At the common optimum every client is at rest if they share it, and none is if they do not."""
    for make, still in ((shared_optimum_problem, True), (different_optima_problem, False)):
        problem = make(0, N)
        w = problem.task.init()

        def mean(v: Tensor, problem: SmoothProblem = problem) -> Tensor:
            return torch.stack([problem.task.loss(v, whole(data)) for data in problem.clients]).mean()

        H = torch.autograd.functional.hessian(mean, w)
        w = w - torch.linalg.solve(H, torch.stack([full_gradient(problem.task, w, d) for d in problem.clients]).mean(0))
        gradients = torch.stack([full_gradient(problem.task, w, data) for data in problem.clients])
        assert float(gradients.mean(0).norm()) < 1e-10
        assert (float(gradients.norm(dim=1).max()) < 1e-9) == still


def test_the_closed_form_gradient_is_the_gradient() -> None:
    problem = sigmoid_problem(1, N)
    for w in places(problem):
        batch = whole(problem.clients[0])
        ours, loss = problem.task.grad(w, batch)
        expected, other = Differentiable.grad(problem.task, w, batch)  # type: ignore[arg-type]
        torch.testing.assert_close(ours, expected)
        torch.testing.assert_close(loss, other)


def test_the_printed_condition() -> None:
    """No λ will do for six clients; for more, the one that is used is hardly larger than it must be."""
    with pytest.raises(UserError, match="no λ with 6 clients"):
        theorem.smallest_lambda(1.0, 0.0, 6)
    for L_minus in (0.0, 1.0):
        lam = theorem.smallest_lambda(1.0, L_minus, 16)
        assert (
            theorem.printed_inequality(1.0, L_minus, lam, 16)
            >= 0
            > theorem.printed_inequality(1.0, L_minus, lam * 0.97, 16)
        )
        assert 50 < lam < 80


@MADE
def test_the_auxiliary_dataset_is_really_learned(make: Callable[[int, int], SmoothProblem]) -> None:
    problem = make(0, N)
    lam = theorem.smallest_lambda(problem.L, problem.L_minus, N)
    method = check_rates.theorem_method("fedptr", problem, lam, 16)
    local = Local(lr=1 / (lam + problem.L), momentum=0.0, batch=10**6, epochs=check_rates.STEPS, record_gamma=True)
    runs = list(federate(method, problem.task, problem.clients, rounds=Rounds(rounds=13), local=local))
    matched = [c for run in runs for c in run.record["clients"] if "match_before" in c]
    assert len(matched) == 2 * N, "in rounds 3 and 13"
    assert all(c["match_after"] < c["match_before"] for c in matched)
    most = check_rates.bound_inexactness(problem, lam)
    achieved = [c["gamma"] for run in runs[check_rates.M :] for c in run.record["clients"]]
    assert most / 1000 < max(achieved) <= most < 1e-3, "γ is what is said of it"
    assert not torch.equal(runs[0].clients[0]["X"], runs[-1].clients[0]["X"])


@pytest.fixture(scope="module")
def results() -> list[theorem.RateResult]:
    return check_rates.check_rates(ROUNDS, 1, N, tell=lambda words: None)


def held(results: list[theorem.RateResult], method: str, what: str) -> dict[str, bool]:
    return {r.problem.split()[-1]: r.conditions[what].startswith("yes") for r in results if r.method == method}


@pytest.mark.parametrize("method", ["fedptr"])
def test_the_theorem_holds_where_its_conditions_do(results: list[theorem.RateResult], method: str) -> None:
    for what in ("L-smooth", "μ = λ − L₋ > 0", "η ≤ 1/(2λ)", "γ small", "the printed inequality"):
        assert all(held(results, method, what).values()), what
    for problem, answer in held(results, method, "B-dissimilar").items():
        assert answer == (problem != "optima")
    for problem, answer in held(results, method, "below the proof's bound").items():
        assert answer or problem == "optima"


def test_what_is_measured_is_what_the_engine_did(results: list[theorem.RateResult]) -> None:
    """G of FedAvg, by hand: three steps on each client, the mean, and again."""
    result = next(r for r in results if r.method == "fedavg")
    problem = shared_optimum_problem(0, N)
    lr = 1 / (theorem.smallest_lambda(problem.L, problem.L_minus, N) + problem.L)
    w, G = problem.task.init(), []
    for _ in range(check_rates.M + ROUNDS[-1]):
        G.append(
            float(torch.stack([full_gradient(problem.task, w, d) for d in problem.clients]).mean(0).square().sum())
        )
        ends = []
        for data in problem.clients:
            v = w
            for _ in range(check_rates.STEPS):
                v = v - lr * full_gradient(problem.task, v, data)
            ends.append(v)
        w = torch.stack(ends).mean(0)
    assert [trace.G for trace in result.traces] == pytest.approx(
        [min(G[check_rates.M : check_rates.M + T]) for T in ROUNDS]
    )


def test_every_method_makes_progress_in_its_own_way(results: list[theorem.RateResult]) -> None:
    for problem in {r.problem for r in results}:
        ends = {r.method: r.traces[-1].G for r in results if r.problem == problem}
        assert len(set(ends.values())) == len(ends) >= 2
    assert all(r.slope() < 0 for r in results)


def test_a_bound_needs_its_conditions() -> None:
    """Less alike clients, a coarser solution or a longer step loosen it until there is none."""
    problem = shared_optimum_problem(0, N)
    lam = theorem.smallest_lambda(problem.L, problem.L_minus, N)
    seen = theorem.Trace(100, G=1.0, delta=1.0, L=problem.L, B=1.1, sigma=0.1, gamma=1e-3)
    bound = theorem.compute_bound(problem, lam, seen)
    assert 2 * lam / 100 < bound < 3 * lam / 100, "2λΔ/T and a little"
    for worse in ({"B": 10.0}, {"gamma": 0.1}, {"sigma": 1.0}, {"delta": 2.0}, {"T": 50}):
        assert bound < theorem.compute_bound(problem, lam, replace(seen, **worse)) < math.inf
    for none in ({"B": 1e4}, {"gamma": 1.0}, {"T": 4}):
        assert theorem.compute_bound(problem, lam, replace(seen, **none)) == math.inf


def test_without_a_bound_the_answer_is_neither_yes_nor_no() -> None:
    problem = shared_optimum_problem(0, N)
    lam = theorem.smallest_lambda(problem.L, problem.L_minus, N)
    seen = theorem.Trace(100, G=1.0, delta=1.0, L=problem.L, B=1.1, sigma=0.1, gamma=1e-3)
    few, many = replace(seen, T=5, bound=math.inf), replace(seen, bound=2.0)

    def answer(*traces: theorem.Trace) -> str:
        return theorem.check_conditions(problem, lam, traces)["below the proof's bound"]

    assert answer(few, many) == "no bound at T = 5: min ‖∇L‖² is 0.5 of it at the other T"
    assert answer(few) == "no bound at T = 5: the proof divides by zero or less there"
    assert answer(many) == "yes: min ‖∇L‖² is 0.5 of it"
    assert answer(few, replace(many, bound=0.5)).startswith("no: min ‖∇L‖² is 2 of it")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["theory", "--rounds", "8,4", "--seeds", "2"]) == 0
    out = capsys.readouterr().out
    assert not re.search(r"\w…", out), "something is cut off"
    text = " ".join(re.sub("[│┃|]", " ", out).split())
    for words in ("T = 4 8 slope", "mean of 2 seeds", "B-dissimilar", "no B exists", "fedptr, usual settings"):
        assert words in text
    lines = json.loads((tmp_path / "runs/theory/theory.json").read_text(encoding="utf-8"))
    assert len(lines) == 2 * (2 + 2 + 3)
    for line in lines:
        G = [trace["G"] for trace in line["traces"]]
        assert line["slope"] == pytest.approx(math.log(G[1] / G[0]) / math.log(2))
    with Image.open(tmp_path / "runs/theory/theory.png") as image:
        assert image.width > 1000
    assert main(["theory", "--rounds", "8,4", "--out", "runs/theory"]) == 2, "it is not empty"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--rounds", "25,many"], "--rounds '25,many' must be whole numbers with commas between them"),
        (["--rounds", "25"], "must be at least two different numbers"),
        (["--rounds", "50,50"], "must be at least two different numbers"),
        (["--rounds", "0,50"], "each 2 or more"),
        (["--seeds", "0"], "--seeds must be at least 1, not 0"),
    ],
)
def test_mistakes(
    argv: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["theory", *argv]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
