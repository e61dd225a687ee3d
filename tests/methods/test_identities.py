"""Identities that hold exactly when the methods are right: FedAvg, FedProx, SCAFFOLD, FedDyn and FedDC."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from same_bits import same
from small_world import LOCAL, World, quick
from torch.func import functional_call

from fedptr.core.federation import Rounds, Run, federate, last_run
from fedptr.core.local_training import Local
from fedptr.core.randomness import Key
from fedptr.core.task import full_gradient
from fedptr.methods import FedAvg, FedDC, FedDyn, FedProx, Scaffold
from fedptr.methods.own_momentum import counted_steps

ONE_STEP = replace(LOCAL, batch=100)
PLAIN = replace(LOCAL, momentum=0.0)


def local_models(run: Run, method: FedAvg, world: World, server_before: torch.Tensor) -> list[torch.Tensor]:
    """r_i and h_i are w_i − x after a first visit, so the local models can be read off the client states."""
    entry = "r_i" if "r_i" in run.clients[0] else "h_i"
    return [run.clients[i][entry] + server_before for i in sorted(run.clients)]


# FedAvg -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "local", [LOCAL, replace(LOCAL, epochs=2, momentum=0.0, weight_decay=0.01, clip=0.5, decay=0.9)]
)
def test_one_client_is_central_sgd(local: Local) -> None:
    """Against torch.optim.SGD, re-created each round, on the same batches; bit for bit."""
    world = World(sizes=(11,))
    task, data = world.task, world.clients[0]
    ours = world.weights(FedAvg(), rounds=4, local=local)
    names = [layer.name for layer in task.layers]
    params = [p.clone().requires_grad_() for p in task.parameters(task.init()).values()]
    for t, expected in enumerate(ours):
        optimiser = torch.optim.SGD(params, local.lr * local.decay**t, local.momentum, weight_decay=0.0)
        order = Key(0).at("round", t, "client", 0)("batch-order")
        for _ in range(local.epochs):
            for index in torch.randperm(11, generator=order).split(local.batch):
                optimiser.zero_grad()
                logits = functional_call(task.model, dict(zip(names, params, strict=True)), (data.x[index],))
                F.cross_entropy(logits, data.y[index]).backward()
                for p in params:
                    p.grad += local.weight_decay * p.detach()
                if local.clip:
                    torch.nn.utils.clip_grad_norm_(params, local.clip)
                optimiser.step()
        flat = torch.cat([p.detach().reshape(-1) for p in params])
        if local.clip:  # the norm is summed in another order there
            torch.testing.assert_close(flat, expected, rtol=1e-5, atol=1e-7)
        else:
            assert torch.equal(flat, expected)


def test_full_batch_single_step_is_central_gradient_descent(world: World) -> None:
    ours = world.weights(FedAvg(), rounds=5, local=replace(ONE_STEP, momentum=0.0))
    x = torch.cat([c.x for c in world.clients])
    y = torch.cat([c.y for c in world.clients])
    w = world.task.init()
    for expected in ours:
        w = w.detach().requires_grad_()
        logits = functional_call(world.task.model, world.task.parameters(w), (x,))
        (g,) = torch.autograd.grad(F.cross_entropy(logits, y), w)
        w = w - LOCAL.lr * g
        torch.testing.assert_close(w.detach(), expected, rtol=1e-6, atol=1e-6)


def test_replies_are_folded_in_client_order(world: World) -> None:
    """Whatever order clients are visited in: the sum is by client id, so it is the same to the bit."""
    from fedptr.types import Reply

    g = torch.Generator().manual_seed(0)
    replies = [Reply(i, i + 1, {"w": torch.randn(50, generator=g)}) for i in range(9)]
    mean = FedAvg().mean(replies)
    expected = sum(r.state["w"].double() * r.size for r in replies) / 45
    torch.testing.assert_close(mean, expected.float(), rtol=1e-6, atol=1e-6)
    records = world.runs(FedAvg(), rounds=3, participation=0.5)
    assert all(run.record["cohort"] == sorted(run.record["cohort"]) for run in records)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_weights_are_normalised_over_the_cohort(weighting: str, world: World) -> None:
    """If every client returned the same model, the mean would be that model: nothing shrinks at low participation."""

    class Same(FedAvg):
        def start(self, msg, client):
            return torch.ones_like(msg["x"])

        def gradient(self, w, batch, msg, client, site):
            return torch.zeros_like(w), torch.tensor(0.0)

    for run in world.runs(Same(weighting=weighting), participation=0.5):
        torch.testing.assert_close(run.w, torch.ones_like(run.w), rtol=0, atol=1e-6)


# FedProx ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_fedprox_without_strength_is_fedavg(part: float, world: World) -> None:
    assert same(world.weights(FedAvg(), participation=part), world.weights(FedProx(mu=0.0), participation=part))


def test_fedprox_with_one_step_is_fedavg(world: World) -> None:
    """The penalty's gradient is zero where training starts."""
    assert same(world.weights(FedAvg(), local=ONE_STEP), world.weights(FedProx(mu=3.0), local=ONE_STEP))


