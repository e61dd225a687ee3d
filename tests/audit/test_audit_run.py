"""Audits of real runs: what is overfitted is caught, and what is untrained is not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from audited_runs import QUICK, Capture, audit, copied, mislabelled, noise, run, stamps

from fedptr.audit.examples import choose_examples
from fedptr.audit.scores import compute_phi
from fedptr.audit.shadows import make_generator
from fedptr.audit.target import load_target
from fedptr.cli.main import main
from fedptr.data.split import Split
from fedptr.report.find_runs import walk_runs
from fedptr.runs import auxiliary_sets
from fedptr.runs.plan import load_plan, read_plan

pytestmark = pytest.mark.xdist_group("audits")  # so that the runs they share are trained once


@pytest.fixture(scope="module")
def overfitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("overfitted")
    how = ("--rounds", "6", "--epochs", "6", "--lr", "0.1", "--width", "64")
    return run(base / "run", noise(base / "noise.npz"), *how)


@pytest.fixture(scope="module")
def fedptr_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fedptr") / "run"
    matching = [f"--set=method.{name}" for name in ("H=1", "R=2", "m=1", "ipc=3", "lr_img=1")]
    assert main([
        "run", "--dataset", "digits", "--subset", "300", "--alpha", "0.5", *QUICK, "--rounds", "6", *matching,
        "--out", str(out),
    ]) == 0  # fmt: skip
    return out


def test_an_overfitted_model_is_caught(overfitted: Path, capsys: Capture) -> None:
    found = audit(overfitted, "--shadows", "8")
    loss, online, offline = (found["attacks"][name] for name in ("loss", "lira online", "lira offline"))
    assert loss["accuracy"] > 0.7
    assert loss["yeom"]["accuracy"] > 0.7
    assert min(online["auc"], offline["auc"]) > 0.7
    assert online["tpr"]["0.01"] > 0.1
    assert (found["members"], found["non_members"], found["background"]) == (200, 200, 0)
    assert [entry["client"] for entry in loss["clients"]] == [0, 1, 2]
    split = Split.load(overfitted / "split.json")
    assert [entry["members"] for entry in loss["clients"]] == [len(rows) for rows in split.clients]
    assert all(entry["auc"] > 0.7 for entry in loss["clients"] if "auc" in entry)
    assert "loss, Yeom" in capsys.readouterr().out
    assert (overfitted / "audit" / "roc.png").stat().st_size > 5000
    assert "<svg" in (overfitted / "audit" / "roc.svg").read_text()
    summary = json.loads((overfitted / "summary.json").read_text())
    assert found["weights_sha256"] == summary["weights_sha256"]
    assert found["split_sha256"] == summary["split_sha256"]
    assert found["plan"]["run"]["rounds"] == 6
    assert str(overfitted.parent) not in json.dumps(found), "where it was made is not told"


def test_shadows_are_the_same_training_on_other_members(overfitted: Path) -> None:
    audit(overfitted, "--shadows", "8")
    places = sorted((overfitted / "audit" / "shadows").glob("federated-*/shadow*"))
    assert len(places) == 8
    own, target = load_plan(overfitted), load_target(overfitted)
    counts = np.zeros(400, dtype=int)
    seeds = set()
    for place in places:
        plan = load_plan(place)
        seeds.add(plan.run.seed)
        changed = {
            f"{section}.{key}"
            for section, table in plan.tables().items()
            for key, value in table.items()
            if value != own.tables()[section][key]
        }
        assert changed == {"run.seed", "run.eval_every", "data.pool", "split.file", "output.pictures"}
        split = Split.load(place / "split.json")
        assert len(split.clients) == 3
        counts[np.concatenate(split.clients)] += 1
        for before, after in zip(target.split.clients, split.clients, strict=True):
            assert {row for row in after if row < 200} <= set(before), "members stay with their client"
    assert (counts == 4).all(), "every example is in half of the shadows"
    assert len(seeds) == 8
    assert list(walk_runs(overfitted)) == [overfitted], "shadows are no runs of a report"


def test_finished_shadows_are_never_trained_again(overfitted: Path) -> None:
    first = audit(overfitted, "--shadows", "8")
    before = stamps(overfitted)
    again = audit(overfitted, "--shadows", "8", "--attack", "lira")
    assert stamps(overfitted) == before
    assert again == first, "and an attack made before stays"
    kept = sorted(overfitted.rglob("phi.safetensors"))
    kept[0].write_bytes(b"damaged")
    kept[1].unlink()
    assert audit(overfitted, "--shadows", "8", "--attack", "lira") == first
    audit(overfitted, "--shadows", "10", "--attack", "lira")
    after = stamps(overfitted)
    assert len(after) == len(before) + 2, "more shadows keep the first ones"
    assert before.items() <= after.items()


def test_a_shadow_can_be_repeated_from_its_plan(overfitted: Path, tmp_path: Path) -> None:
    audit(overfitted, "--shadows", "10")
    place = min((overfitted / "audit" / "shadows").glob("federated-*/shadow*"))
    assert main(["run", str(place / "plan.toml"), "--out", str(tmp_path / "again")]) == 0
    a, b = (json.loads((folder / "summary.json").read_text()) for folder in (place, tmp_path / "again"))
    assert a["weights_sha256"] == b["weights_sha256"]


def test_centralised_shadows_are_labelled(overfitted: Path) -> None:
    found = audit(overfitted, "--shadows", "4", "--attack", "lira", "--shadow-trainer", "centralised")
    numbers = found["attacks"]["lira online, centralised shadows"]
    assert numbers["trainer"] == "centralised"
    assert numbers["auc"] > 0.6
    place = min((overfitted / "audit" / "shadows").glob("centralised-*/shadow*"))
    plan = load_plan(place)
    assert (plan.split.clients, plan.run.participation, plan.method.name) == (1, 1.0, "fedavg")


def test_a_scale_says_how_much_to_spend(overfitted: Path, tmp_path: Path) -> None:
    folder = copied(overfitted, tmp_path)
    found = audit(folder, "--scale", "smoke", "--examples", "100", "--attack", "lira")
    assert (found["members"], found["attacks"]["lira online"]["shadows"]) == (100, 2)
    found = audit(folder, "--scale", "cpu", "--shadows", "4", "--attack", "lira")
    assert (found["members"], found["attacks"]["lira online"]["shadows"]) == (200, 4)


def test_an_untrained_model_is_at_chance(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", noise(tmp_path / "noise.npz"), "--rounds", "1", "--lr", "1e-12")
    found = audit(folder, "--shadows", "4")
    for name, numbers in found["attacks"].items():
        assert numbers["auc"] == pytest.approx(0.5, abs=0.08), name
        assert numbers["accuracy"] == pytest.approx(0.5, abs=0.08), name


def test_half_a_target_is_not_fooled_by_other_test_images(tmp_path: Path) -> None:
    """Where test images are harder, they are told from training images; that is no membership."""
    folder = run(tmp_path / "run", mislabelled(tmp_path / "mine.npz"), "--rounds", "10", "--lr", "0.03")
    whole = audit(folder, "--attack", "loss")
    half = audit(folder, "--attack", "loss", "--target", "half")
    assert whole["attacks"]["loss"]["accuracy"] > 0.62
    assert half["attacks"]["loss"]["accuracy"] == pytest.approx(0.5, abs=0.07)
    assert half["attacks"]["loss"]["auc"] == pytest.approx(0.5, abs=0.07)
    assert (half["target"], half["members"], half["non_members"]) == ("half", 200, 200)
    assert half["weights_sha256"] != whole["weights_sha256"]


def test_half_a_target_is_caught_when_overfitted(overfitted: Path, tmp_path: Path) -> None:
    folder = copied(overfitted, tmp_path)
    found = audit(folder, "--target", "half", "--shadows", "4")
    assert found["attacks"]["loss"]["auc"] > 0.7
    first = found["attacks"]["lira online"]
    assert first["auc"] > 0.65
    assert (first["flip"], first["variance"]) == (False, "shared")
    lira = ("--target", "half", "--shadows", "4", "--attack", "lira")
    for more in (["--flip"], ["--variance", "example"]):
        again = audit(folder, *lira, *more)
        other = again["attacks"]["lira online"]
        assert (other["flip"], other["variance"]) == ("--flip" in more, "shared" if "--flip" in more else "example")
        assert other["auc"] != first["auc"]
        assert again["attacks"]["loss"] == found["attacks"]["loss"]


def test_what_a_model_is_asked(overfitted: Path, tmp_path: Path) -> None:
    """In evaluation mode, so that the mean loss of the test images is the run's own; both queries of a flip count."""
    how = ("--model", "resnet18", "--width", "4", "--rounds", "2", "--lr", "0.05")
    folder = run(tmp_path / "run", noise(tmp_path / "noise.npz"), *how)
    normalised, plain = load_target(folder), load_target(overfitted)
    for target in (normalised, plain):
        expected = json.loads((target.folder / "summary.json").read_text())["loss_final"]
        assert target.losses(np.arange(200, 400)).mean() == pytest.approx(expected, rel=1e-5)
    rows, data = np.arange(50), plain.pool.part(torch.arange(50))
    one, mirrored = (compute_phi(z, data.labels) for z in plain.logits(data, True))
    assert not torch.allclose(one, mirrored)
    assert np.allclose(plain.phi(rows, True), (one + mirrored) / 2)
    assert np.allclose(plain.phi(rows, False), one)


