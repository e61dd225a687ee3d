"""The audit of sets that clients sent: real images are found out, noise is not, and each client has its own numbers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from audited_runs import QUICK, Capture, audit, copied, noise, refused, run
from PIL import Image

from fedptr.audit.sent_audit import load_sent_sets
from fedptr.audit.target import load_target
from fedptr.cli.main import main
from fedptr.report.audit_section import collect_audits, render_audits
from fedptr.report.find_runs import find_runs
from fedptr.report.group_runs import group_runs

pytestmark = pytest.mark.xdist_group("audits")
DATA = ["--dataset", "digits", "--subset", "300", "--alpha", "0.5", *QUICK]


def sent(out: Path, method: str, *settings: str) -> Path:
    more = [f"--set=method.{one}" for one in settings]
    assert main(["run", "--method", method, *DATA, "--rounds", "2", *more, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedDM without outer steps: clients send real images as they are."""
    return sent(tmp_path_factory.mktemp("real") / "run", "feddm", "H=0", "server_epochs=1", "ipc=3")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DOSFL: from noise, in few outer steps."""
    return sent(tmp_path_factory.mktemp("made") / "run", "dosfl", "H=3", "steps=3", "passes=1")


def test_real_images_are_found_out(real: Path, capsys: Capture) -> None:
    found = audit(real, "--attack", "sent")["sent"]
    assert found["owners"] == ["client0", "client1", "client2"]
    assert "left their clients" in found["note"]
    (entry,) = found["series"]["sent"]
    assert entry["round"] == 2
    assert (entry["copies"], entry["distance_any"]) == (1, 0)
    assert entry["closer"] > 0.7, "where the copied sample is among those that are compared"
    assert entry["members"]["auc"] > 0.55
    assert entry["members"]["tpr"]["0.01"] > 0.05
    assert entry["starts"] is None
    out = " ".join(capsys.readouterr().out.split())
    assert "Sets that 3 clients sent" in out
    assert "client 2" in out
    assert "the server has them" in out


def test_every_client_has_its_own_numbers(real: Path) -> None:
    found = audit(real, "--attack", "sent")["sent"]
    each, (entry,) = found["by_owner"], found["series"]["sent"]
    assert [one["owner"] for one in each] == found["owners"]
    assert sum(one["images"] for one in each) == entry["images"]
    sets = load_sent_sets(load_target(real))[2]
    assert all(one["images"] <= len(sets[one["owner"]]["y"]) for one in each)
    assert all(one["copies"] == 1 for one in each)
    weighted = sum(one["images"] * one["closer"] for one in each) / entry["images"]
    assert weighted == pytest.approx(entry["closer"])


def test_the_closest_pairs_are_shown(real: Path) -> None:
    pairs = audit(real, "--attack", "sent")["sent"]["pairs"]["sent"]
    assert len(pairs) == 8
    assert all(pair["own"] == 0 < pair["held"] for pair in pairs)
    with Image.open(real / "audit" / "pairs-sent.png") as image:
        assert image.width > image.height
        pixels = np.asarray(image)
    tile = (pixels.shape[0] + 4) // 3
    assert np.array_equal(pixels[: tile - 4], pixels[tile : 2 * tile - 4]), "the sample is what was sent"


def test_sets_from_noise_show_nothing(made: Path) -> None:
    found = audit(made, "--attack", "sent")["sent"]
    (entry,) = found["series"]["sent"]
    assert entry["copies"] == 0
    assert entry["distance_own"] > 0.5
    assert 0.3 < entry["closer"] < 0.7
    assert entry["members"]["auc"] == pytest.approx(0.5, abs=0.12)


def test_sent_sets_are_audited_where_nothing_is_named(made: Path, tmp_path: Path) -> None:
    folder = copied(made, tmp_path)
    found = audit(folder, "--shadows", "2", "--examples", "20")
    assert set(found["attacks"]) == {"loss", "lira online", "lira offline"}
    assert len(found["sent"]["by_owner"]) > 1
    again = audit(folder, "--attack", "loss", "--examples", "20")
    assert again["sent"] == found["sent"], "and stay when something else is attacked"


def test_earlier_rounds_are_audited_if_their_sets_were_kept(tmp_path: Path) -> None:
    more = ["--set", "method.H=0", "--set", "method.server_epochs=1", "--set", "output.sets=1"]
    assert main(["run", "--method", "feddm", *DATA, "--rounds", "3", *more, "--out", str(tmp_path / "run")]) == 0
    found = audit(tmp_path / "run", "--attack", "sent")["sent"]
    assert [entry["round"] for entry in found["series"]["sent"]] == [1, 2, 3]
    shutil.rmtree(tmp_path / "run" / "auxiliary")
    last = audit(tmp_path / "run", "--attack", "sent")["sent"]
    assert last["series"]["sent"] == found["series"]["sent"][-1:], "the checkpoint has the same"


def test_what_cannot_be_audited(made: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = copied(made, tmp_path)
    shutil.rmtree(folder / "checkpoint")
    assert "no longer has what its clients sent; run its plan again" in refused(capsys, str(folder), "--attack", "sent")
    other = run(tmp_path / "other", noise(tmp_path / "noise.npz"), "--rounds", "1")
    assert "clients of fedavg send no sets; leave sent out of --attack" in refused(
        capsys, str(other), "--attack", "sent"
    )
    assert "dosfl has no auxiliary data" in refused(capsys, str(made), "--attack", "auxiliary")


def test_the_page_has_it(real: Path) -> None:
    audit(real, "--attack", "sent")
    runs, _ = find_runs([real])
    found, problems = collect_audits(group_runs(runs)[0])
    page = render_audits(found, problems, "")
    assert "Sets that clients sent" in page
    assert "client 1" in page
    assert "closest pairs, sent" in page
    told = json.loads((real / "audit" / "audit.json").read_text())
    assert told["sent"]["note"] in page
