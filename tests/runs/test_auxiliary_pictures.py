"""The auxiliary images in a run folder: what is on a sheet, when there is one, and that a resume writes the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedptr.cli.main import main
from fedptr.core.client_states import ClientStates
from fedptr.core.federation import Run
from fedptr.data.dataset import Dataset
from fedptr.runs import auxiliary_pictures, checkpoint
from fedptr.runs.plan import OutputPlan, Plan
from fedptr.runs.same_run import identity_text

TINY = ["--preset", "paper", "--model", "mlp", "--width", "8", "--set", "local.batch=32", "--set", "machine.threads=1"]
PTR = ["--set", "method.H=1", "--set", "method.R=2", "--set", "method.ipc=2", "--rounds", "5"]


def sheets(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "auxiliary").glob("*"))}


def owner(path: Path) -> str:
    with Image.open(path) as image:
        return str(image.info["owner"])


def grey(low: int, high: int, channels: int = 1) -> Dataset:
    x = np.array([low, high] * 2, dtype=np.uint8).reshape(4, 1, 1, 1).repeat(channels, 1).repeat(2, 2).repeat(2, 3)
    return Dataset("grey", x, np.arange(4), x, np.arange(4), (10.0,) * channels, (5.0,) * channels, tuple("abcd"), "")


def test_a_sheet_is_in_the_units_of_the_data_and_clipped_to_their_range() -> None:
    """Pixels 0 to 20 with mean 10 and deviation 5: normalised 0 is middle grey, 2 is white, beyond is clipped."""
    X = torch.tensor([0.0, 2.0, 9.0, -2.0, float("nan"), float("inf")]).reshape(6, 1, 1, 1).expand(6, 1, 2, 2)
    sheet = auxiliary_pictures.make_contact_sheet(X, torch.tensor([0, 0, 0, 1, 1, 1]), grey(0, 20))
    assert sheet.shape == (2 * 2 + 1, 3 * 2 + 2)
    assert sheet[0, [0, 3, 6]].tolist() == [128, 255, 255]
    assert sheet[3, [0, 3, 6]].tolist() == [0, 0, 255]
    assert sheet[2].tolist() == [128] * 8, "a gap between the rows"


def test_a_sheet_has_at_most_ten_classes_and_ten_images_of_each() -> None:
    y = torch.arange(12).repeat_interleave(11)
    assert auxiliary_pictures.make_contact_sheet(torch.zeros(132, 3, 2, 2), y, grey(0, 255, 3)).shape == (29, 29, 3)
    assert auxiliary_pictures.make_contact_sheet(torch.zeros(132, 2, 2, 2), y, grey(0, 255, 2)).shape == (29, 29), (
        "one of two channels"
    )


def test_whose_images_are_shown(tmp_path: Path) -> None:
    aux = {"X": torch.zeros(2, 1, 2, 2), "y": torch.arange(2)}
    run = Run(7, {"x": torch.zeros(1)}, ClientStates({3: aux, 5: aux}))
    auxiliary_pictures.save_picture(run, grey(0, 20), tmp_path / "a")
    assert owner(tmp_path / "a" / "round0007.png") == "client 3"
    auxiliary_pictures.save_picture(replace(run, server={**run.server, **aux}), grey(0, 20), tmp_path / "b")
    assert owner(tmp_path / "b" / "round0007.png") == "the server"
    for nobody in (
        ClientStates(),
        ClientStates({0: {}}),
        ClientStates({0: {"X": torch.zeros(2, 4), "y": torch.arange(2)}}),
    ):
        auxiliary_pictures.save_picture(replace(run, clients=nobody), grey(0, 20), tmp_path / "c")
    assert not (tmp_path / "c").exists()


def sent_by(*counts: int) -> dict[str, torch.Tensor]:
    """A server's state with this many images of each client, each as bright as its number in its client's set."""
    X = torch.cat([torch.linspace(-2, 2, n).reshape(n, 1, 1, 1).expand(n, 1, 2, 2) for n in counts])
    owner = torch.cat([torch.full((n,), 2 * i) for i, n in enumerate(counts)])
    return {"x": torch.zeros(1), "X": X, "y": torch.zeros(len(X), dtype=torch.int64), "owner": owner}


def test_what_clients_sent_has_a_row_for_each(tmp_path: Path) -> None:
    """Up to ten images, from the first to the last of a set."""
    run = Run(7, sent_by(3, 41), ClientStates({0: {}}))
    auxiliary_pictures.save_picture(run, grey(0, 20), tmp_path)
    with Image.open(tmp_path / "round0007.png") as image:
        assert image.info["rows"] == "client 0\nclient 2"
        assert "owner" not in image.info
        pixels = np.asarray(image)
    assert pixels.shape == (5, 29)
    assert pixels[0, [0, 3, 6, 9, 27]].tolist() == [0, 128, 255, 128, 128], "and grey where there is none"
    row = pixels[3, ::3].astype(int).tolist()
    assert (row[0], row[-1]) == (0, 255)
    assert np.ptp(np.diff(row)) <= 7, "evenly spread"


def test_only_the_first_ten_clients_are_shown(tmp_path: Path) -> None:
    auxiliary_pictures.save_picture(Run(1, sent_by(*[2] * 12), ClientStates()), grey(0, 20), tmp_path)
    with Image.open(tmp_path / "round0001.png") as image:
        assert image.size == (5, 29)
        assert image.info["rows"].splitlines()[-1] == "client 18"


def test_rows_of_tables_are_no_pictures(tmp_path: Path) -> None:
    server = {**sent_by(2, 3), "X": torch.zeros(5, 7, 1, 1)}
    auxiliary_pictures.save_picture(Run(1, server, ClientStates()), grey(0, 20), tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(("method", "who"), [("fedptr", "client"), ("fedptr-s", "the server")])
def test_a_run_that_was_stopped_has_the_same_pictures(
    method: str, who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after a picture was written and before the checkpoint that would have counted it."""
    argv = ["run", *TINY, *PTR, "--method", method, "--participation", "0.5", "--set", "output.pictures=2"]
    assert main([*argv, "--out", str(tmp_path / "whole")]) == 0
    whole = sheets(tmp_path / "whole")
    assert list(whole) == ["round0002.png", "round0004.png", "round0005.png"]
    assert whole["round0002.png"] != whole["round0005.png"], "matching changes the images"
    assert owner(tmp_path / "whole" / "auxiliary" / "round0005.png").startswith(who)

    save = checkpoint.CheckpointStore.save

    def stop(self: checkpoint.CheckpointStore, run: Run, header: dict[str, str]) -> None:
        if run.round == 4:
            raise KeyboardInterrupt
        save(self, run, header)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.CheckpointStore, "save", stop)
        assert main([*argv, "--out", str(tmp_path / "part")]) == 130
    assert list(sheets(tmp_path / "part")) == ["round0002.png", "round0004.png"]
    (tmp_path / "part" / "auxiliary" / "round0004.png").write_bytes(b"")
    assert main(["resume", str(tmp_path / "part")]) == 0
    assert sheets(tmp_path / "part") == whole