def test_fedprox_keeps_clients_closer_the_stronger_it_is(world: World) -> None:
    x = world.task.init()
    moved = [float((world.weights(FedProx(mu=mu), rounds=1)[0] - x).norm()) for mu in (0.0, 0.5, 2.0, 8.0)]
    assert moved == sorted(moved, reverse=True)
    assert moved[0] > 1.2 * moved[-1]


def test_fedprox_pull_is_the_gradient_of_the_squared_penalty(world: World) -> None:
    x = world.task.init()
    w = (x + torch.linspace(-1, 1, len(x))).requires_grad_()
    (expected,) = torch.autograd.grad(0.5 * 0.7 * (w - x).square().sum(), w)
    torch.testing.assert_close(FedProx(mu=0.7).pull(w.detach(), {"x": x}, {}, None), expected)  # type: ignore[arg-type]


# SCAFFOLD -----------------------------------------------------------------------------------------------------------


def omega(world: World) -> list[float]:
    total = sum(map(len, world.clients))
    return [len(world.clients) * len(c) / total for c in world.clients]


@pytest.mark.parametrize("part", [1.0, 0.5])
@pytest.mark.parametrize("settings", [{}, {"option": "I"}, {"momentum": "local"}, {"server_lr": 0.7}])
def test_scaffold_c_is_the_mean_of_all_c_i(settings: dict, part: float, world: World) -> None:
    for run in world.runs(Scaffold(**settings), participation=part):
        mean = sum(state["c_i"] for state in run.clients.values()) / 4
        torch.testing.assert_close(run.server["c"], mean, rtol=1e-4, atol=1e-6)
    assert float(run.server["c"].norm()) > 0


def test_scaffold_weighted_c_is_the_weighted_mean(world: World) -> None:
    for run in world.runs(Scaffold(weighted_controls=True), participation=0.5):
        mean = sum(omega(world)[i] * state["c_i"] for i, state in run.clients.items()) / 4
        torch.testing.assert_close(run.server["c"], mean, rtol=1e-4, atol=1e-6)


def test_scaffold_first_round_is_fedavg_with_uniform_weights(world: World) -> None:
    (ours,) = world.weights(Scaffold(momentum="local"), rounds=1)
    (expected,) = world.weights(FedAvg(weighting="uniform"), rounds=1)
    assert torch.equal(ours, expected)


def test_scaffold_with_one_client_is_fedavg() -> None:
    world = World(sizes=(11,))
    assert same(world.weights(FedAvg()), world.weights(Scaffold(momentum="local")))


def test_scaffold_option_two_is_the_mean_gradient_of_the_steps(world: World) -> None:
    """With frozen parameters (tiny lr) the mean step is the full gradient, with and without momentum."""
    for momentum in (0.0, 0.5, 0.9):
        world64 = World(dtype=torch.float64)
        tiny = Local(lr=1e-9, batch=100, epochs=7)
        (run,) = world64.runs(Scaffold(momentum=momentum), rounds=1, local=tiny)
        for i, data in enumerate(world64.clients):
            expected = full_gradient(world64.task, world64.task.init(), data)
            torch.testing.assert_close(run.clients[i]["c_i"], expected, rtol=1e-4, atol=1e-6)


def test_scaffold_option_one_is_the_full_gradient_at_x(world: World) -> None:
    first, second = world.runs(Scaffold(option="I"), rounds=2)
    for i, data in enumerate(world.clients):
        torch.testing.assert_close(
            second.clients[i]["c_i"], full_gradient(world.task, first.w, data), rtol=1e-4, atol=1e-6
        )


def test_counted_steps() -> None:
    assert counted_steps(10, 0.0) == 10
    for K, rho in ((1, 0.5), (10, 0.5), (7, 0.9)):
        velocity = total = 0.0
        for _ in range(K):
            velocity = rho * velocity + 1
            total += velocity
        assert counted_steps(K, rho) == pytest.approx(total)


