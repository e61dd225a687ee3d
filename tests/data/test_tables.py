"""Tables in .csv and .npz files: what is read, how it is normalised, and the sentence for each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedptr.cli.main import main
from fedptr.data.load import load_dataset
from fedptr.errors import UserError

N = 60
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(N, 3)) * [1, 100, 0.01] + [0, 50, 7]
NAMES = np.array(["setosa", "virginica"])[(X[:, 0] > 0).astype(int)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPTR_CACHE", str(tmp_path / "cache"))


def write_csv(path: Path, rows: slice = slice(None), head: str = "length,width,depth,species") -> Path:
    lines = [",".join([*map(str, x), name]) for x, name in zip(X[rows], NAMES[rows], strict=True)]
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


def test_one_file_holds_out_a_fifth(tmp_path: Path) -> None:
    data = load_dataset(str(write_csv(tmp_path / "iris.csv")))
    assert data.train_x.shape == (48, 3, 1, 1)
    assert data.test_x.shape == (12, 3, 1, 1)
    assert data.classes == ("setosa", "virginica")
    assert "a fifth of the rows held out" in data.source
    rows = np.concatenate([data.train_x, data.test_x])[:, :, 0, 0]
    assert {tuple(row) for row in rows} == {tuple(row) for row in X.astype(np.float32)}
    for part, labels in ((data.train_x, data.train_y), (data.test_x, data.test_y)):
        assert ((part[:, 0, 0, 0] > 0).astype(int) == labels).all()
    np.testing.assert_allclose(data.mean, data.train_x[:, :, 0, 0].mean(0, dtype=float), rtol=1e-6)
    np.testing.assert_allclose(data.std, data.train_x[:, :, 0, 0].std(0, dtype=float), rtol=1e-5)


def test_two_files_are_taken_as_they_are(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", slice(0, 40))
    write_csv(tmp_path / "test.csv", slice(40, None))
    data = load_dataset(str(tmp_path))
    np.testing.assert_array_equal(data.train_x[:, :, 0, 0], X[:40].astype(np.float32))
    np.testing.assert_array_equal(data.test_x[:, :, 0, 0], X[40:].astype(np.float32))


@pytest.mark.parametrize("name", ["Label", "class", "target", "y"])
def test_the_label_may_stand_anywhere_by_its_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"{name},a,b\n" + "".join(f"{k % 2},{k},{k * k}\n" for k in range(20)))
    data = load_dataset(str(path))
    assert data.classes == ("0", "1")
    assert data.train_x.shape[1] == 2


@pytest.mark.parametrize("x", [X, X.astype(np.float32), np.arange(3 * N).reshape(N, 3)])
def test_an_npz_may_hold_a_table_with_words_as_labels(x: np.ndarray, tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", train_x=x, train_y=NAMES, test_x=x[:9], test_y=NAMES[:9])
    data = load_dataset(str(tmp_path / "mine.npz"))
    np.testing.assert_array_equal(data.train_x, x.astype(np.float32)[:, :, None, None])
    assert [data.classes[k] for k in data.test_y] == NAMES[:9].tolist()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read as a table"),
        ("a,b\n", "has 2 columns and 0 rows"),
        ("a\n1\n", "has 1 columns and 1 rows"),
        ("1,2,3\n4,5,6\n", "its first line must name the columns"),
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n", "its first line must name the columns"),
        ("a;b;label\n1;2;0\n", "separates its columns by semicolons; save it with commas"),
        ("a\tb\tlabel\n1\t2\t0\n", "separates its columns by tabs; save it with commas"),
        ("a,b,label\n1,2\n", "row 2 of .* has 2 values, and there are 3 columns"),
        ("a,b,label\n1,Rome,0\n", "the column 'b' of .* has 'Rome', which is not a number"),
        ("a,b,label\n1,,0\n", "the column 'b' of .* has empty values"),
        ("a,b,label\n1,nan,0\n", "the column 'b' of .* NaN or infinite"),
        ("a,b,label\n1,1e300,0\n", "the column 'b' of .* NaN or infinite"),
        ("a,b,label\n1,2,\n", "row 2 of .* has no 'label'"),
        ('a,b,label\n"1,2,0\n', "row 2 of .* has 1 values|cannot be read"),
        ("a,b,label\n" + "1,2,0\n" * 10, "holds one class only"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_in_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(UserError, match=words) as caught:
        load_dataset(str(tmp_path / "mine.csv"))
    assert "\n" not in str(caught.value)


def test_a_table_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_bytes("länge,label\n1,a\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"mine.csv is not text in UTF-8 \(.*byte 1\); save it as UTF-8"):
        load_dataset(str(tmp_path / "mine.csv"))


def test_a_label_that_is_no_number_is_named_by_its_column(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("a,price\n" + "1,2.5\n2,cheap\n" * 5)
    with pytest.raises(UserError, match=r"the column 'price' of .* has 'cheap', which is not a number"):
        load_dataset(str(tmp_path / "mine.csv"), task="regression")


def test_check_says_what_the_samples_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", str(write_csv(tmp_path / "iris.csv"))]) == 0
    assert "\nrows: 48 training + 12 test of 3 features\n" in capsys.readouterr().out


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", slice(0, 40))
    write_csv(tmp_path / "test.csv", slice(40, None), head="width,length,depth,species")
    with pytest.raises(UserError, match="have different columns"):
        load_dataset(str(tmp_path))
    (tmp_path / "test.csv").write_text("length,width,depth,species\n1,2,3,versicolor\n")
    with pytest.raises(UserError, match="has the label 'versicolor', which the training part does not have"):
        load_dataset(str(tmp_path))


@pytest.mark.parametrize("method", ["fedavg", "fedptr", "fedptr-s", "scaffold"])
def test_a_table_is_trained_on_from_the_command_line(method: str, tmp_path: Path) -> None:
    path, out = write_csv(tmp_path / "iris.csv"), tmp_path / "run"
    asked = ["--rounds", "5", "--clients", "2", "--min-size", "5", "--threads", "1", "--alpha", "10", "--batch", "8"]
    assert main(["run", "--dataset", str(path), "--method", method, *asked, "--lr", "0.1", "--out", str(out)]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["accuracy_final"] > 0.7
    assert json.loads((out / "model.json").read_text())["classes"] == ["setosa", "virginica"]
    assert not (out / "auxiliary").exists()
    assert main(["report", str(out), "-o", str(tmp_path / "page.html")]) == 0


def test_a_small_table_is_divided_among_the_usual_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X_long, names = np.tile(X, (3, 1)), np.tile(NAMES, 3)
    lines = [",".join([*map(str, x), name]) for x, name in zip(X_long, names, strict=True)]
    (tmp_path / "small.csv").write_text("\n".join(["a,b,c,label", *lines]) + "\n")
    asked = [
        "--dataset",
        str(tmp_path / "small.csv"),
        "--method",
        "fedavg",
        "--rounds",
        "1",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(["run", *asked]) == 0
    sizes = json.loads((tmp_path / "run" / "split.json").read_text())["clients"]
    assert len(sizes) == 10
    assert min(map(len, sizes)) >= 10
    assert "of 144 samples were moved from the largest clients, so that every client has split.min_size = 10" in (
        said := capsys.readouterr().err
    )
    assert "so an epoch is a single step; try --batch " in said
    assert "--batch 32" not in said


def test_models_and_augmentation_of_images_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write_csv(tmp_path / "iris.csv"))
    out = tmp_path / "run"
    asked = ["run", "--dataset", path, "--clients", "2", "--min-size", "5", "--out", str(out)]
    assert main([*asked, "--model", "convnet"]) == 2
    assert "a row of a table is not one; use --model mlp or linear" in capsys.readouterr().err
    assert main([*asked, "--method", "fedptr-s", "--set", "method.dsa=true"]) == 2
    assert "method.dsa augments images" in capsys.readouterr().err
    assert not out.exists()
