"""Tables in .parquet files give what the same .csv gives, and nothing in them is unpickled."""

from __future__ import annotations

import builtins
import pickle
from pathlib import Path

import numpy as np
import pytest
from small_texts import make_texts, write_texts

from fedptr.cli.main import main
from fedptr.data.dataset import PARTS
from fedptr.data.load import load_dataset
from fedptr.errors import UserError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet")

X = np.random.default_rng(0).normal(size=(60, 2))
SPECIES = ["setosa" if a > 0 else "virginica" for a, _ in X]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPTR_CACHE", str(tmp_path / "cache"))


def write(path: Path, rows: slice = slice(None), **more: object) -> Path:
    columns = {"length": X[rows, 0], "width": X[rows, 1], "species": SPECIES[rows]} | more
    pq.write_table(pa.table(columns), path)
    return path


def same(one: str, other: str) -> bool:
    a, b = load_dataset(one), load_dataset(other)
    assert (a.classes, a.mean, a.std, a.vocabulary) == (b.classes, b.mean, b.std, b.vocabulary)
    return all(np.array_equal(getattr(a, part), getattr(b, part)) for part in PARTS)


def test_a_parquet_file_is_read_as_the_same_csv(tmp_path: Path) -> None:
    lines = [f"{a!r},{b!r},{c}" for (a, b), c in zip(X.tolist(), SPECIES, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["length,width,species", *lines]) + "\n")
    assert same(str(tmp_path / "a.csv"), str(write(tmp_path / "b.parquet")))


def test_texts_and_categories(tmp_path: Path) -> None:
    texts, labels = zip(*make_texts(), strict=True)
    table = pa.table({"review": pa.array(texts), "label": pa.array(labels).dictionary_encode()})
    pq.write_table(table, tmp_path / "b.parquet")
    assert same(str(write_texts(tmp_path / "a.csv")), str(tmp_path / "b.parquet"))
    assert load_dataset(str(tmp_path / "b.parquet")).vocabulary


def test_a_folder_of_two_is_trained_on(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    folder.mkdir()
    write(folder / "train.parquet", slice(0, 48))
    write(folder / "test.parquet", slice(48, None))
    assert len(load_dataset(str(folder)).test_y) == 12
    few = ["--rounds", "4", "--clients", "2", "--min-size", "5", "--alpha", "10", "--batch", "8", "--threads", "1"]
    assert main(["run", "--dataset", str(folder), "--method", "fedptr", *few, "--out", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"width": [None, *X[1:, 1]]}, "row 1 of .* has no 'width'"),
        ({"width": [float("nan"), *X[1:, 1]]}, "the column 'width' of .* NaN or infinite"),
        ({"species": [*SPECIES[1:], None]}, "row 60 of .* has no 'species'"),
        ({"width": [[1.0]] * 60}, "the column 'width' of .* has the type list"),
        ({"width": [pickle.dumps(3)] * 60}, "the column 'width' of .* has the type binary"),
        ({"width": ["Rome"] * 60}, "the column 'width' of .* has 'Rome', which is not a number"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(more: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words) as caught:
        load_dataset(str(write(tmp_path / "a.parquet", **more)))
    assert "\n" not in str(caught.value)


def test_an_extension_type_is_refused(tmp_path: Path) -> None:
    kind = pa.opaque(pa.binary(), "a type", "a vendor")
    column = pa.ExtensionArray.from_storage(kind, pa.array([b"x"] * 60))
    with pytest.raises(UserError, match=r"the column 'width' of .* has the type"):
        load_dataset(str(write(tmp_path / "a.parquet", width=column)))


def test_damage_and_size_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet")
    whole = path.read_bytes()
    for content in (b"", b"PAR1", whole[:-20], whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"cannot be read as a \.parquet file"):
            load_dataset(str(path))
    path.write_bytes(whole)
    monkeypatch.setattr("fedptr.data.parquet.LARGEST", 100)
    with pytest.raises(UserError, match="take a smaller part of it"):
        load_dataset(str(path))


def test_without_pyarrow_it_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = write(tmp_path / "a.parquet"), builtins.__import__

    def refuse(name: str, *args: object, **how: object) -> object:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UserError, match=r"needs pyarrow to be read; install it with: .*fedptr\[parquet\]"):
        load_dataset(str(path))
