"""Ditto, Per-FedAvg and the controls `local` and `finetune`: identities, closed forms, rounds made by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from same_bits import equal, same
from small_world import LOCAL, QUICK, World
from torch import Tensor

from fedptr.core.federation import Rounds, Run, federate, site_of_client
from fedptr.core.local_training import draw_batches
from fedptr.core.method import Method, Site
from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import full_gradient
from fedptr.errors import ClientError, UserError
from fedptr.methods import Ditto, FedAvg, FedPTR, FineTune, LocalOnly, PerFedAvg, find_method, make_method
from fedptr.methods.ditto import put_aside
from fedptr.testing import check_method
from fedptr.theory.oracle import LOCAL as FULL_BATCH
from fedptr.theory.oracle import make_problem
from fedptr.theory.personal_oracle import client_quadratics, measure_limit_errors
from fedptr.types import Batch

PARTS = pytest.mark.parametrize("part", [1.0, 0.5])
PLAIN = replace(LOCAL, batch=100, momentum=0.0, epochs=3)  # three full-batch steps
UNIFORM = {"weighting": "uniform"}


def site_at(world: World, i: int, t: int = 0, seed: int = 0) -> Site:
    server = Site(world.task, LOCAL, Key(seed), t, len(world.clients), numbers=len(world.clients))
    return site_of_client(server, seed, i, world.clients[i], len(world.clients[i]), 1.0)


def own_models(run: Run, entry: str) -> list[Tensor]:
    return [run.clients[i][entry] for i in sorted(run.clients)]


# Closed forms -------------------------------------------------------------------------------------------------------

LIMITS = [
    LocalOnly(**UNIFORM),
    *(Ditto(lam=lam, **UNIFORM) for lam in (0.0, 0.1, 1.0, 5.0)),
    *(FineTune(epochs=epochs, lr=lr, **UNIFORM) for epochs, lr in ((0, "local"), (1, "local"), (4, 0.05))),
    *(PerFedAvg(variant=variant, a=a, **UNIFORM) for variant in ("FO", "HF", "exact") for a in (0.0, 0.05, 0.2)),
    PerFedAvg(variant="HF", delta=10.0, a=0.2, **UNIFORM),
]
STEPS = 240  # the least curvature is about 0.5, of which a step of 0.2 leaves 0.9: after these steps 1e-11


@pytest.mark.parametrize("K", [1, 5, 12])
@pytest.mark.parametrize("method", LIMITS, ids=str)
def test_models_end_at_the_closed_form(method: Method, K: int) -> None:
    small = make_problem(0, clients=4, d=4)
    errors = measure_limit_errors(method, small, STEPS // K, replace(FULL_BATCH, lr=0.2, epochs=K))
    assert max(errors) < 1e-10


def test_the_closed_forms_differ() -> None:
    """Or reaching them would say nothing: neither from each other, nor from where FedAvg and each client alone end."""
    A, c = client_quadratics(make_problem(0))
    methods = [LocalOnly(), FineTune(), Ditto(), *(PerFedAvg(variant=v, a=0.2) for v in ("FO", "HF"))]
    ends = [method.quadratic_limit(A, c, 5, 0.1) for method in methods]
    for one, other in itertools.combinations([end[1] for end in ends if end is not None], 2):
        assert float((one - other).norm()) > 1e-2


def test_one_local_step_of_hf_and_exact_minimises_the_objective_after_adaptation() -> None:
    """Σ_i L_i(w − a∇L_i(w)) has no gradient where they end with K = 1; it has where FO ends."""
    A, c = client_quadratics(make_problem(0))
    norms = []
    for variant in ("FO", "HF", "exact"):
        limit = PerFedAvg(variant=variant, a=0.2).quadratic_limit(A, c, 1, 0.1)[0]
        assert limit is not None
        w = limit.requires_grad_()
        adapted = w - 0.2 * torch.einsum("nij,nj->ni", A, w - c)
        loss = 0.5 * torch.einsum("ni,nij,nj->", adapted - c, A, adapted - c)
        norms.append(float(torch.autograd.grad(loss, w)[0].norm()))
    assert norms[0] > 1e-2
    assert max(norms[1:]) < 1e-10


# The global branch --------------------------------------------------------------------------------------------------


@PARTS
@pytest.mark.parametrize(
    "method",
    [Ditto(), Ditto(lam=0.0), Ditto(dynamic=True), FineTune(), FineTune(epochs=0), PerFedAvg("samples", "FO", 0.0)],
)
def test_the_global_model_is_fedavgs(method: FedAvg, part: float, world: World) -> None:
    assert same(world.weights(FedAvg(), participation=part), world.weights(method, participation=part))


def test_evaluating_the_clients_changes_no_round(world: World) -> None:
    for method in (Ditto(), FineTune(), PerFedAvg(), LocalOnly()):
        plain = world.runs(method, rounds=3)[-1]
        *_, tested = federate(
            method, world.task, world.clients, world.test, Rounds(rounds=3), LOCAL, client_tests=world.clients
        )
        assert equal(plain.server, tested.server)
        assert equal(dict(plain.clients), dict(tested.clients))
        assert "personal_accuracy" in tested.record


# local --------------------------------------------------------------------------------------------------------------


@PARTS
def test_local_sends_nothing_and_leaves_the_global_model(part: float, world: World) -> None:
    for run in world.runs(LocalOnly(), participation=part):
        assert run.record["bytes_up"] == run.record["bytes_down"] == 0
        assert torch.equal(run.w, world.task.init())


def test_local_is_training_alone() -> None:
    """A federation of one, with FedAvg."""
    world = World()
    together = own_models(world.runs(LocalOnly(), rounds=4)[-1], "w_i")
    alone = World(sizes=(7,))
    assert torch.equal(together[0], alone.weights(FedAvg(), rounds=4)[-1])
    assert not torch.equal(together[0], world.task.init())


def test_a_client_that_was_not_selected_yet_has_the_initial_model(world: World) -> None:
    (run,) = world.runs(LocalOnly(), rounds=1, participation=0.5)
    assert set(run.clients) == set(run.record["cohort"])


# Ditto --------------------------------------------------------------------------------------------------------------


def test_ditto_without_strength_is_local() -> None:
    world = World()
    ditto, local = (world.runs(method)[-1] for method in (Ditto(lam=0.0), LocalOnly()))
    assert same(own_models(ditto, "v"), own_models(local, "w_i"))
    assert not same(own_models(world.runs(Ditto())[-1], "v"), own_models(local, "w_i"))


def test_ditto_by_its_printed_rule() -> None:
    """v is pulled towards the x that was sent, with half of the clients in a round."""
    world = World(dtype=torch.float64)
    x, v = world.task.init(), dict[int, Tensor]()
    for run in world.runs(Ditto(lam=0.7), rounds=5, local=PLAIN, participation=0.5):
        for i in run.record["cohort"]:
            own = v.get(i, x)
            for _ in range(3):
                own = own - PLAIN.lr * (full_gradient(world.task, own, world.clients[i]) + 0.7 * (own - x))
            v[i] = own
        for i, own in v.items():
            torch.testing.assert_close(run.clients[i]["v"], own, rtol=1e-9, atol=1e-11)
        x = run.w
    assert len(v) > 2


def test_ditto_is_closer_to_the_global_model_the_stronger_it_is(world: World) -> None:
    def distance(lam: float) -> float:
        run = world.runs(Ditto(lam=lam), rounds=8)[-1]
        return sum(float((v - run.w).norm()) for v in own_models(run, "v"))

    distances = [distance(lam) for lam in (0.0, 1.0, 5.0)]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 1.5 * distances[-1]


def test_an_own_model_that_leaves_the_numbers_is_named(world: World) -> None:
    """It is in no reply, so that the check of replies does not see it."""
    with pytest.raises(ClientError, match=r"ditto, round 1, client \d: it keeps 'v', which is not finite; a smaller"):
        world.runs(Ditto(lam=1e30), rounds=8)


# Ditto that chooses its λ


def test_dynamic_keeps_the_laws() -> None:
    check_method(Ditto(dynamic=True))


def test_what_is_put_aside_is_a_tenth_and_the_same_in_every_round() -> None:
    y = torch.arange(40) % 3
    data = Samples(torch.arange(40.0)[:, None], y).part(torch.arange(39, -1, -1))
    aside, rest = put_aside(data, 7)
    assert (len(aside), len(rest)) == (4, 36)
    values = [part.take(torch.arange(len(part)))[0].flatten().tolist() for part in (aside, rest)]
    assert sorted(values[0] + values[1]) == list(range(40))
    again, other = put_aside(data, 7)[0], put_aside(data, 8)[0]
    assert torch.equal(again.labels, aside.labels)
    assert again.take(torch.arange(4))[0].flatten().tolist() == values[0]
    assert other.take(torch.arange(4))[0].flatten().tolist() != values[0]
    assert len(put_aside(data.part(torch.arange(2)), 7)[0]) == 1


def test_dynamic_never_trains_its_own_model_on_what_is_put_aside() -> None:
    """Other labels there change which λ is chosen at most, and never what a λ leads to."""
    world = World(sizes=(20, 20, 20, 20))
    before = world.runs(Ditto(dynamic=True), rounds=3)
    draws = {i: int(state["draw"]) for i, state in before[-1].clients.items()}
    assert len(set(draws.values())) == 4
    x = world.task.init()
    for i, data in enumerate(world.clients):
        aside, rest = put_aside(data, draws[i])
        assert (len(aside), len(rest)) == (2, 18)
        site = site_at(world, i)
        fixed = {lam: Ditto().train_own(lam, x, x, rest, site, {}) for lam in (0.1, 1.0, 2.0)}
        losses = {lam: world.task.evaluate(v, aside)["loss"] for lam, v in fixed.items()}
        chosen = float(before[0].clients[i]["lam"])
        assert losses[chosen] == min(losses.values())
        assert torch.equal(before[0].clients[i]["v"], fixed[chosen])
        assert [entry["lam"] for entry in before[0].record["clients"] if entry["id"] == i] == [chosen]


def test_dynamic_with_a_single_sample_takes_lam() -> None:
    world = World(sizes=(1, 5))
    dynamic, fixed = (world.runs(Ditto(lam=0.5, dynamic=d), rounds=2)[-1] for d in (True, False))
    assert torch.equal(dynamic.clients[0]["v"], fixed.clients[0]["v"])
    assert not torch.equal(dynamic.clients[1]["v"], fixed.clients[1]["v"])


# Ditto beside FedPTR


@PARTS
def test_ditto_with_ptr_has_fedptrs_global_branch(part: float, world: World) -> None:
    both = world.runs(make_method("ditto+ptr", **QUICK), rounds=7, participation=part)
    ptr = world.runs(FedPTR(**QUICK), rounds=7, participation=part)
    assert same([run.w for run in both], [run.w for run in ptr])


@PARTS
def test_ditto_with_ptr_without_its_strength_is_ditto(part: float, world: World) -> None:
    both, alone = (
        world.runs(method, rounds=7, participation=part)
        for method in (make_method("ditto+ptr", ptr_lam=0.0, **QUICK), Ditto())
    )
    assert same([run.w for run in both], [run.w for run in alone])
    assert same(own_models(both[-1], "v"), own_models(alone[-1], "v"))


def test_ditto_with_ptr_pulls_the_own_model_towards_x() -> None:
    """Not towards w̃, from which the global branch starts."""
    world = World(dtype=torch.float64)
    before, after = world.runs(make_method("ditto+ptr", lam=0.7, **QUICK), rounds=7, local=PLAIN)[-2:]
    for i, data in enumerate(world.clients):
        v = before.clients[i]["v"]
        for _ in range(3):
            v = v - PLAIN.lr * (full_gradient(world.task, v, data) + 0.7 * (v - before.w))
        torch.testing.assert_close(after.clients[i]["v"], v, rtol=1e-9, atol=1e-11)


def test_a_limit_is_claimed_for_ptr_only_where_it_does_nothing() -> None:
    A, c = client_quadratics(make_problem(0))
    assert find_method("ditto+ptr")().quadratic_limit(A, c, 5, 0.1) is None
    assert find_method("ditto+ptr")(ptr_lam=0.0).quadratic_limit(A, c, 5, 0.1) is not None
    assert Ditto(dynamic=True).quadratic_limit(A, c, 5, 0.1) is None


@pytest.mark.parametrize("name", ["local", "per-fedavg"])
def test_ptr_is_refused_where_it_means_nothing(name: str) -> None:
    with pytest.raises(UserError, match=rf"{name}\+ptr: {name} .*; combine ptr with another method"):
        find_method(f"{name}+ptr")


# Fine-tuning --------------------------------------------------------------------------------------------------------


def test_finetune_without_epochs_uses_the_global_model(world: World) -> None:
    x = world.task.init()
    assert torch.equal(FineTune(epochs=0).personal({"x": x}, {}, site_at(world, 0)), x)


def test_finetune_is_local_training_from_the_global_model() -> None:
    """Full batches leave nothing to chance: it is what FedAvg's client would do next."""
    world = World(dtype=torch.float64)
    x = world.task.init()
    site = replace(site_at(world, 3), local=replace(PLAIN, epochs=1, gamma=0.5))
    v = x
    for _ in range(4):
        v = v - 0.02 * full_gradient(world.task, v, world.clients[3])
    found = FineTune(epochs=4, lr=0.02).personal({"x": x}, {}, site)
    torch.testing.assert_close(found, v, rtol=1e-9, atol=1e-11)


