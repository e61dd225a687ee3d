"""FedPTR's identities T1 to T14 and T16, and the choices that are fields. T15 is in test_laws."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from same_bits import same
from small_world import CLASSES, LOCAL, QUICK, SHAPE, World, quick
from torch import nn

from fedptr.core.federation import federate
from fedptr.core.method import Site
from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.errors import UserError
from fedptr.methods import FedAvg, FedProx, find_method
from fedptr.methods.ptr.projection import set_step_length
from fedptr.methods.ptr.pull import group_sizes
from fedptr.methods.ptr.trajectory import auxiliary_images, usual_ipc

BOTH = ["fedptr", "fedptr-s"]
FedPTR = find_method("fedptr")


def site(world: World, **other: object) -> Site:
    return replace(Site(world.task, LOCAL, Key(0), 5, 4, world.clients[0]), **other)


@pytest.mark.parametrize("part", [1.0, 0.5])
@pytest.mark.parametrize("settings", [{"lam": 0.0}, {"observe": True}, {"observe": True, "dsa": True}])
@pytest.mark.parametrize("name", BOTH)
def test_t1_without_pull_is_fedavg(name: str, settings: dict, part: float, world: World) -> None:
    method = quick(name, **settings)
    ours, fedavg = (world.weights(m, rounds=8, participation=part) for m in (method, FedAvg()))
    assert same(ours, fedavg)


def test_t1_observing_does_run_matching(world: World) -> None:
    record = world.runs(quick("fedptr", observe=True))[-1].record
    assert all("match_before" in entry and "cos_aux" in entry for entry in record["clients"])


@pytest.mark.parametrize("name", [*BOTH, "naive"])
@pytest.mark.parametrize("m", [1, 2, 3])
def test_t2_warm_up_is_fedavg(name: str, m: int, world: World) -> None:
    expected, ours = world.weights(FedAvg(), rounds=m + 2), world.weights(quick(name, m=m), rounds=m + 2)
    assert same(expected[: m + 1], ours[: m + 1])
    assert not torch.equal(expected[m + 1], ours[m + 1])  # t = m + 1 is the first round that differs


@pytest.mark.parametrize("start", ["projected", "global"])
@pytest.mark.parametrize("settings", [{"K": 0}, {"eta": 0.0}])
@pytest.mark.parametrize("name", BOTH)
def test_t3_without_projection_fixed_lambda_is_fedprox(name: str, settings: dict, start: str, world: World) -> None:
    """From the same state at the end of warm-up on; w̃ is x then, so it does not matter where training starts."""
    warm = world.runs(FedAvg(), rounds=3)[-1]
    ours = world.runs(quick(name, regulariser="fixed", lam=0.4, start_from=start, **settings), rounds=7)
    assert torch.equal(ours[2].w, warm.w)
    prox = world.runs(FedProx(mu=0.4), rounds=7, start=replace(warm, clients={}))
    assert same([run.w for run in ours[3:]], [run.w for run in prox])


def test_t4_adaptive_without_projection_starts_at_rest(world: World) -> None:
    method, x = quick("fedptr", K=0), world.task.init()
    pull = method.pull(x, {"x": x, "target": x.clone()}, {}, site(world))
    assert pull is not None
    assert torch.equal(pull, torch.zeros_like(x))
    assert all(bool(w.isfinite().all()) for w in world.weights(method))


def test_t5_detached_is_through_with_twice_the_strength(world: World) -> None:
    one = world.weights(quick("fedptr", lam=0.2, adaptive_grad="detached", adaptive_eps=1e-3))
    two = world.weights(quick("fedptr", lam=0.4, adaptive_grad="through", adaptive_eps=1e-3))
    assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in zip(one, two, strict=True))


def test_t6_shared_auxiliary_data_is_the_server_side(world: World) -> None:
    """When all clients share one noise D̃ and one stream, FedPTR is FedPTR-S."""

    class Shared(FedPTR):
        def client_init(self, x, at):
            return self.memory(x, replace(at, key=Key(0).at("server"), data=None))

        def prepare(self, msg, client, at):
            return super().prepare(msg, client, replace(at, key=Key(0).at("round", at.round, "server")))

    settings = QUICK | {"dsa": True, "lr_img": 10.0}
    assert same(world.weights(quick("fedptr-s", **settings)), world.weights(Shared(init="noise", **settings)))


@pytest.mark.parametrize("m", [1, 2])
def test_t10_observed_trail_is_the_last_global_models(m: int, world: World) -> None:
    """Full participation: the trail is w^{t−m} … w^t, so matching starts exactly where the algorithm says."""
    runs = world.runs(quick("fedptr", m=m), rounds=7)
    received = [world.task.init(), *(run.w for run in runs)]  # w^0, w^1, …
    for run in runs:
        t = run.round - 1
        for state in run.clients.values():
            expected = torch.stack(received[max(0, t - m) : t + 1])
            assert torch.equal(state["trail"], expected)
            assert int(state["seen"]) == t + 1
            assert int(state["matched"]) == (t if t > m else -1)


def test_t10_partial_participation_counts_what_the_client_saw(world: World) -> None:
    runs = world.runs(quick("fedptr", m=1), rounds=12, participation=0.5)
    received = [world.task.init(), *(run.w for run in runs)]
    seen: dict[int, list[int]] = {i: [] for i in range(4)}
    for run in runs:
        t = run.round - 1
        for entry in run.record["clients"]:
            seen[entry["id"]].append(t)
            state = run.clients[entry["id"]]
            assert torch.equal(state["trail"], torch.stack([received[s] for s in seen[entry["id"]][-2:]]))
            assert ("match_before" in entry) == (len(seen[entry["id"]]) >= 3)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(("every", "expected"), [(1, [3, 4, 5, 6, 7, 8, 9]), (3, [3, 6, 9]), ("once", [3])])
def test_t11_matches_every_p_rounds_projects_always(name: str, every: object, expected: list, world: World) -> None:
    matched, projected = [], []
    for run in world.runs(quick(name, mtt_every=every), rounds=10):
        where = run.record["server"] if "server" in run.record else run.record["clients"][0]
        matched += [run.round - 1] * ("match_before" in where)
        projected += [run.round - 1] * ("cos_aux" in where)
    assert matched == expected
    assert projected == [3, 4, 5, 6, 7, 8, 9]


def test_early_warm_up_starts_one_round_sooner(world: World) -> None:
    runs = world.runs(quick("fedptr", warmup="early"), rounds=4)
    assert ["cos_aux" in run.record for run in runs] == [False, False, True, True]


def test_t12_granularity_of_a_one_tensor_model() -> None:
    world = World(nn.Sequential(nn.Flatten(), nn.Linear(16, CLASSES, bias=False)))
    all_three = [world.weights(quick("fedptr", granularity=g, lam=0.3)) for g in ("tensor", "module", "global")]
    assert same(all_three[0], all_three[1])
    assert same(all_three[0], all_three[2])


def test_granularity_groups(world: World) -> None:
    task = world.task  # three linear layers
    assert group_sizes(task, "tensor") == [96, 6, 36, 6, 18, 3]
    assert group_sizes(task, "module") == [102, 42, 21]
    assert group_sizes(task, "global") == [165]


@pytest.mark.parametrize("granularity", ["tensor", "module", "global"])
@pytest.mark.parametrize("scale", [1.0, 1e-2, 1e-5])
def test_t13_pull_has_norm_lambda_outside_the_guard(granularity: str, scale: float, world: World) -> None:
    lam, eps = 0.3, 1e-3
    method = quick("fedptr", lam=lam, granularity=granularity, adaptive_eps=eps)
    w = world.task.init().double()
    target = w + scale * torch.randn(len(w), generator=torch.Generator().manual_seed(0)).double()
    sizes = group_sizes(world.task, granularity)
    pull = method.pull(w, {"target": target}, {}, site(world))
    assert pull is not None
    for part, d in zip(pull.split(sizes), (w - target).split(sizes), strict=True):
        expected = lam if float(d.norm()) >= eps else lam * float(d.norm()) / eps
        assert float(part.norm()) == pytest.approx(expected, rel=1e-6)
        assert torch.nn.functional.cosine_similarity(part, d, dim=0) == pytest.approx(1.0)


def test_default_guard_is_the_step_that_lands_on_the_target(world: World) -> None:
    """ε = η_l·λ: inside it one plain step arrives exactly, at this round's learning rate."""
    method, w = quick("fedptr", lam=0.3), world.task.init().double()
    target = w + 1e-4 * torch.ones_like(w) / len(w)
    decayed = site(world, local=replace(LOCAL, lr=0.02))
    pull = method.pull(w, {"target": target}, {}, decayed)
    assert pull is not None
    torch.testing.assert_close(w - 0.02 * pull, target)


