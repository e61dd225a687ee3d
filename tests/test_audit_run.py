"""Audits of real runs: what is overfitted is caught, what is untrained is not, and a kill costs nothing."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

from fedptr import sets
from fedptr.audit.target import load
from fedptr.cli import main
from fedptr.data.split import Split
from fedptr.plan import LATER, Plan, check, read
from fedptr.report.page.find import walk
from fedptr.runner import load_plan

Capture = pytest.CaptureFixture[str]
QUICK = ["--model", "mlp", "--width", "32", "--clients", "3", "--set", "machine.threads=1", "--batch", "32"]


def noise(path: Path) -> Path:
    """Images and labels that have nothing to do with each other: whatever is learned is learned by heart."""
    rng = np.random.default_rng(0)
    return saved(path, rng.integers(0, 255, (400, 1, 6, 6)), np.tile(np.arange(4), 100))


def mislabelled(path: Path) -> Path:
    """The class is the brightness; in the test set half of the labels are another class's."""
    rng, y = np.random.default_rng(0), np.tile(np.arange(4), 100)
    x = 60 * y.reshape(-1, 1, 1, 1) + rng.integers(0, 60, (400, 1, 6, 6))
    y[200:300] = (y[200:300] + 1) % 4
    return saved(path, x, y)


def saved(path: Path, x: np.ndarray, y: np.ndarray) -> Path:
    x = x.astype(np.uint8)
    np.savez(path, train_x=x[:200], train_y=y[:200], test_x=x[200:], test_y=y[200:])
    return path


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDPTR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def run(out: Path, data: Path, *more: str) -> Path:
    settings = ["run", "--method", "fedavg", "--dataset", str(data), "--alpha", "1", *QUICK, "--out", str(out), *more]
    assert main(settings) == 0
    return out


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


def audit(folder: Path, *more: str) -> dict[str, Any]:
    assert main(["audit", str(folder), "--jobs", "1", *more]) == 0
    found: dict[str, Any] = json.loads((folder / "audit" / "audit.json").read_text())
    return found


def copied(folder: Path, tmp_path: Path, name: str = "run") -> Path:
    return shutil.copytree(folder, tmp_path / name, ignore=shutil.ignore_patterns("audit"))


def test_an_overfitted_model_is_caught(overfitted: Path, capsys: Capture) -> None:
    found = audit(overfitted, "--shadows", "8")
    loss, online, offline = (found["attacks"][name] for name in ("loss", "lira online", "lira offline"))
    assert loss["accuracy"] > 0.7
    assert loss["yeom"]["accuracy"] > 0.7
    assert min(online["auc"], offline["auc"]) > 0.7
    assert online["tpr"]["0.01"] > 0.1
    assert (found["members"], found["non_members"], found["background"]) == (200, 200, 0)
    assert [entry["client"] for entry in loss["clients"]] == [0, 1, 2]
    assert sum(entry["members"] for entry in loss["clients"]) == 200
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
    own, target = load_plan(overfitted), load(overfitted)
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
    assert list(walk(overfitted)) == [overfitted], "shadows are no runs of a report"


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


def stamps(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("audit/**/summary.json")}


def test_a_shadow_can_be_repeated_from_its_plan(overfitted: Path, tmp_path: Path) -> None:
    audit(overfitted, "--shadows", "8")
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
    again = audit(folder, "--target", "half", "--shadows", "4", "--flip", "--variance", "example", "--attack", "lira")
    other = again["attacks"]["lira online"]
    assert (other["flip"], other["variance"]) == (True, "example")
    assert other["auc"] != first["auc"]
    assert again["attacks"]["loss"] == found["attacks"]["loss"]


def test_a_killed_audit_goes_on(overfitted: Path, tmp_path: Path) -> None:
    alone, hit = (
        shutil.copytree(overfitted, tmp_path / name, ignore=shutil.ignore_patterns("audit"))
        for name in ("alone", "hit")
    )
    expected = audit(alone, "--attack", "lira", "--shadows", "4")
    command = [sys.executable, "-m", "fedptr", "audit", str(hit), "--attack", "lira", "--shadows", "4", "--jobs", "1"]
    for how in (signal.SIGKILL, signal.SIGTERM):
        known = len(stamps(hit))
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 120
        while len(stamps(hit)) <= known:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(how)
        _, said = process.communicate(timeout=60)
        assert process.returncode == (-9 if how == signal.SIGKILL else 128 + 15), said
        assert ("the same command goes on" in said) == (how == signal.SIGTERM)
        assert len(stamps(hit)) < 4
    before = stamps(hit)
    found = audit(hit, "--attack", "lira", "--shadows", "4")
    assert before.items() <= stamps(hit).items()
    for one in (found, expected):
        for numbers in one["attacks"].values():
            assert numbers.pop("shadow_seconds") > 0
    assert found == expected


# The auxiliary sets


def test_auxiliary_sets_that_start_from_samples_give_them_away(fedptr_run: Path, capsys: Capture) -> None:
    found = audit(fedptr_run, "--attack", "auxiliary")["auxiliary"]
    assert found["repeats_the_run"] is True
    assert "never leaves its owner" in found["note"]
    assert "never leaves its owner" in " ".join(capsys.readouterr().out.split())
    assert found["owners"] == ["client0", "client1", "client2"]
    real, noise_ = found["series"]["real"], found["series"]["noise"]
    assert [entry["round"] for entry in real] == [1, 2, 4, 6]
    assert real[0]["distance_own"] == 0
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