def test_finetune_draws_by_seed_round_and_client_alone(world: World) -> None:
    x = world.task.init()

    def tuned(**at: int) -> Tensor:
        return FineTune(epochs=2).personal({"x": x}, {}, site_at(world, 3, **at))

    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = tuned()
        torch.manual_seed(2)
        assert torch.equal(first, tuned())
    assert not torch.equal(first, tuned(t=1))
    assert not torch.equal(first, tuned(seed=1))


def test_finetune_uses_other_batches_than_the_rounds_training() -> None:
    world = World(sizes=(11,))
    (trained,) = world.weights(FedAvg(), rounds=1)
    assert not torch.equal(FineTune().personal({"x": world.task.init()}, {}, site_at(world, 0)), trained)


# Per-FedAvg ---------------------------------------------------------------------------------------------------------


def batch_of(world: World, i: int) -> Batch:
    return Batch(*world.clients[i].take(torch.arange(len(world.clients[i]))))


def test_per_fedavg_direction_is_the_gradient_after_adaptation() -> None:
    """Of L(w − a∇L(w)), by automatic differentiation through the adaptation."""
    world = World(dtype=torch.float64)
    w, batch = world.task.init().requires_grad_(), batch_of(world, 3)
    (g,) = torch.autograd.grad(world.task.loss(w, batch), w, create_graph=True)
    (expected,) = torch.autograd.grad(world.task.loss(w - 0.3 * g, batch), w)
    w = w.detach()
    exact, loss = PerFedAvg(variant="exact", a=0.3).meta_gradient(w, batch, batch, batch, world.task)
    torch.testing.assert_close(exact, expected, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(loss, world.task.loss(w - 0.3 * g.detach(), batch))
    hf, _ = PerFedAvg(variant="HF", a=0.3, delta=1e-5).meta_gradient(w, batch, batch, batch, world.task)
    torch.testing.assert_close(hf, expected, rtol=1e-5, atol=1e-7)
    fo, _ = PerFedAvg(variant="FO", a=0.3).meta_gradient(w, batch, batch, batch, world.task)
    assert float((fo - expected).norm() / expected.norm()) > 1e-2


def test_each_batch_has_its_place() -> None:
    """D adapts, D′ gives the gradient, D″ the curvature, which is at w."""
    world = World(dtype=torch.float64)
    task, w, (D, D1, D2) = world.task, world.task.init(), (batch_of(world, i) for i in range(3))
    u, _ = task.grad(w - 0.3 * task.grad(w, D)[0], D1)
    expected = u - 0.3 * task.adjoint(w, D2, u, by_w=True).by_w
    torch.testing.assert_close(PerFedAvg(variant="exact", a=0.3).meta_gradient(w, D, D1, D2, task)[0], expected)


@pytest.mark.parametrize("delta", [1e-3, 1.0, 100.0])
def test_hf_is_exact_on_quadratics(delta: float) -> None:
    at = make_problem(0)
    w, (D, D1, D2) = at.task.init(), (Batch(*data.take(torch.arange(len(data)))) for data in at.clients[:3])
    exact, hf = (
        PerFedAvg(variant=variant, a=0.2, delta=delta).meta_gradient(w, D, D1, D2, at.task)[0]
        for variant in ("exact", "HF")
    )
    torch.testing.assert_close(hf, exact, rtol=1e-9, atol=1e-10)


def test_the_three_batches_are_drawn_apart_and_small_clients_train() -> None:
    """By hand, from the keys that the file names; clients of 1 and 11 samples, batches of 4."""
    world = World(dtype=torch.float64, sizes=(1, 11))
    method, local = PerFedAvg(variant="exact", a=0.3), replace(LOCAL, momentum=0.0, epochs=2)
    (run,) = world.runs(method, rounds=1, local=local)
    ends = []
    for i, data in enumerate(world.clients):
        key, w = Key(0).at("round", 0, "client", i), world.task.init()
        orders = [key(name) for name in ("adaptation-batches", "batch-order", "curvature-batches")]
        for _ in range(2):
            epoch = [[Batch(*data.take(rows)) for rows in draw_batches(len(data), 4, order)] for order in orders]
            for D, D1, D2 in zip(*epoch, strict=True):
                w = w - local.lr * method.meta_gradient(w, D, D1, D2, world.task)[0]
        ends.append(w)
    assert [entry["steps"] for entry in run.record["clients"]] == [2, 6]
    torch.testing.assert_close(run.w, ends[0] / 12 + ends[1] * 11 / 12, rtol=1e-10, atol=1e-12)


def test_recording_gamma_changes_nothing(world: World) -> None:
    """The steps draw batches; the measurement must not draw from the same orders."""
    plain, measured = (
        world.runs(PerFedAvg(), rounds=2, local=replace(LOCAL, record_gamma=record)) for record in (False, True)
    )
    assert same([run.w for run in plain], [run.w for run in measured])
    assert all(entry["gamma"] > 0 for entry in measured[-1].record["clients"])


def test_per_fedavg_adapts_with_one_step_on_its_training_data(world: World) -> None:
    x = world.task.init()
    site = replace(site_at(world, 2), test=Samples(world.test.x * 100, world.test.y))  # which it must not look at
    expected = x - 0.3 * full_gradient(world.task, x, world.clients[2])
    assert torch.equal(PerFedAvg(a=0.3).personal({"x": x}, {}, site), expected)


@pytest.mark.parametrize("variant", ["FO", "exact"])
def test_other_variants_keep_the_laws(variant: str) -> None:
    check_method(PerFedAvg(variant=variant))


def test_only_methods_that_adapt_say_so() -> None:
    assert [method.adapts for method in (FineTune, PerFedAvg, Ditto, LocalOnly, FedAvg)] == [True, True] + [False] * 3