def test_start_from_projected(world: World) -> None:
    """With a local gradient that does not depend on w, the two differ by the projection's own step."""

    class Drift(FedPTR):
        def gradient(self, w, batch, msg, client, at):
            return torch.ones_like(w), torch.tensor(0.0)

    settings = QUICK | {"eta": 0.1, "m": 1}
    plain = world.weights(Drift(start_from="global", **settings), rounds=3)
    moved = world.runs(Drift(start_from="projected", **settings), rounds=3)
    assert torch.equal(plain[1], moved[1].w)
    step = moved[2].w - plain[2]
    aux = [state["X"] for state in moved[2].clients.values()]
    assert float(step.norm()) > 0.01
    assert all(bool(X.isfinite().all()) for X in aux)


def test_training_starts_at_the_projected_model_by_default(world: World) -> None:
    """And λ = 0 switches all of it off."""
    msg = {"x": torch.zeros(3), "target": torch.ones(3)}
    for name in (*BOTH, "fedptr-linear"):
        assert torch.equal(quick(name).start(msg, {}), msg["target"])
        assert torch.equal(quick(name, start_from="global").start(msg, {}), msg["x"])
        assert torch.equal(quick(name).start({"x": msg["x"]}, {}), msg["x"])  # before warm-up
        assert same(world.weights(quick(name, lam=0.0)), world.weights(FedAvg()))


