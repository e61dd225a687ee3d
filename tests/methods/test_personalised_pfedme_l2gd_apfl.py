"""pFedMe, L2GD and APFL: their closed forms on quadratics, the methods that they are at the ends of their settings."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from same_bits import same
from small_world import LOCAL, World
from torch import Tensor

from fedptr.core.federation import Rounds, Run, federate, last_run, site_of_client
from fedptr.core.local_training import Local, local_sgd
from fedptr.core.method import Method, Site
from fedptr.core.randomness import Key
from fedptr.errors import UserError
from fedptr.methods import APFL, L2GD, FedAvg, PFedMe, find_method, make_method
from fedptr.methods.quadratic_limits import fedavg_limit, weighted_centre
from fedptr.testing import check_method
from fedptr.theory.oracle import QuadraticProblem, make_problem
from fedptr.theory.personal_oracle import client_quadratics, measure_limit_errors, personal_models
from fedptr.types import Batch, State

FEW = Local(lr=0.3, momentum=0.0, batch=100, epochs=3)
ONE = replace(FEW, epochs=1)
PLAIN = replace(LOCAL, momentum=0.0)


def small_problem() -> QuadraticProblem:
    return make_problem(0, clients=4, d=4)


def local_steps(problem: QuadraticProblem, start: Tensor, local: Local, seed: int, t: int, i: int) -> Tensor:
    """A client's training alone in round t."""
    n = len(problem.clients)
    server = Site(problem.task, local, Key(seed), t, n, numbers=n)
    site = site_of_client(server, seed, i, problem.clients[i], len(problem.clients[i]), 1.0)
    return local_sgd(start, problem.task.grad, site.samples, site, {}).w


# Closed forms -------------------------------------------------------------------------------------------------------

LIMITS = [
    *(
        (PFedMe(weighting="uniform", lam=1.5, k=k, gamma=0.2, beta=beta, reset=reset, theta_decay=decay), local, rounds)
        for k, beta, reset, decay, local, rounds in (
            (1, 1.0, True, 0.0, FEW, 100),
            (5, 1.0, True, 0.0, FEW, 60),
            (5, 0.5, True, 0.0, ONE, 250),
            (3, 1.0, False, 0.0, FEW, 60),
            (25, 1.0, False, 0.0, FEW, 60),
            (3, 1.5, False, 0.1, FEW, 60),
        )
    ),
    *(
        (APFL(weighting="uniform", alpha=a, mix_with=mix), FEW, rounds)
        for a, rounds in ((0.3, 400), (0.5, 150), (1.0, 100))
        for mix in ("local", "global")
    ),
    (APFL(weighting="uniform", alpha=0.0), FEW, 50),
    (APFL(weighting="uniform", alpha=0.5), ONE, 450),
]


@pytest.mark.parametrize(("method", "local", "rounds"), LIMITS)
def test_ends_where_theory_says(method: Method, local: Local, rounds: int) -> None:
    errors = measure_limit_errors(method, small_problem(), rounds, local)
    assert errors.x < 1e-10
    assert errors.personal < 1e-10