def test_each_client_has_its_own_numbers(overfitted: Path) -> None:
    """Of its members, and of the held-out examples that were given to it."""
    found = audit(overfitted, "--attack", "loss")["attacks"]["loss"]["clients"]
    target = load_target(overfitted)
    examples = choose_examples(target.split, target.labels, 0, make_generator(0, "examples"))
    losses = target.losses(examples.rows)
    for entry in found:
        own = examples.client == entry["client"]
        member, mine = examples.member[own], losses[own]
        pairs = np.sign(mine[~member][:, None] - mine[member][None]) / 2 + 0.5
        assert entry["members"] == member.sum()
        if "auc" in entry:
            assert entry["auc"] == pytest.approx(pairs.mean())


def test_who_never_took_part_has_no_members(tmp_path: Path, capsys: Capture) -> None:
    how = ("--clients", "5", "--participation", "0.2", "--rounds", "2", "--set", "run.seed=1")
    folder = run(tmp_path / "run", noise(tmp_path / "noise.npz"), *how)
    target = load_target(folder)
    assert 0 < len(target.seen) <= 2
    found = audit(folder, "--shadows", "2")
    assert "of 5 clients never took part" in capsys.readouterr().err
    sizes = [len(rows) for i, rows in enumerate(target.split.clients) if i in target.seen]
    assert found["members"] == sum(sizes)
    assert found["background"] == 200 - sum(sizes)
    mean = target.losses(np.concatenate([target.split.clients[i] for i in sorted(target.seen)])).mean()
    assert found["attacks"]["loss"]["yeom"]["threshold"] == pytest.approx(mean)


