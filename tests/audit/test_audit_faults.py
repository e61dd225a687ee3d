"""Audits that are killed, and of what is damaged, has changed or cannot be audited: nothing is lost or mixed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audited_runs import QUICK, Capture, audit, copied, noise, refused, run, saved, stamps
from wait_until import PATIENCE, until

from fedptr.cli.main import main
from fedptr.data.split import Split


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("trained")
    return run(base / "run", noise(base / "noise.npz"), "--rounds", "5", "--epochs", "4", "--lr", "0.1")


@pytest.mark.slow
def test_a_killed_audit_goes_on(trained: Path, tmp_path: Path) -> None:
    alone, hit = (copied(trained, tmp_path, name) for name in ("alone", "hit"))
    expected = audit(alone, "--attack", "lira", "--shadows", "4")
    command = [sys.executable, "-m", "fedptr", "audit", str(hit), "--attack", "lira", "--shadows", "4", "--jobs", "1"]
    for how in (signal.SIGKILL, signal.SIGTERM):
        known = len(stamps(hit))
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        until(lambda known=known: len(stamps(hit)) > known, "a shadow", every=0.002)  # type: ignore[misc]
        process.send_signal(how)
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == (-9 if how == signal.SIGKILL else 128 + 15), said
        assert ("run the same command to continue" in said) == (how == signal.SIGTERM)
        assert len(stamps(hit)) < 4
    before = stamps(hit)
    found = audit(hit, "--attack", "lira", "--shadows", "4")
    assert before.items() <= stamps(hit).items()
    for one in (found, expected):
        for numbers in one["attacks"].values():
            assert numbers.pop("shadow_seconds") > 0
    assert found == expected


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="jobs of a killed queue end with it on Linux only")
def test_the_jobs_of_a_killed_audit_end_with_it(trained: Path, tmp_path: Path) -> None:
    hit = copied(trained, tmp_path)
    command = [sys.executable, "-m", "fedptr", "audit", str(hit), "--attack", "lira", "--shadows", "4", "--jobs", "2"]

    def jobs() -> list[str]:
        found = [path.read_text().split("\0") for path in Path("/proc").glob("[0-9]*/cmdline") if readable(path)]
        return [word for words in found if "fedptr.jobs.run_job" in words for word in words if str(hit) in word]

    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        until(lambda: len(jobs()) == 2, "two shadows at a time")
        process.kill()
    until(lambda: not jobs(), "the end of the jobs")
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr


def readable(path: Path) -> bool:
    try:
        return bool(path.read_bytes())
    except OSError:
        return False


# What is damaged or has changed


@pytest.mark.slow
def test_damaged_shadows(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    """What can be mended is; of the rest it is said what to remove."""
    folder = copied(trained, tmp_path)
    first = audit(folder, "--attack", "lira", "--shadows", "2")
    one, two = sorted((folder / "audit" / "shadows").glob("*/shadow*"))
    (one / "summary.json").write_text("{")
    for path in two.iterdir():
        if path.name != "plan.toml":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (two / "split.json").write_text("rubbish")
    again = audit(folder, "--attack", "lira", "--shadows", "2")
    assert "is damaged, and is run again" in capsys.readouterr().err
    for numbers in (*first["attacks"].values(), *again["attacks"].values()):
        numbers.pop("shadow_seconds")
    assert again == first
    (one / "weights.safetensors").write_bytes(b"rubbish")
    (one / "phi.safetensors").unlink()
    assert f"; remove {one} and audit again" in refused(capsys, str(folder), "--attack", "lira", "--shadows", "2")
    shutil.rmtree(one)
    assert audit(folder, "--attack", "lira", "--shadows", "2")["attacks"].keys() == first["attacks"].keys()


def test_other_data_of_the_same_size_is_not_mixed_in(tmp_path: Path, capsys: Capture) -> None:
    data, kept = noise(tmp_path / "mine.npz"), str(tmp_path / "shadows")
    first = run(tmp_path / "first", data, "--rounds", "1")
    audit(first, "--attack", "lira", "--shadows", "2", "--shadows-dir", kept)
    rng = np.random.default_rng(1)
    saved(data, rng.integers(0, 255, (400, 1, 6, 6)), np.tile(np.arange(4), 100))
    assert "was trained on other data than" in refused(capsys, str(first), "--attack", "loss")
    second = run(tmp_path / "second", data, "--rounds", "1")
    audit(second, "--attack", "lira", "--shadows", "2", "--shadows-dir", kept)
    assert len(list(Path(kept).glob("*/shadow*"))) == 4, "no shadow is of both"


def test_what_was_found_before_is_put_aside(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = copied(trained, tmp_path)
    audit(folder, "--attack", "loss")
    before = (folder / "audit" / "audit.json").read_text()
    audit(folder, "--attack", "loss", "--target", "half")
    (aside,) = (folder / "audit").glob("audit-whole-*.json")
    assert aside.read_text() == before
    assert aside.name in capsys.readouterr().err


def test_a_smaller_audit_does_not_replace_a_better_one(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = copied(trained, tmp_path)
    path = folder / "audit" / "audit.json"
    audit(folder, "--attack", "lira", "--shadows", "4")
    before = path.read_text()
    words = refused(capsys, str(folder), "--attack", "lira", "--shadows", "2")
    assert "audit.json has a better audit, with 4 shadows instead of 2, and is kept; add --force" in words
    words = refused(capsys, str(folder), "--attack", "loss", "--examples", "40")
    assert "with 400 examples instead of 80, and is kept" in words
    assert len(stamps(folder)) == 4, "nothing is trained to be refused"
    assert path.read_text() == before
    assert set(audit(folder, "--attack", "loss")["attacks"]) == {"loss", "lira online", "lira offline"}
    before = path.read_text()
    forced = audit(folder, "--attack", "lira", "--shadows", "2", "--force")
    assert forced["attacks"]["lira online"]["shadows"] == 2
    assert forced["attacks"]["loss"] == json.loads(before)["attacks"]["loss"]
    (aside,) = (folder / "audit").glob("audit-whole-*.json")
    assert aside.read_text() == before


def test_auxiliary_sets_have_nothing_to_do_with_examples(tmp_path: Path, capsys: Capture) -> None:
    matching = [f"--set=method.{name}" for name in ("H=1", "R=1", "m=1", "ipc=2", "lr_img=1")]
    data = ["--dataset", "digits", "--subset", "200", "--alpha", "1", "--rounds", "3"]
    folder = tmp_path / "run"
    assert main(["run", *data, *QUICK, *matching, "--out", str(folder)]) == 0
    loss = audit(folder, "--attack", "loss")
    both = audit(folder, "--attack", "auxiliary", "--examples", "50")
    assert both["attacks"] == loss["attacks"]
    assert both["members"] == loss["members"]
    other = audit(folder, "--attack", "loss", "--examples", "50", "--force")
    assert other["members"] == 50
    assert other["auxiliary"] == both["auxiliary"]
    shutil.rmtree(folder / "audit" / "auxiliary" / "real" / "auxiliary")
    assert "are gone; remove" in refused(capsys, str(folder), "--attack", "auxiliary")


@pytest.mark.parametrize(
    "change",
    [
        {"attacks": {"lira online": {}}},
        {"attacks": {"loss": None}},
        {"attacks": 5},
        {"auxiliary": 5},
        {"members": "many"},
        {"format": 1},
    ],
)
def test_rubbish_in_a_result(trained: Path, tmp_path: Path, change: dict[str, Any], capsys: Capture) -> None:
    folder = copied(trained, tmp_path)
    found = audit(folder, "--attack", "loss")
    (folder / "audit" / "audit.json").write_text(json.dumps({**found, **change}))
    assert "is not what `fedptr audit` writes" in refused(capsys, str(folder), "--attack", "loss")


# Bad input


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--attack", "loss,lria"], "did you mean --attack lira?"),
        (["--attack", ""], "is not an attack"),
        (["--shadows", "1"], "must be an even number of at least 2, not 1"),
        (["--shadows", "7"], "must be an even number of at least 2, not 7"),
        (["--shadows", "1000000000000000"], "must be at most 10000"),
        (["--shadows", "-2"], "must be an even number of at least 2, not -2"),
        (["--attack", "auxiliary"], "this run of fedavg has no auxiliary data"),
        (["--examples", "-1"], "--examples must be at least 0"),
        (["--examples", "3"], "--examples 3 is too few for 4 classes"),
        (["--jobs", "-1"], "--jobs must be at least 0"),
        (["--target", "third"], "invalid choice"),
        (["--atack", "loss"], "did you mean --attack?"),
    ],
)
def test_bad_options(trained: Path, more: list[str], words: str, capsys: Capture) -> None:
    assert words in refused(capsys, str(trained), *more)


def test_bad_folders(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    assert "is not a folder" in refused(capsys, str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    assert "holds no plan.toml" in refused(capsys, str(tmp_path / "empty"))
    folder = copied(trained, tmp_path)

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
    without("weights.safetensors", "does not match its checksum", bytes(other))
    without("rounds.jsonl", "was changed since its run was finished", b"{}\n")
    split = Split.load(folder / "split.json")
    (tmp_path / "other").mkdir()
    replace(split, clients=split.clients[::-1]).save(tmp_path / "other" / "split.json")
    without("split.json", "is not the split of this run", (tmp_path / "other" / "split.json").read_bytes())


def test_missing_data(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    data = noise(tmp_path / "mine.npz")
    folder = run(tmp_path / "run", data, "--rounds", "1")
    data.unlink()
    assert "mine.npz does not exist" in refused(capsys, str(folder))
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(4), 30)
    x = rng.integers(0, 255, (120, 1, 6, 6), dtype=np.uint8)
    np.savez(data, train_x=x, train_y=y, test_x=x[:80], test_y=y[:80])
    assert "was trained on other data: 200 samples, and here are 120" in refused(capsys, str(folder))


def test_a_damaged_result_is_not_added_to(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = copied(trained, tmp_path)
    audit(folder, "--attack", "loss")
    (folder / "audit" / "audit.json").write_text("[]")
    assert "is not what `fedptr audit` writes" in refused(capsys, str(folder), "--attack", "loss")


def test_too_few_to_say_anything(tmp_path: Path, capsys: Capture) -> None:
    rng, y = np.random.default_rng(0), np.tile(np.arange(4), 50)
    x = rng.integers(0, 255, (200, 1, 6, 6), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", train_x=x, train_y=y, test_x=x[:1], test_y=y[:1])
    folder = run(tmp_path / "run", tmp_path / "mine.npz", "--rounds", "1")
    assert "1 training images have held-out ones" in refused(capsys, str(folder), "--attack", "loss")


def test_places_that_cannot_be_used(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = copied(trained, tmp_path)
    (tmp_path / "file").write_text("")
    words = refused(capsys, str(folder), "--shadows", "2", "--attack", "lira", "--shadows-dir", str(tmp_path / "file"))
    assert "cannot be made or written (Not a directory); choose another place" in words
