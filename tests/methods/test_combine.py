"""FedPTR beside another method: with nothing of one of the two it is the other, to the bit."""

from __future__ import annotations

import pickle
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from same_bits import same
from small_world import QUICK, World, part_for

from fedptr.cli.main import build_parser, main
from fedptr.cli.plan_options import build_tables
from fedptr.compute.memory_estimate import Footprint, kept_bytes
from fedptr.errors import UserError
from fedptr.methods import all_methods, find_method, make_method
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.ptr.combine import ptr_setting_name
from fedptr.methods.ptr.projection import Projection
from fedptr.methods.ptr.trajectory import MEMORY
from fedptr.runs.checkpoint import CheckpointStore
from fedptr.runs.plan import check_plan
from fedptr.runs.summary import print_advice

COMBINED = [name for name, method in all_methods().items() if not method.no_ptr]


def plus(name: str, **settings: object) -> FedAvg:
    """With FedPTR's settings by FedPTR's names, whatever they are called beside this method."""
    return make_method(
        f"{name}+ptr",
        **{ptr_setting_name(find_method(f"{name}+ptr"), key): value for key, value in (QUICK | settings).items()},
    )


def test_all_that_can_be_combined_are() -> None:
    refused = set(all_methods()) - set(COMBINED)
    assert refused >= {"fedptr", "fedptr-s", "fedptr-linear", "naive"}
    for name in refused:
        with pytest.raises(UserError, match=all_methods()[name].no_ptr):
            find_method(f"{name}+ptr")


@pytest.mark.parametrize("name", COMBINED)
def test_each_has_its_own_settings(name: str) -> None:
    """The method's come first and are its own; of a name that both have FedPTR's is called ptr_NAME, and heeded."""
    cls, alone, ptr = find_method(f"{name}+ptr"), find_method(name), fields(Projection)
    own = [f.name for f in fields(alone)]
    shown = {f.name: f for f in fields(cls)}
    assert list(shown)[: len(own)] == own
    assert set(shown) == {*own, *(ptr_setting_name(cls, f.name) for f in ptr)}
    for there in fields(alone):
        assert (shown[there.name].default, shown[there.name].metadata) == (there.default, there.metadata)
    for there in ptr:
        here = shown[ptr_setting_name(cls, there.name)]
        assert (here.default, here.metadata["bounds"]) == (there.default, there.metadata["bounds"])
    method = plus(name, beta=0.123, eta=0.234, lam=0.345)
    assert (method.ptr.beta, method.ptr.eta, method.ptr.lam) == (0.123, 0.234, 0.345)
    assert [getattr(method, key) for key in own] == [getattr(alone(), key) for key in own]


def test_advice_names_the_setting_that_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    summary = {"matching": {"loss": 1.5, "times": 2, "skipped": 2}}
    for name, beta in (("fedptr", "beta"), ("scaffold+ptr", "beta"), ("fedavgm+ptr", "ptr_beta")):
        print_advice(make_method(name), summary)
        said = capsys.readouterr().err
        assert "2 projections were left out" in said
        assert f"try --set method.{beta}=auto --set method.lr_img=auto\n" in said
    for settings, advice in (
        ({"beta": "auto"}, "try --set method.lr_img=auto\n"),
        ({"beta": "auto", "lr_img": "auto", "H": 4}, "try --set method.H=8, which learns for longer\n"),
    ):
        print_advice(make_method("fedptr-s", **settings), summary)
        assert advice in capsys.readouterr().err
    print_advice(make_method("dynafed"), summary)  # whose steps are never found as it learns
    assert "try --set method.H=6000" in capsys.readouterr().err


FACTORS = ("bases", "bases_velocity", "styles", "styles_velocity")


def test_memory_has_the_names_by_which_it_is_kept(world: World) -> None:
    soft = world.runs(plus("fedavg", labels="soft", ema=0.5, styles=1), rounds=1)[-1]
    assert set(soft.clients[0]) == set(MEMORY)
    hard = world.runs(plus("fedavg"), rounds=1)[-1]
    assert set(hard.clients[0]) == set(MEMORY) - {"Y", "Y_velocity", "X_mean", *FACTORS}


def test_a_silent_round_stays_silent_and_leaves_nothing_behind(world: World) -> None:
    """FedPD sends nothing in a silent round, and forgets its x_i in the next that is not."""
    settings = {"p": 0.5}
    alone, both = (world.runs(m, rounds=8) for m in (make_method("fedpd", **settings), plus("fedpd", **settings)))
    assert [run.record["bytes_up"] for run in both] == [run.record["bytes_up"] for run in alone]
    assert [set(run.clients[0]) - set(MEMORY) for run in both] == [set(run.clients[0]) for run in alone]
    assert any("x_i" in run.clients[0] for run in both)
    assert "x_i" not in both[-1].clients[0]