def test_centralised_shadows_of_a_private_run(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed: pip install 'fedptr[privacy]'")
    how = [f"--set={one}" for one in ("privacy.clip=1", "privacy.noise=0.1", "method.weighting=uniform")]
    folder = run(tmp_path / "run", noise(tmp_path / "noise.npz"), "--rounds", "2", *how)
    found = audit(folder, "--attack", "lira", "--shadows", "2", "--shadow-trainer", "centralised")
    assert found["attacks"]["lira online, centralised shadows"]["trainer"] == "centralised"


# The auxiliary sets


def test_auxiliary_sets_that_start_from_samples_give_them_away(fedptr_run: Path, capsys: Capture) -> None:
    found = audit(fedptr_run, "--attack", "auxiliary")["auxiliary"]
    assert found["repeats_the_run"] is True
    assert "never leaves its owner" in found["note"]
    assert "never leaves its owner" in " ".join(capsys.readouterr().out.split())
    assert found["owners"] == ["client0", "client1", "client2"]
    real, noise_ = found["series"]["real"], found["series"]["noise"]
    assert [entry["round"] for entry in real] == [1, 2, 4, 6]
    assert real[0]["distance_own"] == real[0]["distance_any"] == 0
    assert (real[0]["copies"], noise_[0]["copies"]) == (1, 0)
    assert real[0]["closer"] == 1
    assert real[-1]["starts"]["auc"] > 0.95
    assert real[0]["starts"]["members"] > 50
    for entry in noise_:
        assert entry["distance_own"] > 0.5
        assert 0.2 < entry["closer"] < 0.8
        assert 0.35 < entry["starts"]["auc"] < 0.65
    pairs = found["pairs"]["real"]
    assert len(pairs) == 8
    assert all(pair["own"] <= pairs[-1]["own"] for pair in pairs)
    assert (fedptr_run / "audit" / "pairs-real.png").stat().st_size > 500


def test_copies_are_found_where_few_are_held_out(tmp_path: Path) -> None:
    """Of more own samples than held-out ones only as many are compared; a copy may be of another one."""
    matching = [f"--set=method.{name}" for name in ("H=1", "R=1", "m=1", "ipc=2", "lr_img=1")]
    data = ["--dataset", "digits", "--subset", "600", "--set", "data.subset_test=60", "--alpha", "1", "--rounds", "2"]
    assert main(["run", *data, *QUICK, *matching, "--out", str(tmp_path / "run")]) == 0
    first = audit(tmp_path / "run", "--attack", "auxiliary")["auxiliary"]["series"]["real"][0]
    assert (first["copies"], first["distance_any"]) == (1, 0)
    assert first["distance_own"] > 0


def test_everybodys_start_is_known_when_few_take_part(tmp_path: Path) -> None:
    matching = [f"--set=method.{name}" for name in ("H=1", "R=1", "m=1", "ipc=2", "lr_img=1")]
    data = ["--dataset", "digits", "--subset", "200", "--alpha", "100", "--participation", "0.34", "--rounds", "24"]
    assert main(["run", *data, *QUICK, *matching, "--out", str(tmp_path / "run")]) == 0
    found = audit(tmp_path / "run", "--attack", "auxiliary")["auxiliary"]
    assert found["owners"] == ["client0", "client1", "client2"]
    starts = auxiliary_sets.load_starts(tmp_path / "run" / "audit" / "auxiliary" / "real")
    assert list(starts) == found["owners"]
    last = found["series"]["real"][-1]["starts"]
    assert 40 < last["members"] <= 3 * 10 * 2, "nearly all of two images of ten classes of three clients"


def test_a_servers_set_starts_from_noise_alone(tmp_path: Path) -> None:
    matching = [f"--set=method.{name}" for name in ("H=1", "R=2", "m=1", "lr_img=1")]
    data = ["--dataset", "digits", "--subset", "200", "--alpha", "1", "--rounds", "4"]
    assert main(["run", "--method", "fedptr-s", *data, *QUICK, *matching, "--out", str(tmp_path / "run")]) == 0
    found = audit(tmp_path / "run", "--attack", "auxiliary")["auxiliary"]
    assert found["owners"] == ["server"]
    assert list(found["series"]) == ["noise"]
    assert found["series"]["noise"][0]["starts"] is None


def test_sets_are_kept_when_asked_for(fedptr_run: Path, tmp_path: Path) -> None:
    plan = read_plan(fedptr_run / "plan.toml")
    plan["output"] |= {"sets": 4}
    (tmp_path / "plan.toml").write_text(tomli_w.dumps(plan))
    assert main(["run", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "out")]) == 0
    kept = auxiliary_sets.load_sets(tmp_path / "out")
    assert list(kept) == [1, 4, 6]
    assert kept[1]["client0"]["X"].shape == (30, 1, 8, 8)
    assert not torch.equal(kept[1]["client0"]["X"], kept[6]["client0"]["X"])
    a, b = (json.loads((folder / "summary.json").read_text()) for folder in (fedptr_run, tmp_path / "out"))
    assert a["weights_sha256"] == b["weights_sha256"], "it decides nothing"
    assert not auxiliary_sets.load_sets(fedptr_run)


# What it builds on


def test_a_split_says_what_it_drops(tmp_path: Path, capsys: Capture) -> None:
    data = noise(tmp_path / "noise.npz")
    rows = np.arange(400)
    split = Split((rows[:50], rows[210:300], rows[350:]), 400, dropped=210)
    split.save(tmp_path / "split.json")
    assert Split.load(tmp_path / "split.json").sha256 == split.sha256
    how = ("--rounds", "2", "--split", str(tmp_path / "split.json"))
    folder = run(tmp_path / "run", data, *how, "--set", "data.pool=all")
    assert Split.load(folder / "split.json").sizes == (50, 90, 50)
    text = (tmp_path / "split.json").read_text()
    (tmp_path / "split.json").write_text(text.replace('"dropped": 210', '"dropped": 209'))
    assert main(["run", "--dataset", str(data), *QUICK, *how, "--set", "data.pool=all"]) == 2
    assert "the split uses 190 of 400 samples and drops 209" in capsys.readouterr().err
