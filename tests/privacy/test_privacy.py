"""Differential privacy: what is clipped, how much noise there is, what ε says, and what is refused."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
from pathlib import Path

import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from same_bits import same
from small_world import World, quick
from toy_methods import Toy

from fedptr.cli.main import main
from fedptr.core.federation import Rounds
from fedptr.core.local_training import Local
from fedptr.core.method import Site
from fedptr.core.randomness import Key
from fedptr.errors import UserError
from fedptr.methods import all_methods
from fedptr.privacy.differential import Privacy, compute_epsilon, draw_normal, draw_uniform
from fedptr.privacy.secure_sums import make_small_site, sums_suffice
from fedptr.types import Reply, State

needs_accountant = pytest.mark.skipif(
    importlib.util.find_spec("dp_accounting") is None, reason="dp-accounting is not installed"
)
OFTEN = {"l2gd": {"p": 0.9}}  # so that it makes a mean within a few rounds
METHODS = {name: quick(name, weighting="uniform", **OFTEN.get(name, {})) for name in all_methods()}
BESIDES = {name: sorted(method.sends(make_small_site().task).keys() - {"w"}) for name, method in METHODS.items()}
SILENT = [name for name, method in METHODS.items() if not method.sends(make_small_site().task)]
MODEL_ALONE = [
    name for name, method in METHODS.items() if not method.answered and not BESIDES[name] and name not in SILENT
]
PRIVATE = [name for name in MODEL_ALONE if sums_suffice(METHODS[name])]
SEED = Privacy(clip=1.0, randomness="seed")


def site(world: World, t: int = 0) -> Site:
    return Site(world.task, Local(), Key(0).at("round", t, "server"), t, 10)


def reply(i: int, w: torch.Tensor) -> Reply:
    return Reply(i, 1, {"w": w})


@given(st.integers(0, 2**32), st.floats(1e-3, 1e3), st.integers(0, 5))
def test_one_client_moves_the_released_model_by_no_more_than_the_noise_was_made_for(
    seed: int, size: float, n: int
) -> None:
    world, C, q = World(), 0.5, 0.3
    x = torch.zeros(40)
    steps = size * torch.randn(n + 1, 40, generator=Key(seed)("steps"))
    replies = [reply(i, x + step) for i, step in enumerate(steps)]
    privacy = Privacy(clip=C, randomness="seed")  # the same noise twice
    with_, without = (
        privacy.release(some, x, Rounds(participation=q), site(world))[0].state["w"] for some in (replies, replies[:-1])
    )
    assert float((with_ - without).norm()) * q * 10 <= C * (1 + 1e-4)


@pytest.mark.parametrize("randomness", ["seed", "system"])
def test_noise_is_normal_with_the_stated_deviation(randomness: str) -> None:
    world, x, q = World(), torch.zeros(100_000), 0.5
    privacy = Privacy(clip=2.0, noise=1.5, randomness=randomness)  # type: ignore[arg-type]
    one, other = (privacy.release([], x, Rounds(participation=q), site(world, t))[0].state["w"] for t in (0, 1))
    assert float(one.std()) == pytest.approx(1.5 * 2.0 / (q * 10), rel=0.02)
    assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.02
    assert scipy.stats.kstest(one.numpy() / float(one.std()), "norm").pvalue > 1e-6


def test_random_numbers_are_never_zero_or_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for byte in (b"\x00", b"\xff", b"\x7f", b"\x80"):
        monkeypatch.setattr("os.urandom", lambda n, byte=byte: byte * n)
        assert 0 < float(draw_uniform(1, None, "noise")) < 1
    worst = b"\xff" * 7 + b"\x7f"  # the largest, and the smallest
    for word in (worst, b"\x00" * 7 + b"\x80"):
        monkeypatch.setattr("os.urandom", lambda n, word=word: word * (n // 8))
        assert 0 < float(draw_uniform(1, None, "noise")) < 1
        assert bool(draw_normal(3, None).isfinite().all())


def test_the_server_sees_as_many_replies_as_expected_whoever_replied(world: World) -> None:
    for n in (0, 1, 7):
        seen = SEED.release(
            [reply(i, torch.ones(5)) for i in range(n)], torch.zeros(5), Rounds(participation=0.4), site(world)
        )
        assert len(seen) == 4
        assert {entry.client for entry in seen} == {-1}
        assert len({entry.state["w"].numpy().tobytes() for entry in seen}) == 1


@needs_accountant
@pytest.mark.parametrize("name", PRIVATE)
def test_without_clipping_and_noise_it_is_the_method_itself(name: str, world: World) -> None:
    method = METHODS[name]
    plain = world.runs(method)[-1].w
    private = world.runs(method, privacy=Privacy(clip=1e4, noise=1e-11, randomness="seed"))[-1].w
    assert torch.allclose(plain, private, atol=1e-4)
    assert not torch.allclose(plain, world.runs(method, privacy=Privacy(clip=1e-2, noise=1e-9))[-1].w, atol=1e-4)


@needs_accountant
def test_silent_rounds_release_nothing_and_count(world: World) -> None:
    runs = world.runs(quick("fedpd", p=0.6), rounds=8, privacy=Privacy(clip=1.0, noise=0.5, randomness="seed"))
    moved = [not torch.equal(a.w, b.w) for a, b in itertools.pairwise(runs)]
    assert moved == [run.record["bytes_up"] > 0 for run in runs[1:]]
    assert len(set(moved)) == 2
    spent = [run.record["epsilon"] for run in runs]
    assert spent == sorted(set(spent))


@needs_accountant
def test_rounds_nobody_was_drawn_for_are_rounds_all_the_same(world: World) -> None:
    runs = world.runs(
        quick("fedavg", weighting="uniform"), rounds=60, privacy=SEED, participation=0.25, sampling="bernoulli"
    )
    sizes = [len(run.record["cohort"]) for run in runs]
    assert 0 in sizes
    assert sum(sizes) / (60 * 4) == pytest.approx(0.25, abs=0.1)
    moved = [not torch.equal(a.w, b.w) for a, b in itertools.pairwise(runs)]
    assert all(moved)
    assert all(bool(run.w.isfinite().all()) for run in runs)


@needs_accountant
def test_from_the_seed_it_is_repeated_and_resumed_bit_for_bit_and_from_the_system_never(world: World) -> None:
    method = quick("fedptr-s", weighting="uniform")
    runs = world.runs(method, privacy=SEED, participation=0.5, sampling="bernoulli")
    again = world.runs(method, privacy=SEED, participation=0.5, sampling="bernoulli")
    rest = world.runs(method, privacy=SEED, participation=0.5, sampling="bernoulli", start=runs[2])
    assert same([run.w for run in runs], [run.w for run in again])
    assert same([run.w for run in runs[3:]], [run.w for run in rest])
    one, other = (
        world.runs(method, 20, privacy=Privacy(clip=1.0), participation=0.5, sampling="bernoulli") for _ in range(2)
    )
    assert not torch.equal(one[0].w, other[0].w)
    assert [run.record["cohort"] for run in one] != [run.record["cohort"] for run in other]


@needs_accountant
@pytest.mark.parametrize(("q", "z", "T"), [(1.0, 1.0, 1), (1.0, 5.0, 100), (0.1, 1.0, 30), (0.01, 1.1, 1000)])
def test_epsilon_is_an_upper_bound_and_not_far_from_the_tight_one(q: float, z: float, T: int) -> None:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    event = GaussianDpEvent(z) if q == 1 else PoissonSampledDpEvent(q, GaussianDpEvent(z))
    tight = PLDAccountant().compose(event, T).get_epsilon(1e-5)
    assert tight <= compute_epsilon(q, z, T, 1e-5) <= 1.2 * tight


@needs_accountant
def test_epsilon_of_full_participation_covers_the_exact_gaussian_mechanism() -> None:
    """Balle and Wang's formula for the δ of a Gaussian mechanism, at our ε, must not exceed ours."""
    z, T, delta = 2.0, 9, 1e-5
    mu, eps = math.sqrt(T) / z, compute_epsilon(1.0, z, T, delta)
    Phi = scipy.stats.norm.cdf
    exact = Phi(mu / 2 - eps / mu) - math.exp(eps) * Phi(-mu / 2 - eps / mu)
    assert 0 < exact <= delta