def test_start_only_is_the_limit_of_a_vanishing_pull(world: World) -> None:
    alone = world.weights(quick("fedptr", regulariser="none"))
    weak = world.weights(quick("fedptr", lam=1e-12))
    assert not torch.equal(alone[-1], world.weights(FedAvg())[-1])
    torch.testing.assert_close(alone[-1], weak[-1], rtol=0, atol=1e-7)


def test_t16_a_line_of_one_round_is_fedagm_with_all_its_momentum(world: World) -> None:
    """Start on, pull off: FedAvg's round from x + (x − x_before), which FedAGM makes of v = x − x_before at λ = 1."""
    line = quick("fedptr-linear", m=1, regulariser="none")
    runs = world.runs(line, rounds=5)
    x, before = runs[3].w, runs[2].w
    # λ must be below 1: half of twice the difference is the same to the bit.
    state = replace(runs[3], server={"x": x, "v": 2 * (x - before)}, clients={})
    (agm,) = world.runs(quick("fedagm", lam=0.5, beta=0.0), rounds=5, start=state)
    (avg,) = world.runs(FedAvg(), rounds=5, start=replace(runs[3], server={"x": x + (x - before)}, clients={}))
    torch.testing.assert_close(runs[4].w, agm.w, rtol=0, atol=1e-6)
    torch.testing.assert_close(runs[4].w, avg.w, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", BOTH)
def test_a_set_that_mimics_nothing_is_not_projected_with(name: str, world: World) -> None:
    """Nothing passes here: the run is FedAvg's to the bit, sends no more than it, and says why."""
    ours, plain = world.runs(quick(name, mtt_max_loss=1e-9)), world.runs(FedAvg())
    assert same([run.w for run in ours], [run.w for run in plain])
    assert [run.record["bytes_down"] for run in ours] == [run.record["bytes_down"] for run in plain]
    for run in ours[3:]:
        for part in [run.record["server"]] if name == "fedptr-s" else run.record["clients"]:
            assert part["projection_skipped"] == 1
            assert part["match_after"] >= 1e-9
            assert "cos_aux" not in part


def test_what_is_skipped_is_tried_again(world: World) -> None:
    """The losses of a run whose matching gets better: projected are just the rounds in which it was good enough."""
    losses = [run.record["server"]["match_after"] for run in world.runs(quick("fedptr-s", observe=True), rounds=9)[3:]]
    limit = sorted(losses)[len(losses) // 2]
    watched = world.runs(quick("fedptr-s", observe=True, mtt_max_loss=limit), rounds=9)[3:]
    assert ["cos_aux" in run.record["server"] for run in watched] == [loss < limit for loss in losses]


@pytest.mark.parametrize("name", BOTH)
def test_reach_gives_the_length_and_the_set_the_direction(name: str, world: World) -> None:
    method = quick(name, reach=1.5, observe=True)
    free = quick(name, observe=True)
    memory = method.memory(world.task.init(), site(world))
    models = [world.task.init(), *world.weights(FedAvg(), rounds=5)]
    for t, x in enumerate(models):
        at = site(world, round=t)
        target, new, _ = method.advance(memory, x, at)
        other, _, _ = free.advance(memory, x, at)
        memory = new
        if t > 2:
            assert target is not None
            assert other is not None
            assert float((target - x).norm()) == pytest.approx(1.5 * float((x - models[t - 2]).norm()) / 2, rel=1e-5)
            assert float(torch.cosine_similarity(target - x, other - x, dim=0)) == pytest.approx(1.0, abs=1e-5)


def test_a_projection_without_direction_stays_where_it_is() -> None:
    x = torch.ones(3)
    assert torch.equal(set_step_length(x, x, torch.tensor(2.0)), x)


SWITCHES = [
    {"projection_lr": "beta", "beta": 0.3}, {"projection_momentum": 0.9}, {"aux_batch": 2}, {"carry_momentum": True},
    {"carry_beta": False}, {"dsa_in_projection": True}, {"dsa": True}, {"init": "noise"}, {"granularity": "global"},
    {"adaptive_eps": 1.0}, {"R": 4}, {"H": 3}, {"K": 2}, {"eta": 0.3}, {"m": 1}, {"lr_beta": 0.0},
    {"mtt_momentum": 0.0}, {"beta": "auto"}, {"lr_img": "auto"}, {"reach": 0.5}, {"start_from": "global"},
]  # fmt: skip


@pytest.mark.parametrize("setting", SWITCHES, ids=lambda s: ",".join(s))
def test_every_switch_does_something(setting: dict, world: World) -> None:
    base = {"lr_img": 10.0, "lam": 0.5, "lr_beta": 1e-3}
    plain, changed = (world.weights(quick("fedptr", **s)) for s in (base, {**base, **setting}))
    assert not torch.equal(plain[-1], changed[-1])
    assert bool(changed[-1].isfinite().all())


def test_a_hopeless_auxiliary_set_does_not_stop_training(world: World) -> None:
    """Absurd step sizes blow D̃ up; the run continues, and says so."""
    runs = world.runs(quick("fedptr", lr_img=1e30, lr_beta=1e6), rounds=7)
    assert bool(runs[-1].w.isfinite().all())
    entries = [entry for run in runs[3:] for entry in run.record["clients"]]
    assert any(entry.get("match_stopped") or entry.get("projection_skipped") for entry in entries)


def test_initial_images_are_own_samples_where_there_are_any(world: World) -> None:
    data = Samples(world.clients[0].x, torch.tensor([0, 0, 0, 0, 0, 0, 2]))
    X, y = auxiliary_images(site(world, data=data), 5, True, world.task.init())
    assert y.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    own = [any(torch.equal(image, x) for x in data.x[data.y == k]) for image, k in zip(X, y.tolist(), strict=True)]
    assert own == [True] * 5 + [False] * 5 + [True] * 5
    assert all(torch.equal(X[10 + i], data.x[6]) for i in range(5))  # with replacement from a single sample


def test_noise_is_standard_normal_and_the_server_has_only_noise(world: World) -> None:
    X, _ = auxiliary_images(site(world, data=None), 200, True, world.task.init())
    assert X.shape == (200 * CLASSES, *SHAPE)
    assert abs(float(X.mean())) < 0.03
    assert abs(float(X.std()) - 1) < 0.03


def test_the_auxiliary_data_never_leaves_its_owner(world: World) -> None:
    """Nothing that is sent has the size of an image set, and nothing is sent but models."""
    sent: list[dict] = []

    class Spy(FedPTR):
        def aggregate(self, server, replies, at):
            sent.extend(reply.state for reply in replies)
            return super().aggregate(server, replies, at)

    world.runs(Spy(H=1, R=2, ipc=2, dsa=False))
    assert all(set(state) == {"w"} for state in sent)


def test_naive_trains_on_local_and_auxiliary_data(world: World) -> None:
    runs = world.runs(quick("naive"), rounds=5)
    for entry in runs[-1].record["clients"]:
        m = len(world.clients[entry["id"]]) + 2 * CLASSES
        assert entry["steps"] == -(-m // LOCAL.batch)
    poor = world.runs(quick("naive", mtt_max_loss=1e-9), rounds=5)[-1]  # nothing matches that well: nothing joins
    for entry in (*runs[0].record["clients"], *poor.record["clients"]):
        assert entry["steps"] == -(-len(world.clients[entry["id"]]) // LOCAL.batch)


def test_record_has_the_papers_diagnostics(world: World) -> None:
    runs = world.runs(quick("fedptr"), rounds=5)
    entry = runs[-1].record["clients"][1]
    assert {"match_before", "match_after", "beta", "cos_aux", "cos_local", "distances", "match_span"} <= set(entry)
    assert len(entry["distances"]) == len(world.task.layers)
    assert -1 <= runs[-1].record["cos_aux"] <= 1
    assert runs[-1].record["seconds"]["matching"] > 0
    assert "cos_aux" not in runs[0].record


def test_cosines_are_the_papers(world: World) -> None:
    """cos(w^t − w̃_i, w^t − w^{t+1}) and cos(w^t − w_i, w^t − w^{t+1}), recomputed by hand for one client."""
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Spy(FedPTR):
        def reply(self, w, msg, client, steps, at):
            kept.append((w.clone(), msg.get("target", w).clone()))
            return super().reply(w, msg, client, steps, at)

    runs = world.runs(Spy(H=1, R=2, ipc=1, dsa=False), rounds=5)
    x, new, entry = runs[3].w, runs[4].w, runs[4].record["clients"][-1]
    w, target = kept[-1]
    cos = torch.nn.functional.cosine_similarity
    assert entry["cos_local"] == pytest.approx(float(cos(x - w, x - new, dim=0)), abs=1e-5)
    assert entry["cos_aux"] == pytest.approx(float(cos(x - target, x - new, dim=0)), abs=1e-5)
    assert entry["reach"] == pytest.approx(float((target - x).norm() / (new - x).norm()), rel=1e-5)
    assert entry["distances"][0] == pytest.approx(float((w - target)[:96].norm()), rel=1e-5)


@pytest.mark.parametrize(("classes", "expected"), [(10, 10), (100, 2), (200, 1)])
def test_usual_number_of_auxiliary_images(classes: int, expected: int) -> None:
    assert usual_ipc(classes) == expected


def test_auxiliary_images_per_class_by_default(world: World) -> None:
    assert FedPTR().memory(world.task.init(), site(world))["X"].shape == (10 * CLASSES, *SHAPE)


def test_augmentation_needs_images() -> None:
    task = Classification(nn.Linear(13, CLASSES), (13,), CLASSES)
    with pytest.raises(UserError, match=r"method\.dsa = false"):
        list(federate(FedPTR(), task, [Samples(torch.randn(5, 13), torch.tensor([0, 1, 2, 0, 1]))]))


@pytest.mark.parametrize("wrong", [{"lam": -1.0}, {"m": 0}, {"granularity": "layer"}, {"K": 1.5}])
def test_settings_made_in_python_are_checked_too(wrong: dict, world: World) -> None:
    with pytest.raises(UserError, match=f"method.{next(iter(wrong))}"):
        world.runs(FedPTR(**wrong))


# The control without auxiliary data -----------------------------------------------------------------------------------


def test_linear_without_strength_is_fedavg(world: World) -> None:
    assert same(world.weights(quick("fedptr-linear", lam=0.0)), world.weights(quick("fedavg")))


@pytest.mark.parametrize("m", [1, 3])
def test_linear_extends_the_line_through_two_global_models(m: int, world: World) -> None:
    """With a fixed pull it is FedProx around w^t + (w^t − w^{t−m})/m, from the round on in which FedPTR starts."""
    runs = world.runs(quick("fedptr-linear", m=m, regulariser="fixed", lam=0.3), rounds=7)
    models = [world.task.init(), *(run.w for run in runs)]
    for t, run in enumerate(runs):
        assert ("cos_aux" in run.record) == (t > m)
        if t <= m:
            continue
        target = models[t] + (models[t] - models[t - m]) / m
        method = quick("fedptr-linear", m=m, regulariser="fixed", lam=0.3)
        msg, _ = method.broadcast(runs[t - 1].server, site(world))
        assert torch.equal(msg["target"], target)
        pull = method.pull(models[t], msg, {}, site(world))
        assert pull is not None
        torch.testing.assert_close(pull, 0.3 * (models[t] - target))


def test_linear_pulls_as_fedptr_does(world: World) -> None:
    w = world.task.init()
    msg = {"x": w, "target": w + torch.linspace(-1, 1, len(w))}
    ours, theirs = (quick(name).pull(w, msg, {}, site(world)) for name in ("fedptr-linear", "fedptr"))
    assert ours is not None
    assert theirs is not None
    assert torch.equal(ours, theirs)


def test_linear_that_reaches_nowhere_pulls_as_fedprox_does(world: World) -> None:
    """After warm-up; with r = 2 it is pulled twice as far ahead."""
    runs = world.runs(quick("fedptr-linear", m=1), rounds=4)
    x, before = runs[-1].w, runs[-2].w
    here, far = (
        quick("fedptr-linear", m=1, reach=reach, regulariser="fixed", lam=0.3).broadcast(runs[-1].server, site(world))
        for reach in (0.0, 2.0)
    )
    w = x + torch.linspace(-1, 1, len(x))
    pull = quick("fedptr-linear", regulariser="fixed", lam=0.3).pull(w, here[0], {}, site(world))
    assert pull is not None
    assert torch.equal(pull, 0.3 * (w - x))
    torch.testing.assert_close(far[0]["target"], x + 2 * (x - before))
