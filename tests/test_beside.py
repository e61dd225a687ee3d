"""FedPTR's pull beside another method: with nothing of one of the two it is the other, to the bit."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from conftest import QUICK, World, part_for, same

from fedptr import cli
from fedptr.checkpoint import Store
from fedptr.commands import tables_from
from fedptr.errors import UserError
from fedptr.memory import Footprint, kept
from fedptr.methods import all_methods, get, make
from fedptr.methods.fedavg import FedAvg
from fedptr.plan import check

COMBINED = [
    "fedavg",
    "fedprox",
    "scaffold",
    "feddyn",
    "feddc",
    "fedcm",
    "fedadam",
    "fedams",
    "fedsam",
    "mofedsam",
    "moon",
]


def plus(name: str, **settings: object) -> FedAvg:
    return make(f"{name}+ptr", **QUICK, **settings)


def test_all_that_can_be_combined_are() -> None:
    assert all(plus(name).name == f"{name}+ptr" for name in ("fedadagrad", "fedyogi"))
    refused = set(all_methods()) - {*COMBINED, "fedadagrad", "fedyogi"}
    for name in refused:
        with pytest.raises(UserError, match="both have a setting"):
            get(f"{name}+ptr")


def test_control_variates_need_the_way_from_the_global_model() -> None:
    assert plus("fedavg", start_from="projected")
    with pytest.raises(UserError, match=r"method.start_from must be global for scaffold\+ptr"):
        plus("scaffold", start_from="projected")


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_fedavg_with_ptr_is_fedptr(part: float, world: World) -> None:
    ours, other = (world.weights(m, participation=part) for m in (plus("fedavg"), make("fedptr", **QUICK)))
    assert same(ours, other)


@pytest.mark.parametrize("name", COMBINED)
def test_without_strength_it_is_the_method_alone(name: str, world: World) -> None:
    part = part_for(name, 0.5)
    assert same(world.weights(make(name), participation=part), world.weights(plus(name, lam=0.0), participation=part))


@pytest.mark.parametrize("name", COMBINED)
def test_with_strength_it_is_not_once_warm(name: str, world: World) -> None:
    alone, both = world.weights(make(name)), world.weights(plus(name, lam=0.5))
    assert all(torch.equal(a, b) for a, b in zip(alone[:3], both[:3], strict=True))
    assert not torch.equal(alone[3], both[3])


def test_the_pulls_add_up(world: World) -> None:
    """SCAFFOLD's c − c_i and FedPTR's λ d_j/‖d_j‖, at a made-up state."""
    from fedptr.keys import Key
    from fedptr.local import Local
    from fedptr.site import Site

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
    store = Store(tmp_path)
    store.save(whole[4], {})
    rest = world.runs(method, rounds=7, participation=0.5, start=Store(tmp_path).load(5)[0])
    assert torch.equal(rest[-1].w, whole[-1].w)
    assert {"c_i", "X", "trail"} <= set(rest[-1].clients[0])


def test_memory_counts_both() -> None:
    foot = Footprint(model=100, image=10)
    alone = kept(make("fedptr", **QUICK), foot, 6, "client keeps")
    assert kept(plus("scaffold"), foot, 6, "client keeps") == pytest.approx(100 + alone)


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    args = cli.parser().parse_args(["run", "--method", "scaffold", "--with", "ptr", "--set", "method.lam=0.2"])
    plan = check(tables_from(args))
    assert plan.method == make("scaffold+ptr", lam=0.2)
    assert check(plan.tables()) == plan
    assert cli.main(["run", "--method", "mime", "--with", "ptr"]) == 2
    said = capsys.readouterr().err
    assert said == "fedptr: mime+ptr: both have a setting 'beta'; combine ptr with another method\n"
