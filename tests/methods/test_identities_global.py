"""The other global methods: with which setting each is another method, and its rule, written down again."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from same_bits import same
from small_world import CLASSES, LOCAL, SHAPE, World
from torch import Tensor, nn

from fedptr.compute.blocks import BlockedTask
from fedptr.core.faults import Faults
from fedptr.core.federation import Rounds, Run, federate
from fedptr.core.method import Site
from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import Classification, full_gradient
from fedptr.errors import ClientError, UserError
from fedptr.methods import (
    FedAdagrad,
    FedAdam,
    FedAGM,
    FedAMS,
    FedAvg,
    FedAvgM,
    FedCM,
    FedDyn,
    FedPD,
    FedProx,
    FedPTRLinear,
    FedSAM,
    FedYogi,
    Mime,
    MimeLite,
    MoFedSAM,
    Moon,
)
from fedptr.runs.plan import check_plan
from fedptr.theory.oracle import make_problem
from fedptr.types import Batch, Reply

PARTS = pytest.mark.parametrize("part", [1.0, 0.5])
ONE_STEP = replace(LOCAL, batch=100, momentum=0.0)

SAME = [
    (FedAvgM(beta=0.0), FedAvg()),
    (FedAvgM(beta=0.0, nesterov=True), FedAvg()),
    (FedAGM(lam=0.0, beta=0.3), FedProx(mu=0.3)),
    (FedAGM(lam=0.0, beta=0.0), FedAvg()),
    (FedCM(alpha=1.0, momentum="local"), FedAvg()),
    (FedSAM(rho=0.0), FedAvg()),
    (MoFedSAM(rho=0.0, alpha=0.3), FedCM(alpha=0.3)),
    (MoFedSAM(rho=0.2, alpha=1.0, momentum="local"), FedSAM(rho=0.2)),
    (Moon(mu=0.0), FedAvg()),
    (MimeLite(beta=0.0, momentum="local"), FedAvg()),
]
OTHER = [FedAvgM(), FedAGM(), FedCM(momentum="local"), FedSAM(), Moon(), MimeLite(momentum="local")]


@PARTS
@pytest.mark.parametrize(("method", "other"), SAME, ids=[f"{m.name}-{o.name}-{k}" for k, (m, o) in enumerate(SAME)])
def test_is_another_method_bit_for_bit(method: FedAvg, other: FedAvg, part: float, world: World) -> None:
    assert same(world.weights(other, participation=part), world.weights(method, participation=part))


@pytest.mark.parametrize("method", OTHER, ids=[m.name for m in OTHER])
def test_and_is_not_with_its_defaults(method: FedAvg, world: World) -> None:
    assert not torch.equal(world.weights(method, rounds=3)[-1], world.weights(FedAvg(), rounds=3)[-1])


# The server's rules, on replies made up here ------------------------------------------------------------------------


def at_server(world: World) -> Site:
    return Site(world.task, LOCAL, Key(0).at("server"), 0, 4)


def deltas(n: int, size: int = 6, grow: float = 1.0) -> list[Tensor]:
    g = torch.Generator().manual_seed(3)
    return [grow**t * torch.randn(size, generator=g, dtype=torch.float64) for t in range(n)]


def steps(method: FedAvg, changes: list[Tensor], site: Site) -> list[dict[str, Tensor]]:
    """The server's states when the clients' mean moves by these changes, one a round."""
    server = method.server_init(torch.ones_like(changes[0]), site)
    found = [server]
    for delta in changes:
        server = method.aggregate(server, [Reply(0, 1, {"w": server["x"] + delta}, 1)], site)
        found.append(server)
    return found


def test_fedavgm_is_a_sum_whose_gain_is_one_over_one_minus_beta(world: World) -> None:
    """Not a running mean, which would have a gain of 1."""
    delta = deltas(1)[0]
    found = steps(FedAvgM(beta=0.8), [delta] * 120, at_server(world))
    torch.testing.assert_close(found[-1]["x"] - found[-2]["x"], delta / (1 - 0.8))


@pytest.mark.parametrize("nesterov", [False, True])
def test_fedavgm_by_torch(nesterov: bool, world: World) -> None:
    w = torch.ones(6, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([w], 0.3, momentum=0.7, nesterov=nesterov)
    changes = deltas(5)
    found = steps(FedAvgM(beta=0.7, server_lr=0.3, nesterov=nesterov), changes, at_server(world))
    for delta, state in zip(changes, found[1:], strict=True):
        w.grad = -delta
        optimiser.step()
        torch.testing.assert_close(state["x"], w.detach())


def test_fedagm_by_its_printed_rule(world: World) -> None:
    """v ← λv + mean(w_i − x'), x ← x + v, whose shorter form the method computes."""

    class Seen(FedAGM):
        def reply(self, w, msg, client, steps, site):
            return {"w": w}, {"moved": w - msg["x"]}

    method = Seen(lam=0.6, beta=0.1)
    x, v = world.task.init(), torch.zeros_like(world.task.init())
    for run in world.runs(method, rounds=4):
        sizes = [len(c) for c in world.clients]
        v = 0.6 * v + sum(run.clients[i]["moved"] * (m / sum(sizes)) for i, m in enumerate(sizes))
        x = x + v
        torch.testing.assert_close(run.w, x, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(run.server["v"], v, rtol=1e-4, atol=1e-6)
        assert run.record["test_loss"] == world.task.evaluate(run.w, world.test)["loss"], "x is evaluated, not x'"


def test_fedagm_is_a_projection_along_a_straight_line(world: World) -> None:
    """v is the global model's last step, so x + λv is what FedPTR's control projects, λ rounds ahead."""
    *_, before, then, agm = world.runs(FedAGM(lam=0.85, beta=0.0), rounds=4)
    linear = FedPTRLinear(m=1, reach=0.85, regulariser="none")
    server = {"x": then.w, "trail": before.w[None], "seen": torch.tensor(2)}
    (run,) = federate(linear, world.task, world.clients, world.test, Rounds(4), LOCAL, start=Run(3, server, {}))
    assert torch.equal(run.w, agm.w)


RULES = {
    FedAdagrad: lambda v, d: v + d**2,
    FedYogi: lambda v, d: v - 0.01 * d**2 * torch.sign(v - d**2),
    FedAdam: lambda v, d: 0.99 * v + 0.01 * d**2,
}


@pytest.mark.parametrize("v_start", ["tau", 0.0])
@pytest.mark.parametrize("cls", RULES)
def test_adaptive_servers_by_their_formulas(cls: type, v_start: str | float, world: World) -> None:
    method = cls(tau=0.05, v_start=v_start)
    beta1 = 0.0 if cls is FedAdagrad else 0.9
    x, m = torch.ones(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    v = torch.full_like(x, 0.05**2 if v_start == "tau" else 0.0)
    changes = deltas(5)
    for delta, state in zip(changes, steps(method, changes, at_server(world))[1:], strict=True):
        m, v = beta1 * m + (1 - beta1) * delta, RULES[cls](v, delta)
        x = x + 0.03 * m / (v.sqrt() + 0.05)
        torch.testing.assert_close(state["x"], x)
        torch.testing.assert_close(state["v"], v)


@pytest.mark.parametrize("add_eps", [False, True])
def test_fedams_by_its_formula(add_eps: bool, world: World) -> None:
    x, m = torch.ones(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    v, top = torch.full_like(x, 0.05**2), torch.zeros_like(x)
    changes = deltas(5)
    method = FedAMS(tau=0.05, server_lr=0.3, eps=0.02, add_eps=add_eps)
    for delta, state in zip(changes, steps(method, changes, at_server(world))[1:], strict=True):
        m, v = 0.9 * m + 0.1 * delta, 0.99 * v + 0.01 * delta**2
        top = torch.maximum(top, v) if add_eps else torch.maximum(top, v).clamp(min=0.02)
        x = x + 0.3 * m / (top.sqrt() + 0.02 if add_eps else top.sqrt())
        torch.testing.assert_close(state["x"], x)


def test_yogi_and_adam_begin_alike_only_from_zero(world: World) -> None:
    for v_start, alike in ((0.0, True), ("tau", False)):
        adam, yogi = (steps(cls(v_start=v_start), deltas(1), at_server(world))[1]["v"] for cls in (FedAdam, FedYogi))
        assert torch.allclose(adam, yogi, rtol=1e-12, atol=0) == alike


@pytest.mark.parametrize("cls", [*RULES, FedAMS])
def test_nothing_moves_where_nobody_moved(cls: type, world: World) -> None:
    """The guards divide zero by something."""
    still = [torch.zeros(6, dtype=torch.float64)] * 3
    for v_start in ("tau", 0.0):
        assert torch.equal(steps(cls(v_start=v_start), still, at_server(world))[-1]["x"], torch.ones(6).double())


@pytest.mark.parametrize("cls", RULES)
def test_adaptive_with_a_huge_guard_is_fedavg(cls: type, world: World) -> None:
    """β₁ = 0, v from 0 and η = τ: x + τΔ/(√v + τ), off by |Δ|/τ. (From v = τ² it would be half a step.)"""
    changes = deltas(4)
    found = steps(cls(beta1=0.0, tau=1e6, server_lr=1e6, v_start=0.0), changes, at_server(world))
    torch.testing.assert_close(found[-1]["x"], 1 + sum(changes), rtol=1e-4, atol=1e-5)
    half = steps(cls(beta1=0.0, tau=1e6, server_lr=1e6), changes[:1], at_server(world))
    torch.testing.assert_close(half[-1]["x"], 1 + changes[0] / (1 + math.sqrt(0.99 if cls is FedAdam else 1)))


def test_fedams_never_divides_by_less_than_before(world: World) -> None:
    tops = [state["top"] for state in steps(FedAMS(), deltas(9, grow=0.5), at_server(world))]
    assert all(bool((b >= a).all()) for a, b in itertools.pairwise(tops))
    assert bool((tops[1] >= 1e-3).all())
    vs = [state["v"] for state in steps(FedAMS(), deltas(9, grow=0.5), at_server(world))]
    assert bool((vs[-1] < vs[3]).any()), "or it would be FedAdam"


def test_fedams_is_fedadam_while_v_grows(world: World) -> None:
    grown = [torch.full((6,), 2.0**t, dtype=torch.float64) for t in range(6)]
    ams = steps(FedAMS(server_lr=0.03, add_eps=True), grown, at_server(world))
    adam = steps(FedAdam(), grown, at_server(world))
    assert all(torch.equal(a["x"], b["x"]) for a, b in zip(ams, adam, strict=True))
    shrunk = grown[::-1]
    ams, adam = (
        steps(m, shrunk, at_server(world))
        for m in (FedAMS(server_lr=0.03, add_eps=True, beta2=0.5), FedAdam(beta2=0.5))
    )
    assert not torch.allclose(ams[-1]["x"], adam[-1]["x"])


# FedCM, FedSAM ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fedcm_direction_is_in_units_of_a_gradient(momentum: float) -> None:
    """Clients that always step along their own vector: Δ̄ is the mean of these vectors, whatever K_i and decay are."""

    @dataclass(frozen=True)
    class Steady(FedCM):
        def gradient(self, w, batch, msg, client, site):
            return torch.full_like(w, float(site.size)), torch.tensor(0.0)

    world = World(dtype=torch.float64)
    for weighting, mean in (("samples", (49 + 25 + 81 + 144) / 33), ("uniform", 33 / 4)):
        method = Steady(momentum=momentum, weighting=weighting)
        for run in world.runs(method, rounds=3, local=replace(LOCAL, decay=0.5)):
            assert len({entry["steps"] for entry in run.record["clients"]}) > 1
            torch.testing.assert_close(run.server["delta"], torch.full_like(run.w, mean))


def test_fedcm_by_its_printed_rule() -> None:
    """With half of the clients, and a learning rate that falls."""
    world, alpha = World(dtype=torch.float64), 0.3
    local = replace(LOCAL, batch=100, momentum=0.0, epochs=3, decay=0.8)

    x, delta = world.task.init(), torch.zeros_like(world.task.init())
    for t, run in enumerate(world.runs(FedCM(alpha=alpha), rounds=5, local=local, participation=0.5)):
        lr, ends = local.lr * 0.8**t, {}
        for i in run.record["cohort"]:
            w = x.clone()
            for _ in range(3):
                w = w - lr * (alpha * full_gradient(world.task, w, world.clients[i]) + (1 - alpha) * delta)
            ends[i] = w
        total = sum(len(world.clients[i]) for i in ends)
        share = {i: len(world.clients[i]) / total for i in ends}
        delta = sum(share[i] * (x - w) / (3 * lr) for i, w in ends.items())
        x = sum(share[i] * w for i, w in ends.items())
        torch.testing.assert_close(run.w, x, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(run.server["delta"], delta, rtol=1e-8, atol=1e-10)


def test_fedcm_server_step(world: World) -> None:
    x = world.task.init()
    (one,), (half,) = (world.weights(FedCM(server_lr=lr), rounds=1) for lr in (1.0, 0.5))
    torch.testing.assert_close(half - x, (one - x) / 2, rtol=1e-4, atol=1e-6)


def test_fedsam_steps_with_the_gradient_off_w() -> None:
    at = make_problem(0)
    data = at.clients[0]
    x, y = data.take(torch.arange(len(data)))
    w = at.task.init()
    site = Site(at.task, LOCAL, Key(0), 0, 1, data)
    g, loss = FedSAM(rho=0.3).gradient(w, Batch(x, y), {"x": w}, {}, site)
    own, value = at.task.grad(w, Batch(x, y))
    curvature = at.task.A[y].mean(0)
    torch.testing.assert_close(g - own, 0.3 * curvature @ own / own.norm())
    assert loss == value, "the recorded loss is at w"
    assert torch.equal(w, at.task.init()), "w is not disturbed"


# MOON ---------------------------------------------------------------------------------------------------------------


def contrast_by_hand(world: World, w: Tensor, x: Tensor, x_g: Tensor, w_p: Tensor, tau: float) -> Tensor:
    """As printed, with exponentials, on features of the MLP computed layer by layer."""

    def features(v: Tensor) -> Tensor:
        p = list(world.task.parameters(v).values())
        return F.relu(F.linear(F.relu(F.linear(x.flatten(1), p[0], p[1])), p[2], p[3]))

    def cos(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))

    z, s_g, s_p = features(w), features(x_g).detach(), features(w_p).detach()
    near, far = (cos(z, s_g) / tau).exp(), (cos(z, s_p) / tau).exp()
    return -(near / (near + far)).log()


def three_models(world: World) -> list[Tensor]:
    g = torch.Generator().manual_seed(1)
    x = world.task.init()
    return [x, *(x + 0.3 * torch.randn(len(x), generator=g, dtype=x.dtype) for _ in range(2))]


def test_moon_gradient_by_its_printed_formula() -> None:
    world = World(dtype=torch.float64)
    x_g, w_p, w = three_models(world)
    x, y = world.clients[3].take(torch.arange(12))
    site = Site(world.task, LOCAL, Key(0), 0, 4, world.clients[3])
    g, loss = Moon(mu=2.0, tau=0.4).gradient(w, Batch(x, y), {"x": x_g}, {"w_i": w_p}, site)
    v = w.clone().requires_grad_()
    own = world.task.loss(v, Batch(x, y))
    total = own + 2.0 * contrast_by_hand(world, v, x, x_g, w_p, 0.4).mean()
    torch.testing.assert_close(g, torch.autograd.grad(total, v)[0])
    torch.testing.assert_close(loss, own.detach())


def test_moon_in_blocks_is_the_same() -> None:
    """On the fast tasks too: blocks on several threads, each with features of its own."""
    world = World(dtype=torch.float64)
    x_g, w_p, w = three_models(world)
    x, y = world.clients[3].take(torch.arange(12))
    found = []
    for task in (world.task, *(BlockedTask(world.task.model, SHAPE, CLASSES, block=5, threads=n) for n in (1, 3))):
        site = Site(task, LOCAL, Key(0), 0, 4, world.clients[3])
        found.append(Moon().gradient(w, Batch(x, y), {"x": x_g}, {"w_i": w_p}, site))
    torch.testing.assert_close(found[1], found[0])
    assert torch.equal(found[1][0], found[2][0]), "threads change nothing"


@PARTS
def test_moon_on_a_first_visit_is_fedavg(part: float, world: World) -> None:
    """And would be if the global model stood in for the previous one: the term is log 2, and flat."""
    (ours,), (other,) = (world.weights(method, rounds=1, participation=part) for method in (Moon(), FedAvg()))
    assert torch.equal(ours, other)
    x, y = world.clients[3].take(torch.arange(12))
    x_g, _, w = three_models(world)
    site = Site(world.task, LOCAL, Key(0), 0, 4, world.clients[3])
    g, _ = Moon().gradient(w, Batch(x, y), {"x": x_g}, {"w_i": x_g}, site)
    torch.testing.assert_close(g, world.task.grad(w, Batch(x, y))[0], rtol=1e-5, atol=1e-7)
    assert contrast_by_hand(world, w, x, x_g, x_g, 0.5).detach() == pytest.approx([math.log(2)] * 12, rel=1e-5)


def test_moon_does_not_overflow(world: World) -> None:
    """Raw exponentials of s/τ would, at this temperature."""
    run = world.runs(Moon(tau=1e-3, mu=1e-2), rounds=3)[-1]
    assert bool(run.w.isfinite().all())


def test_moon_keeps_the_clients_last_model(world: World) -> None:
    ends: dict[tuple[int, int], Tensor] = {}

    @dataclass(frozen=True)
    class Watched(Moon):
        def reply(self, w, msg, client, steps, site):
            ends[site.round, site.size] = w.clone()
            return super().reply(w, msg, client, steps, site)

    before, after = world.runs(Watched(), rounds=2, participation=0.5)
    for run in (before, after):
        for i in run.record["cohort"]:
            assert torch.equal(run.clients[i]["w_i"], ends[run.round - 1, len(world.clients[i])])
    for i in set(before.record["cohort"]) - set(after.record["cohort"]):
        assert torch.equal(before.clients[i]["w_i"], after.clients[i]["w_i"])
    assert all(not torch.equal(state["w_i"], after.w) for state in after.clients.values())


def test_moon_needs_a_linear_layer() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, :3] * self.a

    world = World(Sum())
    with pytest.raises(UserError, match=r"needs the features before a model's last nn.Linear layer"):
        world.runs(Moon(), rounds=2)


# FedPD --------------------------------------------------------------------------------------------------------------


def test_fedpd_without_silent_rounds_is_feddyn() -> None:
    world = World(dtype=torch.float64)
    for pd, dyn in zip(world.runs(FedPD(eta=2.0)), world.runs(FedDyn(alpha=0.5)), strict=True):
        torch.testing.assert_close(pd.w, dyn.w, rtol=1e-10, atol=1e-12)
        for i in dyn.clients:
            torch.testing.assert_close(pd.clients[i]["r_i"], dyn.clients[i]["r_i"], rtol=1e-9, atol=1e-12)


def test_fedpd_by_its_printed_rule() -> None:
    """With λ_i itself, over rounds that are silent and rounds that are not."""
    world = World(dtype=torch.float64)
    eta, local = 0.5, replace(LOCAL, batch=100, momentum=0.0, epochs=3)
    lam = [torch.zeros_like(world.task.init()) for _ in world.clients]
    x, own = world.task.init(), [world.task.init() for _ in world.clients]
    silences = []
    for run in world.runs(FedPD(eta=eta, p=0.5), rounds=8, local=local):
        for i, data in enumerate(world.clients):
            y = own[i].clone()
            for _ in range(3):
                y = y - local.lr * (full_gradient(world.task, y, data) + lam[i] + (y - own[i]) / eta)
            lam[i] = lam[i] + (y - own[i]) / eta
            own[i] = y + eta * lam[i]
        silent = run.record["bytes_up"] == 0
        if not silent:
            x = sum(own) / 4
            own = [x] * 4
        silences.append(silent)
        torch.testing.assert_close(run.w, x, rtol=1e-8, atol=1e-10)
        assert all(("x_i" in state) == silent for state in run.clients.values())
    assert len(set(silences)) == 2


def test_fedpd_is_silent_about_running_statistics_too() -> None:
    with pytest.warns(UserWarning, match="BatchNorm"):
        world = World(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, CLASSES)))
    local = replace(LOCAL, batch=100)
    runs = world.runs(FedPD(p=0.5), rounds=8, local=local)
    silent = [run.record["bytes_up"] == 0 for run in runs]
    assert len(set(silent)) == 2
    for quiet, (a, b) in zip(silent[1:], itertools.pairwise(runs), strict=True):
        assert torch.equal(a.server["buffers"], b.server["buffers"]) == quiet
        assert torch.equal(a.w, b.w) == quiet


def test_a_server_that_leaves_the_numbers_is_named(world: World) -> None:
    with pytest.raises(ClientError, match=r"fedavgm, round 1, server: its model is no longer finite; a smaller"):
        world.runs(FedAvgM(server_lr=1e39), rounds=3)


def test_fedpd_refuses_a_part_of_the_clients(world: World) -> None:
    with pytest.raises(UserError, match=r"fedpd needs every client in every round; set run.participation = 1"):
        world.runs(FedPD(), participation=0.5)
    with pytest.raises(UserError, match="needs every client"):  # also before any other method of a comparison has run
        check_plan({"method": {"name": "fedpd"}, "run": {"participation": 0.5}})


# Mime ---------------------------------------------------------------------------------------------------------------


def test_mime_with_one_step_is_sgd_with_momentum_on_all_data() -> None:
    world = World(dtype=torch.float64)
    everyone = Samples(torch.cat([c.x for c in world.clients]), torch.cat([c.y for c in world.clients]))
    w, s = world.task.init(), torch.zeros_like(world.task.init())
    for run in world.runs(Mime(beta=0.7), rounds=5, local=ONE_STEP):
        s = 0.3 * full_gradient(world.task, w, everyone) + 0.7 * s
        w = w - ONE_STEP.lr * s
        torch.testing.assert_close(run.w, w, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(run.server["s"], s, rtol=1e-10, atol=1e-12)


def test_mime_first_step_ignores_its_minibatch(world: World) -> None:
    x = world.task.init()
    data = world.clients[3]
    site = Site(world.task, LOCAL, Key(0), 0, 4, data)
    c, s = torch.full_like(x, 0.3), torch.full_like(x, -0.2)
    for rows in (torch.arange(4), torch.arange(4, 9)):
        g, _ = Mime().gradient(x, Batch(*data.take(rows)), {"x": x, "s": s, "c": c}, {}, site)
        assert torch.equal(g, (1 - 0.9) * c + 0.9 * s)


def test_mimelite_momentum_is_of_full_gradients_at_x(world: World) -> None:
    """Not of the local steps: s ← (1−β) c + β s."""
    x, s = world.task.init(), torch.zeros_like(world.task.init())
    for run in world.runs(MimeLite(beta=0.6), rounds=3):
        sizes = [len(c) for c in world.clients]
        c = sum(full_gradient(world.task, x, d) * (m / sum(sizes)) for d, m in zip(world.clients, sizes, strict=True))
        s, x = 0.4 * c + 0.6 * s, run.w
        torch.testing.assert_close(run.server["s"], s, rtol=1e-4, atol=1e-6)


def test_who_does_not_answer_is_not_asked_to_train() -> None:
    class Deaf(Classification):
        """Fails at a question, which is of the whole set, of the client that has nine samples."""

        def grad(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            if len(batch.y) == 9:
                raise ValueError("not today")
            return super().grad(w, batch)

    world = World()
    task = Deaf(world.task.model, SHAPE, CLASSES)
    rounds = Rounds(rounds=1, on_failure="drop")
    (run,) = federate(Mime(), task, world.clients, world.test, rounds, LOCAL)
    assert run.record["dropped"] == {2: "mime, round 1, client 2: ValueError: not today"}
    assert [entry["id"] for entry in run.record["clients"]] == [0, 1, 3]
    model = 4 * len(run.w)
    assert run.record["bytes_down"] == (4 + 3 * 3) * model
    assert run.record["bytes_up"] == (3 + 3) * model


def test_a_round_in_which_nobody_answers_changes_nothing(world: World) -> None:
    gone = Faults(drop=1.0)
    (run,) = federate(Mime(), world.task, world.clients, world.test, Rounds(rounds=1), LOCAL, gone)
    assert torch.equal(run.w, world.task.init())
    assert set(run.record["dropped"].values()) == {"simulated"}
    assert run.record["bytes_up"] == 0