# FedDyn -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [1.0, 0.5])
@pytest.mark.parametrize("name", ["feddyn", "feddc"])
def test_server_dual_is_the_mean_of_all_clients(name: str, part: float, world: World) -> None:
    """FedDyn: h = mean ĝ_i (here as r = mean r_i). FedDC: mean drift, and c = mean c_i. Never-selected ones stay 0."""
    pairs = {"feddyn": [("r", "r_i")], "feddc": [("h", "h_i"), ("c", "c_i")]}[name]
    for run in world.runs(quick(name), participation=part):
        for kept, own in pairs:
            mean = sum(state[own] for state in run.clients.values()) / 4
            torch.testing.assert_close(run.server[kept], mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", [FedDyn(alpha=0.3), FedDC(alpha=0.3, momentum="local")])
def test_first_local_models_are_fedprox(method: FedAvg, world: World) -> None:
    x = world.task.init()
    (run,) = world.runs(method, rounds=1)

    class Keep(FedProx):
        def reply(self, w, msg, client, steps, site):
            return {"w": w}, {"r_i": w - msg["x"]}

    (prox,) = world.runs(Keep(mu=0.3), rounds=1)
    ours, expected = local_models(run, method, world, x), local_models(prox, method, world, x)
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


@pytest.mark.parametrize("alpha", [1e-6, 0.3])
@pytest.mark.parametrize("cls", [FedDyn, FedDC])
def test_first_server_step_doubles_the_mean(cls: type, alpha: float, world: World) -> None:
    """w¹ = 2·mean(w_i) − w⁰, whatever α: so FedDyn with α → 0 is not FedAvg."""
    x = world.task.init()
    (run,) = world.runs(cls(alpha=alpha), rounds=1)
    mean = sum(local_models(run, FedAvg(), world, x)) / 4
    torch.testing.assert_close(run.w, 2 * mean - x, rtol=1e-4, atol=1e-6)


def test_feddyn_state_of_a_client_that_was_never_selected_does_not_exist(world: World) -> None:
    (run,) = world.runs(FedDyn(), rounds=1, participation=0.5)
    assert set(run.clients) == set(run.record["cohort"])


# FedDC --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [1.0, 0.5])
@pytest.mark.parametrize("weighted", [False, True])
def test_feddc_without_control_variates_is_feddyn(part: float, weighted: bool, world: World) -> None:
    dc = FedDC(alpha=0.2, control=False, momentum="local", weighted=weighted)
    assert same(
        world.weights(FedDyn(alpha=0.2, weighted=weighted), participation=part), world.weights(dc, participation=part)
    )


def test_feddc_control_variates_change_the_result(world: World) -> None:
    on, off = (world.weights(FedDC(control=c), local=PLAIN) for c in (True, False))
    assert not torch.equal(on[-1], off[-1])


# Local training -----------------------------------------------------------------------------------------------------


def test_gamma_stops_when_the_gradient_is_small_enough(world: World) -> None:
    """γ-inexact solving: the achieved γ is at most γ, and one epoch less would not have been enough."""
    local = Local(lr=0.2, momentum=0.5, batch=100, gamma=0.5, max_epochs=400)
    (run,) = world.runs(FedProx(mu=1.0), rounds=1, local=local)
    for entry in run.record["clients"]:
        assert 0 < entry["gamma"] <= 0.5
        assert 1 < entry["steps"] < 400
    shorter = min(entry["steps"] for entry in run.record["clients"]) - 1
    fixed = replace(local, gamma=0.0, epochs=shorter, record_gamma=True)
    (before,) = world.runs(FedProx(mu=1.0), rounds=1, local=fixed)
    assert all(entry["gamma"] > 0.5 for entry in before.record["clients"])


def test_gamma_is_capped(world: World) -> None:
    (run,) = world.runs(FedAvg(), rounds=1, local=replace(LOCAL, gamma=1e-6, max_epochs=3, batch=100))
    assert all(entry["steps"] == 3 and entry["gamma"] > 1e-6 for entry in run.record["clients"])


def test_recording_gamma_changes_nothing(world: World) -> None:
    assert same(world.weights(FedAvg()), world.weights(FedAvg(), local=replace(LOCAL, record_gamma=True)))


def test_the_whole_gradient_is_clipped(world: World) -> None:
    """Loss, pull and weight decay together: with a tiny clip every step has exactly that length."""
    local = Local(lr=1.0, momentum=0.0, batch=100, epochs=3, clip=1e-3, weight_decay=0.1)
    single = World(sizes=(9,))
    x = single.task.init()
    run = last_run(federate(FedProx(mu=5.0), single.task, single.clients, None, Rounds(rounds=1), local))
    assert 0 < float((run.w - x).norm()) <= 3e-3
    for steps in (1, 2):
        a = last_run(
            federate(FedProx(mu=5.0), single.task, single.clients, None, Rounds(rounds=1), replace(local, epochs=steps))
        )
        b = last_run(
            federate(
                FedProx(mu=5.0), single.task, single.clients, None, Rounds(rounds=1), replace(local, epochs=steps + 1)
            )
        )
        assert float((a.w - b.w).norm()) == pytest.approx(1e-3, rel=1e-2)


def test_learning_rate_decays_by_round(world: World) -> None:
    local = Local(lr=1e-3, decay=0.5, batch=100, momentum=0.0)
    ws = [world.task.init(), *world.weights(FedAvg(), rounds=3, local=local)]
    steps = [float((b - a).norm()) for a, b in itertools.pairwise(ws)]
    assert steps[1] / steps[0] == pytest.approx(0.5, rel=0.02)
    assert steps[2] / steps[0] == pytest.approx(0.25, rel=0.02)