def test_pictures_change_no_result_and_can_be_turned_off(tmp_path: Path) -> None:
    argv = ["run", *TINY, *PTR]
    outs = [tmp_path / "with", tmp_path / "without"]
    for out, every in zip(outs, ("1", "0"), strict=True):
        assert main([*argv, "--set", f"output.pictures={every}", "--out", str(out)]) == 0
    assert len(sheets(outs[0])) == 5
    assert not (outs[1] / "auxiliary").exists()
    assert len({(out / "weights.safetensors").read_bytes() for out in outs}) == 1
    assert main([*argv, "--out", str(outs[0]), "--force"]) == 0, "a folder with pictures is still one of ours"


def test_what_is_output_does_not_decide_a_run() -> None:
    """So that it may be changed before a resume."""
    plan, other = Plan(), Plan(output=OutputPlan(pictures=3))
    assert plan.toml() != other.toml()
    assert identity_text(plan) == identity_text(other)


def test_methods_without_auxiliary_images_leave_no_folder(tmp_path: Path) -> None:
    argv = ["run", *TINY, "--method", "fedavg", "--rounds", "2", "--set", "output.pictures=1"]
    assert main([*argv, "--out", str(tmp_path / "out")]) == 0
    assert not (tmp_path / "out" / "auxiliary").exists()