@pytest.mark.parametrize("part", [1.0, 0.5])
@pytest.mark.parametrize("name", ["scaffold", "feddc", "feddyn"])
def test_what_is_made_from_the_way_counts_from_the_projected_start(name: str, part: float, world: World) -> None:
    """The server's mean is the mean over the clients' own, also where each of them starts somewhere else."""
    ours, theirs = {"scaffold": ("c", "c_i"), "feddc": ("h", "h_i"), "feddyn": ("r", "r_i")}[name]
    run = world.runs(plus(name, eta=0.1), rounds=8, participation=part)[-1]
    states = [run.clients[i] for i in run.clients]
    total = sum(state[theirs] for state in states)
    torch.testing.assert_close(run.server[ours], total / len(world.clients), rtol=1e-4, atol=1e-6)
    if name == "feddc":
        torch.testing.assert_close(run.server["c"], sum(s["c_i"] for s in states) / len(world.clients))


@pytest.mark.parametrize("name", ["scaffold", "feddc", "feddyn", "fedcm", "mofedsam", "fedpd"])
def test_the_projection_is_no_part_of_the_way(name: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no gradient moves a client its way is nothing, however far from x it started."""
    monkeypatch.setattr(FedAvg, "gradient", lambda self, w, *_: (torch.zeros_like(w), torch.tensor(0.0)))
    run = world.runs(plus(name, eta=0.1), rounds=5)[-1]
    assert not torch.equal(run.w, world.task.init())  # it was the projection that moved it
    kept = [run.server, *run.clients.values()]
    made = [state[entry] for state in kept for entry in ("c", "h", "r", "delta", "c_i", "h_i", "r_i") if entry in state]
    assert made
    assert not any(bool(value.any()) for value in made)


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_fedavg_with_ptr_is_fedptr(part: float, world: World) -> None:
    ours, other = (world.weights(m, participation=part) for m in (plus("fedavg"), make_method("fedptr", **QUICK)))
    assert same(ours, other)


@pytest.mark.parametrize("name", COMBINED)
def test_without_strength_it_is_the_method_alone(name: str, world: World) -> None:
    part = part_for(name, 0.5)
    assert same(
        world.weights(make_method(name), participation=part), world.weights(plus(name, lam=0.0), participation=part)
    )


@pytest.mark.parametrize("name", COMBINED)
def test_with_strength_it_is_not_once_warm(name: str, world: World) -> None:
    alone, both = world.weights(make_method(name)), world.weights(plus(name, lam=0.5))
    assert all(torch.equal(a, b) for a, b in zip(alone[:3], both[:3], strict=True))
    assert not torch.equal(alone[3], both[3])


def test_the_pulls_add_up(world: World) -> None:
    """SCAFFOLD's c − c_i and FedPTR's λ d_j/‖d_j‖, at a made-up state."""
    from fedptr.core.local_training import Local
    from fedptr.core.method import Site
    from fedptr.core.randomness import Key

    x = world.task.init()
    g = torch.Generator().manual_seed(0)
    c, c_i, target = (torch.randn(len(x), generator=g) for _ in range(3))
    site = Site(world.task, Local(), Key(0), 9, 4, world.clients[0])
    msg, client = {"x": x, "c": c, "target": target}, {"c_i": c_i}
    both = plus("scaffold", regulariser="fixed", lam=0.3).pull(x, msg, client, site)
    torch.testing.assert_close(both, (c - c_i) + 0.3 * (x - target))


def test_resume_and_pickle(world: World, tmp_path: Path) -> None:
    method = plus("scaffold")
    assert pickle.loads(pickle.dumps(method)) == method  # noqa: S301, our own bytes
    whole = world.runs(method, rounds=7, participation=0.5)
    store = CheckpointStore(tmp_path)
    store.save(whole[4], {})
    rest = world.runs(method, rounds=7, participation=0.5, start=CheckpointStore(tmp_path).load(5)[0])
    assert torch.equal(rest[-1].w, whole[-1].w)
    assert {"c_i", "X", "trail"} <= set(rest[-1].clients[0])


def test_memory_counts_both() -> None:
    foot = Footprint(model=100, image=10)
    alone = kept_bytes(make_method("fedptr", **QUICK), foot, 6, "client")
    assert kept_bytes(plus("scaffold"), foot, 6, "client") == pytest.approx(100 + alone)


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["run", "--preset", "paper", "--method", "scaffold", "--with", "ptr", "--set", "method.lam=0.2"]
    args = build_parser().parse_args(argv)
    plan = check_plan(build_tables(args))
    assert plan.method == make_method("scaffold+ptr", lam=0.2)
    assert check_plan(plan.tables()) == plan
    assert main(["run", "--method", "naive", "--with", "ptr"]) == 2
    said = capsys.readouterr().err
    assert said == "fedptr: naive+ptr: naive has a part of FedPTR already; combine ptr with another method\n"