def test_a_servers_set_starts_from_noise_alone(tmp_path: Path) -> None:
    matching = [f"--set=method.{name}" for name in ("H=1", "R=2", "m=1", "lr_img=1")]
    data = ["--dataset", "digits", "--subset", "200", "--alpha", "1", "--rounds", "4"]
    assert main(["run", "--method", "fedptr-s", *data, *QUICK, *matching, "--out", str(tmp_path / "run")]) == 0
    found = audit(tmp_path / "run", "--attack", "auxiliary")["auxiliary"]
    assert found["owners"] == ["server"]
    assert list(found["series"]) == ["noise"]
    assert found["series"]["noise"][0]["starts"] is None


def test_sets_are_kept_when_asked_for(fedptr_run: Path, tmp_path: Path) -> None:
    plan = read(fedptr_run / "plan.toml")
    plan["output"] |= {"sets": 4}
    (tmp_path / "plan.toml").write_text(tomli_w.dumps(plan))
    assert main(["run", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "out")]) == 0
    kept = sets.load(tmp_path / "out")
    assert list(kept) == [1, 4, 6]
    assert kept[1]["client0"]["X"].shape == (30, 1, 8, 8)
    assert not torch.equal(kept[1]["client0"]["X"], kept[6]["client0"]["X"])
    a, b = (json.loads((folder / "summary.json").read_text()) for folder in (fedptr_run, tmp_path / "out"))
    assert a["weights_sha256"] == b["weights_sha256"], "it decides nothing"
    assert not sets.load(fedptr_run)


# Bad input


def refused(capsys: Capture, *argv: str) -> str:
    capsys.readouterr()
    assert main(["audit", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fedptr: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--attack", "loss,lria"], "did you mean --attack lira?"),
        (["--attack", ""], "is not an attack"),
        (["--shadows", "1"], "must be an even number of at least 2, not 1"),
        (["--shadows", "7"], "must be an even number of at least 2, not 7"),
        (["--shadows", "-2"], "must be an even number of at least 2, not -2"),
        (["--attack", "auxiliary"], "this run of fedavg has no auxiliary data"),
        (["--examples", "-1"], "--examples must be at least 0"),
        (["--examples", "3"], "--examples 3 is too few for 4 classes"),
        (["--jobs", "-1"], "--jobs must be at least 0"),
        (["--target", "third"], "invalid choice"),
        (["--atack", "loss"], "did you mean --attack?"),
    ],
)
def test_bad_options(overfitted: Path, more: list[str], words: str, capsys: Capture) -> None:
    assert words in refused(capsys, str(overfitted), *more)


def test_bad_folders(overfitted: Path, tmp_path: Path, capsys: Capture) -> None:
    assert "is not a folder" in refused(capsys, str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    assert "holds no plan.toml" in refused(capsys, str(tmp_path / "empty"))
    folder = copied(overfitted, tmp_path)

    def without(name: str, words: str, content: bytes | None = None) -> None:
        path = folder / name
        kept = path.read_bytes()
        path.unlink() if content is None else path.write_bytes(content)
        assert words in refused(capsys, str(folder))
        path.write_bytes(kept)
        assert not (folder / "audit").exists()

    without("summary.json", "holds no finished run")
    without("summary.json", "holds no finished run", b"{")
    without("split.json", "has no split.json")
    without("weights.safetensors", "cannot be read")
    without("weights.safetensors", "is damaged", b"hello")
    other = bytearray((folder / "weights.safetensors").read_bytes())
    other[-1] ^= 1
    without("weights.safetensors", "its sha256 does not fit", bytes(other))
    without("rounds.jsonl", "was changed since its run was finished", b"{}\n")
    split = Split.load(folder / "split.json")
    (tmp_path / "other").mkdir()
    replace(split, clients=split.clients[::-1]).save(tmp_path / "other" / "split.json")
    without("split.json", "is not the split of this run", (tmp_path / "other" / "split.json").read_bytes())


def test_missing_data(overfitted: Path, tmp_path: Path, capsys: Capture) -> None:
    data = noise(tmp_path / "mine.npz")
    folder = run(tmp_path / "run", data, "--rounds", "1")
    data.unlink()
    assert "mine.npz is neither an .npz file" in refused(capsys, str(folder))
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(4), 30)
    x = rng.integers(0, 255, (120, 1, 6, 6), dtype=np.uint8)
    np.savez(data, train_x=x, train_y=y, test_x=x[:80], test_y=y[:80])
    assert "was trained on other data: 200 samples, and here are 120" in refused(capsys, str(folder))


def test_a_damaged_result_is_not_added_to(overfitted: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = copied(overfitted, tmp_path)
    audit(folder, "--attack", "loss")
    (folder / "audit" / "audit.json").write_text("[]")
    assert "is not what `fedptr audit` writes" in refused(capsys, str(folder), "--attack", "loss")


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


def test_runs_begun_before_a_setting_came_go_on() -> None:
    """Their checkpoints have a digest of the plan as it was then."""
    usual, pooled = Plan(), check({"data": {"pool": "all"}})
    assert "pool" not in usual.decisive()
    assert "pool" in pooled.decisive()
    assert all(usual.tables()[section][name] == Plan().tables()[section][name] for section, name in LATER)
