"""Local optimisers: torch's own to rounding, new in every round, and refused where a method assumes plain steps."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from same_bits import equal, untimed
from small_plans import TABLES, plan_for
from small_world import LOCAL, World, part_for, quick
from torch import Tensor
from torch.func import functional_call

from fedptr.core.federation import federate, personal_model
from fedptr.core.local_training import Local
from fedptr.core.method import Site
from fedptr.core.optimisers import make_optimiser, objective_decay
from fedptr.core.randomness import Key
from fedptr.errors import UserError
from fedptr.methods import FedAvg, all_methods, find_method, make_method
from fedptr.runs.checkpoint import CheckpointStore
from fedptr.runs.dataset_defaults import with_dataset_defaults
from fedptr.runs.plan import check_plan
from fedptr.types import Batch

ADAM = replace(LOCAL, optimiser="adam", lr=0.01, weight_decay=0.02)
ADAMW = replace(ADAM, optimiser="adamw")
OTHER = [ADAM, ADAMW, replace(ADAM, beta1=0.5, beta2=0.9, epsilon=1e-3, weight_decay=0.0)]
SENDERS = {name for name, method in all_methods().items() if method.sends_sets}
SGD_ONLY = {"scaffold", "feddc", "fedcm", "mofedsam", "mime", "mimelite", "l2gd", "mocha", *SENDERS}
FREE = [name for name in all_methods() if name not in SGD_ONLY]


def torch_optimiser(params: list[Tensor], local: Local) -> torch.optim.Optimizer:
    cls = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[local.optimiser]
    how: dict[str, Any] = {"betas": (local.beta1, local.beta2), "weight_decay": local.weight_decay}
    return cls(params, local.lr, eps=local.epsilon, foreach=False, **how)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("local", OTHER)
def test_steps_are_torchs_own(local: Local, dtype: torch.dtype) -> None:
    """Weight decay is in Adam's gradient, where torch rounds its sum once less, and beside AdamW's."""
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(50, generator=draw, dtype=dtype)
    ours, w = make_optimiser(start, local), start.clone().requires_grad_()
    theirs = torch_optimiser([w], local)
    for k in range(30):
        w.grad = torch.randn(50, generator=draw, dtype=dtype) * 10.0 ** (k % 5 - 2)
        ours.step(w.grad.clone())
        theirs.step()
        if objective_decay(local):
            torch.testing.assert_close(ours.w, w.detach(), rtol=20 * torch.finfo(dtype).eps, atol=0)
        else:
            assert torch.equal(ours.w, w.detach()), k


def test_the_two_adams_differ_by_their_decay_alone() -> None:
    start, g = torch.ones(4), torch.tensor([1.0, -2.0, 0.5, 0.0])
    decayed, apart = (make_optimiser(start, local) for local in (ADAM, ADAMW))
    same, too = (make_optimiser(start, replace(local, weight_decay=0.0)) for local in (ADAM, ADAMW))
    for one in (decayed, apart, same, too):
        one.step(g)
    assert torch.equal(same.w, too.w)
    torch.testing.assert_close(apart.w, same.w - ADAMW.lr * ADAMW.weight_decay * start)
    assert not torch.equal(decayed.w, apart.w)
    assert (objective_decay(ADAM), objective_decay(ADAMW)) == (0.02, 0.0)


def test_the_gradient_is_clipped_before_adam_sees_it() -> None:
    """With the weight decay of Adam, without that of AdamW."""
    start, g = torch.full((3,), 2.0), torch.tensor([3.0, 0.0, 4.0])
    for local, whole in ((ADAM, g + ADAM.weight_decay * start), (ADAMW, g)):
        clipped = make_optimiser(start, replace(local, clip=0.5))
        clipped.step(g)
        plain = make_optimiser(start, replace(local, weight_decay=0.0))
        plain.step(whole * (0.5 / (whole.norm() + 1e-6)))
        apart = ADAMW.lr * ADAMW.weight_decay * start if local is ADAMW else 0.0
        torch.testing.assert_close(clipped.w, plain.w - apart)


@pytest.mark.parametrize("local", [replace(local, batch=100, epochs=3) for local in OTHER])
def test_one_client_with_full_batches_is_central_adam(local: Local) -> None:
    """Against torch.optim, whose state is reset in every round."""
    world = World(sizes=(11,), dtype=torch.float64)
    task, data = world.task, world.clients[0]
    names = [layer.name for layer in task.layers]
    params = [p.clone().requires_grad_() for p in task.parameters(task.init()).values()]
    for expected in world.weights(FedAvg(), rounds=4, local=local):
        optimiser = torch_optimiser(params, local)
        for _ in range(3):
            optimiser.zero_grad()
            logits = functional_call(task.model, dict(zip(names, params, strict=True)), (data.x,))
            F.cross_entropy(logits, data.y).backward()
            optimiser.step()
        flat = torch.cat([p.detach().reshape(-1) for p in params])
        torch.testing.assert_close(expected, flat, rtol=1e-9, atol=1e-11)


def test_settings_of_another_optimiser_change_nothing(world: World) -> None:
    for local, change in ((LOCAL, {"beta1": 0.1, "beta2": 0.2, "epsilon": 1.0}), (ADAM, {"momentum": 0.0})):
        a, b = (world.weights(FedAvg(), rounds=2, local=one) for one in (local, replace(local, **change)))
        assert all(map(torch.equal, a, b))


@pytest.mark.parametrize("name", FREE)
def test_a_free_method_trains_with_adam_and_resumes_exactly(name: str, world: World, tmp_path) -> None:
    part = part_for(name, 0.5)
    whole = world.runs(quick(name), rounds=6, participation=part, local=ADAM)
    plain = world.runs(quick(name), rounds=1, participation=part, local=replace(LOCAL, lr=ADAM.lr))
    trained = [(run.server, dict(run.clients)) for run in (whole[0], plain[0])]
    assert not (equal(trained[0][0], trained[1][0]) and equal(trained[0][1], trained[1][1])), "it is another training"
    assert all(bool(run.w.isfinite().all()) for run in whole)
    CheckpointStore(tmp_path).save(whole[3], {})
    rest = world.runs(quick(name), rounds=6, participation=part, local=ADAM, start=CheckpointStore(tmp_path).load(4)[0])
    assert equal(whole[-1].server, rest[-1].server)
    assert equal(dict(whole[-1].clients), dict(rest[-1].clients))
    assert untimed(whole[-1].record) == untimed(rest[-1].record)


@pytest.mark.parametrize(("name", "settings"), [("ditto", {"lam": 0.0}), ("apfl", {"alpha": 1.0})])
def test_a_second_model_is_trained_with_adam_too(name: str, settings: dict[str, float], world: World) -> None:
    """Without its tie to the others it is the model of a client that trains alone."""
    both = [world.runs(make_method(one, **how), rounds=3, local=ADAM) for one, how in ((name, settings), ("local", {}))]
    for i in both[0][-1].clients:
        own, alone = both[0][-1].clients[i]["v"], both[1][-1].clients[i]["w_i"]
        torch.testing.assert_close(own, alone, rtol=1e-5, atol=1e-7)


def test_fine_tuning_uses_adam_too(world: World) -> None:
    """From the model of the last round, on batches of its own."""
    method, data, key = make_method("finetune"), world.clients[0], Key(0).at("round", 0, "client", 0)
    (run,) = world.runs(method, rounds=1, local=ADAM)
    by_hand = make_optimiser(run.w, ADAM)
    for index in torch.randperm(len(data), generator=key.at("finetune")("batch-order")).split(ADAM.batch):
        g, _ = world.task.grad(by_hand.w, Batch(*data.take(index)))
        by_hand.step(g)
    site = Site(world.task, ADAM, key, 0, 4, data=data, size=len(data))
    assert torch.equal(personal_model(method, run, site, 0)[1], by_hand.w)


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
@pytest.mark.parametrize("name", all_methods())
def test_what_a_method_declares_is_kept(name: str, optimiser: Any, world: World) -> None:
    """In a plan and in the library, before anything is trained; and of NAME+ptr too."""
    tables = {**TABLES, "local": {"optimiser": optimiser}, "run": {"rounds": 1}}
    tables["model"] = {"name": "linear"}
    wanted = [name] if all_methods()[name].no_ptr else [name, f"{name}+ptr"]
    for one in wanted:
        method = find_method(one)
        assert bool(method.sgd_only) == (name in SGD_ONLY)
        if not method.sgd_only:
            assert check_plan({**tables, "method": {"name": one}}).local.optimiser == optimiser
            assert method.optimisers_in_words() == "sgd, adam or adamw"
            continue
        words = f"{one} {method.sgd_only}; set local.optimiser = sgd, or choose another method"
        with pytest.raises(UserError) as in_plan:
            check_plan({**tables, "method": {"name": one}})
        with pytest.raises(UserError) as in_library:
            next(federate(method(), world.task, world.clients, local=Local(optimiser=optimiser)))
        assert str(in_plan.value) == str(in_library.value) == words
        assert method.optimisers_in_words() == f"sgd only: {one} {method.sgd_only}"


def test_a_new_setting_is_no_part_of_the_runs_before_it() -> None:
    """Every one of them has its baseline where nobody sets it."""
    new = {"optimiser", "beta1", "beta2", "epsilon", "schedule", "warmup", "final_lr", "step_every", "step_factor"}
    assert {f.name for f in fields(Local)} >= new
    assert all(getattr(plan_for("fedavg").local, name) == getattr(Local(), name) for name in new)


def test_the_default_learning_rate_suits_the_optimiser() -> None:
    """Digits' 0.1 is far too much for Adam; what is said stays."""
    rates = [
        with_dataset_defaults({"local": local})[0]["local"]["lr"]
        for local in ({}, {"optimiser": "sgd"}, {"optimiser": "adam"}, {"optimiser": "adamw", "lr": 0.5})
    ]
    assert rates == [0.1, 0.1, 0.003, 0.5]
