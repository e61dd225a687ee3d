"""`fedptr predict` and `fedptr export`, as a user runs them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedptr import load_model
from fedptr.cli.main import main
from fedptr.data.load import load_dataset
from fedptr.runs import export_model as exporting

DIGITS = load_dataset("digits")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("predict") / "run"
    options = "--method fedavg --lr 0.3 --width 4 --rounds 3 --batch 64 --set model.depth=1 --set machine.threads=1"
    assert main(["run", "--out", str(out), *options.split()]) == 0
    return out


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve test digits as PNG files, whose white is 255 and not the dataset's 16."""
    folder = tmp_path_factory.mktemp("images")
    (folder / "below").mkdir()
    for k in range(12):
        pixels = (DIGITS.test_x[k, 0].astype(float) * 255 / 16).round().astype(np.uint8)
        Image.fromarray(pixels).save(folder / ("below" if k % 2 else ".") / f"{k}.png")
    (folder / "notes.txt").write_text("not an image")
    return folder


def predict(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["predict", *map(str, args)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_folder_of_images(run_folder: Path, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = predict(capsys, run_folder, images)
    rows = {Path(row["input"]).stem: row for row in csv.DictReader(io.StringIO(out))}
    probabilities = load_model(run_folder).probabilities(torch.from_numpy(DIGITS.test_x[:12]))
    assert code == 0
    assert set(rows) == set(map(str, range(12)))
    for k in range(12):
        best = int(probabilities[k].argmax())
        assert rows[str(k)]["class"] == str(best)
        assert float(rows[str(k)]["probability"]) == pytest.approx(float(probabilities[k, best]), abs=0.02)  # 8 bits


def test_arrays_as_json_into_a_file(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "some.npz", x=DIGITS.test_x[:5])
    np.save(tmp_path / "grey.npy", DIGITS.test_x[:5, 0])
    assert (
        predict(capsys, run_folder, tmp_path / "some.npz", "--format", "json", "--out", tmp_path / "out.json")[0] == 0
    )
    found = json.loads((tmp_path / "out.json").read_text())
    assert [row["class"] for row in found] == load_model(run_folder).predict(torch.from_numpy(DIGITS.test_x[:5]))
    assert found[3]["input"] == f"{tmp_path / 'some.npz'}[3]"
    grey = json.loads(predict(capsys, run_folder, tmp_path / "grey.npy", "--format", "json")[1])
    assert [row["class"] for row in grey] == [row["class"] for row in found]


def test_images_of_another_size(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(tmp_path / "large.png")
    code, _, said = predict(capsys, run_folder, tmp_path / "large.png")
    assert (code, "30x20 pixels, and the model takes 8x8; resize it, or add --resize" in said) == (2, True)
    assert predict(capsys, run_folder, tmp_path / "large.png", "--resize")[0] == 0


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing", None, "does not exist; name an image, a folder of images, a .csv, an .npy or an .npz file"),
        ("broken.png", b"no image", "broken.png"),
        ("empty", "folder", "holds no images"),
        ("table.csv", b"a,b\n1,2\n", "the model takes inputs of shape [1, 8, 8], and rows of"),
        ("broken.npz", b"no array", "broken.npz"),
        ("odd.npy", np.zeros((2, 5)), "the model takes numbers of shape [n, 1, 8, 8]"),
        ("objects.npy", np.array([{}, {}], dtype=object), "objects.npy"),
    ],
)
def test_bad_input_is_one_sentence(
    name: str, content: object, words: str, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    if isinstance(content, str):
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, np.ndarray):
        np.save(path, content, allow_pickle=True)
    code, out, said = predict(capsys, run_folder, path)
    assert (code, out, said.count("\n")) == (2, "", 1)
    assert words in said


def test_other_folders_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict(capsys, tmp_path / "none", "a.png")[::2] == (
        2,
        f"fedptr: {tmp_path / 'none'} is not a folder; name the folder of a run\n",
    )
    assert main(["predict", str(tmp_path), "a.png", "--best", "--client", "1"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("form", ["torch", "torchscript", "onnx"])
def test_exported_models_are_ours(
    form: str, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if form == "onnx":
        pytest.importorskip("onnxruntime")
    path = tmp_path / exporting.FORMATS[form]
    assert main(["export", str(run_folder), "--format", form, "--out", str(path)]) == 0
    assert "compared with our own on 360 test images: logits differ by at most" in capsys.readouterr().out
    x = torch.from_numpy(DIGITS.test_x[:7]).float() / 16  # another number of images than it was made with
    with exporting.without_warnings():
        theirs = exporting.EXPORTERS[form][1](path)(x)
    torch.testing.assert_close(
        theirs, load_model(run_folder)(torch.from_numpy(DIGITS.test_x[:7])), rtol=1e-3, atol=1e-3
    )


def test_a_file_that_differs_is_not_written(run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = (lambda model, example, path: path.write_bytes(b"x"), lambda path: lambda x: torch.zeros(len(x), 10))
    monkeypatch.setitem(exporting.EXPORTERS, "torch", wrong)
    assert main(["export", str(run_folder), "--out", str(tmp_path / "model.pt2")]) == 2
    assert not list(tmp_path.iterdir())