@pytest.mark.parametrize("k", [1, 5])
def test_pfedme_with_reset_ends_at_the_published_form(k: int) -> None:
    """μ(I − (I − ηQ)^R), written down again; with many inner steps a warm θ ends there too."""
    (A, c), eye, method = client_quadratics(small_problem()), torch.eye(4).double(), PFedMe(lam=1.5, k=k, gamma=0.2)
    tied = A + 1.5 * eye
    Q = 1.5 * (eye - torch.linalg.matrix_power(eye - 0.2 * tied, k)) @ torch.linalg.inv(tied) @ A
    w = weighted_centre(eye - torch.linalg.matrix_power(eye - 0.1 * Q, 7), c)
    found = replace(method, reset=True).quadratic_limit(A, c, 7, 0.1)
    torch.testing.assert_close(found[0], w, rtol=1e-10, atol=1e-10)
    assert float((method.quadratic_limit(A, c, 7, 0.1)[0] - w).norm()) > 1e-4  # warm θ is another point
    many = [replace(method, k=200, reset=reset).quadratic_limit(A, c, 7, 0.1) for reset in (True, False)]
    for warm, cold in zip(*many, strict=True):
        torch.testing.assert_close(warm, cold, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("lam", [0.2, 1.5])
def test_l2gd_and_pfedme_share_an_optimum(lam: float) -> None:
    """With one local step and exact inner solutions; θ_i = (A + λ)⁻¹(Ac + λx)."""
    A, c = client_quadratics(small_problem())
    ours = L2GD(lam=lam).quadratic_limit(A, c, 1, 0.1)
    other = PFedMe(lam=lam, k=400, gamma=0.2).quadratic_limit(A, c, 1, 0.1)
    for a, b in zip(ours, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours[1].mean(0), ours[0])
    gradients = torch.einsum("nij,nj->ni", A, ours[1] - c) + lam * (ours[1] - ours[0])
    assert float(gradients.abs().max()) < 1e-12  # of Σ L_i + λ/2 Σ ‖x_i − x̄‖²


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_apfl_with_one_step_ends_at_the_clients_own_minima(alpha: float) -> None:
    """Whatever α is, mixed with the global model; with the client's y it is one step of y away."""
    A, c = client_quadratics(small_problem())
    x, own = APFL(alpha=alpha, mix_with="global").quadratic_limit(A, c, 1, 0.3)
    torch.testing.assert_close(own, c, rtol=1e-10, atol=1e-10)
    step = (1 - alpha) * 0.3 * torch.einsum("nij,nj->ni", A, x - c)
    torch.testing.assert_close(APFL(alpha=alpha).quadratic_limit(A, c, 1, 0.3)[1], c - step, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(x, fedavg_limit(A, c, 1, 0.3))


# L2GD's coin --------------------------------------------------------------------------------------------------------


def coins(p: float, rounds: int, seed: int = 0) -> list[bool]:
    """Whether models are drawn together, written down again."""
    draws = [float(torch.rand((), generator=Key(seed).at("round", t)("coin"))) for t in range(rounds)]
    return [t > 0 and draw < p for t, draw in enumerate(draws)]


@pytest.mark.parametrize(("p", "lam"), [(0.4, 0.5), (0.5, 1.0), (0.7, 0.2)])
@pytest.mark.parametrize("local", [ONE, FEW], ids=["one step", "three"])
def test_l2gds_expected_step_is_zero_at_its_limit(p: float, lam: float, local: Local) -> None:
    problem, method = small_problem(), L2GD(lam=lam, p=p)
    A, c = client_quadratics(problem)
    x, own = method.quadratic_limit(A, c, local.epochs, local.lr)
    flips = coins(p, 50)
    rounds = {coin: next(t for t in range(2, 50) if flips[t] == coin) for coin in (False, True)}
    for i, x_i in enumerate(own):
        moves = {}
        for coin, t in rounds.items():
            server = Site(problem.task, local, Key(0), t, len(own), numbers=len(own))
            site = site_of_client(server, 0, i, problem.clients[i], len(problem.clients[i]), 1.0)
            client: State = {"x_i": x_i, "steps": torch.tensor(local.epochs)}
            moves[coin] = method.train({"x": x} if coin else {}, client, site, {})[1]["x_i"] - x_i
        assert float(moves[True].norm()) > 1e-2  # neither is zero alone
        assert float(((1 - p) * moves[False] + p * moves[True]).norm()) < 1e-12


def test_l2gds_average_over_rounds_is_its_limit() -> None:
    problem, method, local = small_problem(), L2GD(lam=1.0, p=0.5), replace(ONE, lr=0.05)
    A, c = client_quadratics(problem)
    x, own = method.quadratic_limit(A, c, 1, local.lr)
    runs = federate(method, problem.task, problem.clients, rounds=Rounds(rounds=3000), local=local)
    total, last = torch.zeros_like(own), own
    for run in runs:
        if run.round > 500:
            last = personal_models(method, run, problem, local)
            total += last / 2500
    averaged, single = (float((found - own).norm() / own.norm()) for found in (total, last))
    assert averaged < 0.02
    assert single > 2 * averaged  # it hovers
    assert float((x - c.mean(0)).norm()) > 0.1


def test_l2gd_sends_models_only_where_the_coin_changes(world: World) -> None:
    rounds, model = 30, 4 * len(world.task.init())
    runs = world.runs(L2GD(p=0.4), rounds=rounds)
    flips = coins(0.4, rounds + 1)
    starts = [t for t in range(1, rounds) if flips[t] and not flips[t - 1]]
    ends = [t for t in range(rounds) if flips[t + 1] and not flips[t]]
    assert len(starts) > 3
    assert any(flips[t] and flips[t - 1] for t in range(1, rounds))
    clients = len(world.clients)
    for t, run in enumerate(runs):
        assert run.record["bytes_down"] == clients * model * (t == 0 or t in starts)
        assert run.record["bytes_up"] == clients * model * (t in ends)
        assert all((entry["steps"] == 0) == flips[t] for entry in run.record["clients"])
    assert torch.equal(runs[starts[0] - 2].w, world.task.init())  # the global model stays until there is a mean


def test_l2gd_draws_models_together_by_its_factor() -> None:
    """θ = K·lr·(1−p)·λ/p, also where a mean follows a mean and nothing is sent."""
    problem, method, local = small_problem(), L2GD(lam=0.5, p=0.5), FEW
    runs = list(federate(method, problem.task, problem.clients, rounds=Rounds(rounds=25), local=local))
    flips, theta = coins(0.5, 25), 3 * 0.3 * 0.5
    models = [personal_models(method, run, problem, local) for run in runs]
    seen = set()
    for t in range(1, 25):
        before, after = models[t - 1], models[t]
        if flips[t]:
            seen.add(flips[t - 1])
            torch.testing.assert_close(after, before - theta * (before - before.mean(0)), rtol=1e-12, atol=1e-12)
        else:
            alone = [local_steps(problem, x_i, local, 0, t, i) for i, x_i in enumerate(before)]
            assert torch.equal(after, torch.stack(alone))
    assert seen == {True, False}


def test_l2gd_counts_steps_with_momentum_as_they_act() -> None:
    """K = 3 steps with ρ = 0.5 along one gradient lead 1 + 1.5 + 1.75 times as far as a plain step."""
    problem, method = small_problem(), L2GD(lam=0.5, p=0.5, momentum=0.5)
    local = method.settings(FEW)
    t = next(t for t in range(1, 50) if coins(0.5, 50)[t])
    site = site_of_client(Site(problem.task, local, Key(0), t, 4, numbers=4), 0, 0, problem.clients[0], 1, 1.0)
    x_i, mean = torch.ones(4).double(), torch.zeros(4).double()
    _, client = method.train({"x": mean}, {"x_i": x_i, "steps": torch.tensor(3)}, site, {})
    torch.testing.assert_close(client["x_i"], (1 - 4.25 * 0.3 * 0.5) * x_i)


def test_l2gd_without_a_tie_trains_alone() -> None:
    problem = small_problem()
    run = last_run(
        federate(L2GD(lam=0.0, p=0.4), problem.task, problem.clients, rounds=Rounds(rounds=12, seed=3), local=FEW)
    )
    flips = coins(0.4, 12, seed=3)
    assert 2 < sum(flips) < 10
    for i in range(4):
        x_i = problem.task.init()
        for t in (t for t in range(12) if not flips[t]):
            x_i = local_steps(problem, x_i, FEW, 3, t, i)
        assert torch.equal(run.clients[i]["x_i"], x_i)


def test_l2gd_refuses_a_factor_that_passes_the_mean(world: World) -> None:
    with pytest.raises(UserError, match=r"^l2gd: 2 local steps .* lower method.lam or local.lr, or raise method.p$"):
        world.runs(L2GD(lam=100.0))
    with pytest.raises(UserError, match=r"set run.participation = 1"):
        world.runs(L2GD(), participation=0.5)
    with pytest.raises(UserError, match="l2sgd is called l2gd here"):
        find_method("l2sgd")


# pFedMe and APFL ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True])
def test_pfedmes_rule(reset: bool, world: World) -> None:
    """A round on one batch a client, written down again: θ_i is kept, y is sent."""
    local = replace(PLAIN, batch=100, epochs=2)
    (run,) = world.runs(PFedMe(weighting="uniform", reset=reset, beta=0.7, theta_decay=0.01), rounds=1, local=local)
    ends = []
    for i, data in enumerate(world.clients):
        y = theta = x = world.task.init()
        batch = Batch(*data.take(torch.arange(len(data))))
        for _ in range(2):
            theta = y if reset else theta
            for _ in range(5):
                g, _ = world.task.grad(theta, batch)
                theta = theta - 0.09 * (g + 15 * (theta - y) + 0.01 * theta)
            y = y - local.lr * 15 * (y - theta)
        torch.testing.assert_close(run.clients[i]["theta"], theta, rtol=1e-4, atol=1e-6)
        assert not torch.allclose(theta, y, atol=1e-4)
        ends.append(y)
    torch.testing.assert_close(run.w, 0.3 * x + 0.7 * sum(ends) / 4, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("part", [1.0, 0.5])
@pytest.mark.parametrize("settings", [{}, {"alpha": 0.0}, {"adaptive": True}, {"mix_with": "global"}], ids=str)
def test_apfls_global_branch_is_fedavg(settings: dict[str, object], part: float, world: World) -> None:
    local = replace(LOCAL, clip=1.0, weight_decay=0.01)
    ours = world.weights(make_method("apfl", **settings), participation=part, local=local)
    assert same(world.weights(FedAvg(), participation=part, local=local), ours)


def test_apfl_is_training_alone_with_alpha_one_and_y_with_alpha_zero() -> None:
    problem, local = small_problem(), replace(FEW, momentum=0.5)
    runs = {
        alpha: last_run(
            federate(APFL(alpha=alpha), problem.task, problem.clients, rounds=Rounds(rounds=5), local=local)
        )
        for alpha in (0.0, 1.0)
    }
    before = last_run(federate(FedAvg(), problem.task, problem.clients, rounds=Rounds(rounds=4), local=local)).w
    for i in range(4):
        v = problem.task.init()
        for t in range(5):
            v = local_steps(problem, v, local, 0, t, i)
        alone, fedavg = (used_model(APFL(alpha=alpha), runs[alpha], i) for alpha in (1.0, 0.0))
        assert torch.equal(alone, v)
        assert torch.equal(fedavg, local_steps(problem, before, local, 0, 4, i))


def used_model(method: Method, run: Run, i: int) -> Tensor:
    return personal_models(method, run, small_problem())[i]


def test_apfls_adaptive_alpha_follows_its_rule() -> None:
    """One full-batch step a round, written down again."""
    problem, method, gentle = small_problem(), APFL(adaptive=True, weighting="uniform"), replace(ONE, lr=0.02)
    A, c = client_quadratics(problem)
    y = v = problem.task.init().expand(4, -1)
    alpha = torch.full((4, 1), 0.5, dtype=torch.float64)
    for run in federate(method, problem.task, problem.clients, rounds=Rounds(rounds=6), local=gentle):
        g = torch.einsum("nij,nj->ni", A, alpha * v + (1 - alpha) * y - c)
        slope = ((v - y) * g).sum(1, keepdim=True)
        v, moved = v - 0.02 * alpha * g, y - 0.02 * torch.einsum("nij,nj->ni", A, y - c)
        alpha = (alpha - 0.02 * slope).clamp(0, 1)
        torch.testing.assert_close(torch.stack([run.clients[i]["alpha"] for i in range(4)])[:, None], alpha)
        torch.testing.assert_close(personal_models(method, run, problem, gentle), alpha * v + (1 - alpha) * moved)
        y = moved.mean(0).expand(4, -1)
        logged = [entry["alpha"] for entry in run.record["clients"]]
        assert logged == pytest.approx(alpha.flatten().tolist())
    assert float(alpha.max() - alpha.min()) > 0.01


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.9])
def test_apfls_adaptive_alpha_rests_anywhere(alpha: float) -> None:
    """With one step the mixture's gradient is zero at c_i, whatever α is: on quadratics α has no optimum to reach."""
    problem, method = small_problem(), APFL(adaptive=True, mix_with="global")
    A, c = client_quadratics(problem)
    x = fedavg_limit(A, c, 1, ONE.lr)
    for i, data in enumerate(problem.clients):
        site = site_of_client(Site(problem.task, ONE, Key(0), 1, 4, numbers=4), 0, i, data, len(data), 1.0)
        client: State = {"v": (c[i] - (1 - alpha) * x) / alpha, "alpha": torch.tensor(alpha, dtype=torch.float64)}
        trained, kept = method.train({"x": x}, client, site, {})
        torch.testing.assert_close(kept, client, rtol=1e-10, atol=1e-10)
        assert float((trained.w - x).norm()) > 1e-2  # y does move


@pytest.mark.parametrize(
    "method",
    [APFL(adaptive=True), APFL(mix_with="global"), PFedMe(reset=True, beta=0.5), L2GD(p=0.5), L2GD(momentum=0.5)],
    ids=str,
)
def test_laws_with_other_settings(method: Method) -> None:
    check_method(method)


@pytest.mark.parametrize("name", ["apfl", "pfedme"])
def test_measuring_gamma_changes_nothing(name: str, world: World) -> None:
    """A step that trains a second model must not do so when it is only measured."""
    plain, measured = (world.runs(make_method(name), local=replace(LOCAL, record_gamma=on)) for on in (False, True))
    assert all(math.isfinite(entry["gamma"]) for entry in measured[-1].record["clients"])
    for i in range(4):
        for entry, value in plain[-1].clients[i].items():
            assert torch.equal(value, measured[-1].clients[i][entry])