@needs_accountant
def test_epsilon_is_in_every_record_and_grows(world: World) -> None:
    runs = world.runs(quick("fedavg", weighting="uniform"), privacy=SEED)
    spent = [run.record["epsilon"] for run in runs]
    assert spent == sorted(set(spent))
    assert spent[-1] == compute_epsilon(1.0, 1.0, 6, 1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_refused_by_name_with_the_reason_or_fit(name: str) -> None:
    method, rounds = METHODS[name], Rounds()
    if name in SILENT:
        for privacy in (Privacy(clip=1.0), Privacy(secure=True)):
            with pytest.raises(UserError, match=f"{name} sends nothing, so there is nothing to protect"):
                privacy.check(method, rounds)
        return
    reason = (
        "asks clients for gradients" if method.answered
        else f"sends {', '.join(BESIDES[name])} besides the model" if BESIDES[name]
        else "needs every client's own reply" if not sums_suffice(method)
        else ""
    )  # fmt: skip
    if reason:
        with pytest.raises(UserError, match=f"{name} {reason}"):
            Privacy(clip=1.0).check(method, rounds)
    elif importlib.util.find_spec("dp_accounting"):
        Privacy(clip=1.0).check(method, rounds)
    if sums_suffice(method):
        Privacy(secure=True).check(method, rounds)
    else:
        with pytest.raises(UserError, match=r"privacy\.secure: .* use another method"):
            Privacy(secure=True).check(method, rounds)


def test_there_are_methods_of_every_kind() -> None:
    """So that the tests above test something."""
    assert len({method.answered for method in METHODS.values()}) > 1
    assert len({bool(besides) for besides in BESIDES.values()}) > 1
    assert 0 < len(PRIVATE) < len(MODEL_ALONE)


def test_a_method_of_ones_own_that_looks_at_single_replies_is_found_out() -> None:
    class Median(all_methods()["fedavg"]):  # type: ignore[misc]
        def aggregate(self, server: State, replies: list[Reply], site: Site) -> State:
            return {**server, "x": torch.stack([r.state["w"] for r in replies]).median(0).values}

    assert not sums_suffice(Median())


def test_entries_that_cannot_be_summed_are_named() -> None:
    """Also where the server keeps something for every client, which it cannot know from a sum."""
    assert not sums_suffice(Toy(weighting="uniform"))
    with pytest.raises(UserError, match=r"privacy\.secure: toy sends whole, whose sum over clients means nothing; use"):
        Privacy(secure=True).check(Toy(weighting="uniform"), Rounds())
    with pytest.raises(
        UserError, match=r"privacy\.clip: toy sends table, whole besides the model, which clip does not"
    ):
        Privacy(clip=1.0).check(Toy(weighting="uniform"), Rounds())


@needs_accountant
def test_the_global_branch_of_a_personalised_method_is_as_private_as_fedavg(world: World) -> None:
    """A client's own model stays with it, so what is released, and ε, are FedAvg's to the bit."""
    plain, ditto = (world.runs(quick(name, weighting="uniform"), privacy=SEED) for name in ("fedavg", "ditto"))
    assert same([run.w for run in plain], [run.w for run in ditto])
    assert [run.record["epsilon"] for run in plain] == [run.record["epsilon"] for run in ditto]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["privacy.clip=1"], "set method.weighting=uniform"),
        (["privacy.clip=1", "method.weighting=uniform", "run.participation=0.5"], "set run.sampling=bernoulli"),
        (["privacy.clip=1", "method.weighting=uniform", "run.checkpoint_every=5"], "set run.checkpoint_every=1"),
        (["privacy.secure=true"], "is for `fedptr deploy`"),
        (
            ["privacy.secure=true", "method.name=feddyn", "method.weighting=samples"],
            "set method.weighting=uniform",
        ),
        (["privacy.clip=-1"], "privacy.clip must be at least 0"),
        (["privacy.clip=1", "privacy.delta=1"], "privacy.delta must be less than 1"),
    ],
)
def test_what_would_not_be_private_is_refused_in_one_sentence(
    settings: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [part for setting in ["method.name=fedavg", *settings] for part in ("--set", setting)]
    assert main(["run", "--rounds", "2", "--out", str(tmp_path / "run"), *sets]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert "Traceback" not in told
    assert not (tmp_path / "run").exists()


@needs_accountant
@pytest.mark.filterwarnings("default")
def test_running_statistics_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "normed.py").write_text(
        "from torch import nn\n"
        "def make(s, c): return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, c))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sets = ["--set", "privacy.clip=1", "--set", "method.weighting=uniform", "--model", "normed:make"]
    assert main(["run", "--method", "fedavg", "--rounds", "2", "--out", str(tmp_path / "run"), *sets]) == 2
    assert "normed:make has running statistics, which clip does not bound" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_missing_accountant_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'fedptr\[privacy\]'"):
        Privacy(clip=1.0).check(quick("fedavg", weighting="uniform"), Rounds())


@needs_accountant
def test_a_private_run_says_what_it_protects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for randomness, words in (("system", "a client's taking part"), ("seed", "nothing")):
        out = tmp_path / randomness
        sets = ["privacy.clip=1", "method.weighting=uniform", f"privacy.randomness={randomness}"]
        sets = [part for setting in sets for part in ("--set", setting)]
        assert main(["run", "--method", "fedavg", "--model", "mlp", "--rounds", "2", "--out", str(out), *sets]) == 0
        told = capsys.readouterr()
        assert "ε = " in told.out
        assert words in told.out
        assert "ε" in told.err
        summary = json.loads((out / "summary.json").read_text())
        assert summary["privacy"]["epsilon"] == compute_epsilon(1.0, 1.0, 2, 1e-5)
        assert main(["resume", str(out)]) == 0
