"""The cache: shared, rebuilt when damaged, never in the way."""

import json
import subprocess
import sys

import numpy as np
import pytest
from wait_until import PATIENCE

from fedptr.cli import data as commands
from fedptr.data import load
from fedptr.data.dataset import PARTS

rng = np.random.default_rng(0)
X = rng.integers(0, 256, (400, 3, 16, 16), dtype=np.uint8)
Y = np.arange(400) % 4


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPTR_CACHE", str(tmp_path / "cache"))
    np.savez(tmp_path / "mine.npz", train_x=X, train_y=Y, test_x=X[:9], test_y=Y[:9])
    return str(tmp_path / "mine.npz")


def cache_of(tmp_path):
    (folder,) = (tmp_path / "cache").iterdir()  # nothing else is left behind
    return folder


def test_the_second_load_only_opens_the_cache(source, tmp_path, monkeypatch, capsys):
    first = load.load_dataset(source)
    monkeypatch.setattr(load, "read_npz", lambda path: pytest.fail("the source was read"))
    second = load.load_dataset(source)
    for part in PARTS:
        one, two = getattr(first, part), getattr(second, part)
        assert isinstance(two, np.memmap)
        assert one.filename == two.filename == cache_of(tmp_path) / f"{part}.npy"
        assert (one == two).all()
    assert (second.classes, second.mean, second.source) == (first.classes, first.mean, first.source)
    assert capsys.readouterr().err == ""


def test_writes_stay_private(source):
    first = load.load_dataset(source)
    first.train_x[0] = 0
    assert (load.load_dataset(source).train_x == X).all()


def test_a_changed_source_is_read_again(source):
    load.load_dataset(source)
    np.savez(source, train_x=X[::-1], train_y=Y[::-1], test_x=X[:9], test_y=Y[:9])
    assert (load.load_dataset(source).train_x == X[::-1]).all()


def shorten(folder):
    path = folder / "train_x.npy"
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(folder):
    with (folder / "test_y.npy").open("ab") as file:
        file.write(b"x")


def other_header(folder):
    path = folder / "train_x.npy"
    path.write_bytes(path.read_bytes().replace(b"(400, 3, 16, 16)", b"(400, 3, 32, 8) "))


def pickled(folder):
    path = folder / "train_y.npy"
    path.write_bytes(b"\x80\x04." + bytes(path.stat().st_size - 3))


def remove(folder):
    (folder / "test_x.npy").unlink()


def garble_meta(folder):
    (folder / "meta.json").write_text("{")


def empty_meta(folder):
    (folder / "meta.json").write_text("{}")


def older(folder):
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "format": 0}))


@pytest.mark.parametrize(
    "damage",
    [shorten, lengthen, other_header, pickled, remove, garble_meta, empty_meta, older],
    ids=lambda f: f.__name__,
)
def test_a_damaged_cache_is_rebuilt(source, tmp_path, damage, capsys):
    load.load_dataset(source)
    damage(cache_of(tmp_path))
    again = load.load_dataset(source)
    assert (again.train_x == X).all()
    assert (again.test_y == Y[:9]).all()
    assert capsys.readouterr().err.count("is damaged") == 1
    load.load_dataset(source)
    assert capsys.readouterr().err == ""
    cache_of(tmp_path)


def test_a_cache_that_cannot_be_written(source, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDPTR_CACHE", str(tmp_path / "file" / "cache"))
    data = load.load_dataset(source)
    assert (data.train_x == X).all()
    assert not isinstance(data.train_x, np.memmap)
    assert data.train_x.flags.writeable
    assert capsys.readouterr().err.count("\n") == 1


def test_check_finds_silent_damage_in_the_cache(source, tmp_path, capsys):
    load.load_dataset(source)
    folder = cache_of(tmp_path)
    commands.check_dataset(commands_args(source))
    assert f"{folder} agrees" in capsys.readouterr().out
    content = bytearray((folder / "train_x.npy").read_bytes())
    content[-1] ^= 1
    (folder / "train_x.npy").write_bytes(content)
    commands.check_dataset(commands_args(source))
    assert "was damaged and has been removed" in capsys.readouterr().out
    assert not folder.exists()


def commands_args(name):
    import argparse

    return argparse.Namespace(name=name, data_dir="", task="auto")


PROGRAM = (
    "import sys; from fedptr import load_dataset; d = load_dataset(sys.argv[1])\n"
    "print(d.train_x.filename, d.train_x.sum())"
)


def test_processes_building_at_once(source, tmp_path):
    runs = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, source], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    outputs = [run.communicate(timeout=PATIENCE) for run in runs]
    assert [run.returncode for run in runs] == [0] * 4, outputs
    expected = f"{cache_of(tmp_path) / 'train_x.npy'} {X.sum()}\n".encode()
    assert outputs == [(expected, b"")] * 4
