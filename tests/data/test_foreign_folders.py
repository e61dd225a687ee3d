"""Lists of classes, and images, that somebody else has made: nothing outside of the dataset is read or waited for."""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedptr.data import readers
from fedptr.data.image_folders import read_image, read_tiny_imagenet
from fedptr.errors import UserError


def tiny_imagenet(folder: Path, wnids: str) -> Path:
    for place in ("train/n01/images", "val/images"):
        (folder / place).mkdir(parents=True)
        Image.new("RGB", (64, 64)).save(folder / place / "a.png")
    (folder / "wnids.txt").write_text(wnids)
    (folder / "words.txt").write_text("n01\tcat, tom\n")
    (folder / "val/val_annotations.txt").write_text("a.png\tn01\t0\t0\t9\t9\n")
    return folder


def test_a_list_of_one_class(tmp_path: Path) -> None:
    found = read_tiny_imagenet(tiny_imagenet(tmp_path, "n01\n"))
    assert (found.classes, found.train_y.tolist(), found.test_y.tolist()) == (("cat",), [0], [0])


@pytest.mark.parametrize(
    ("wnids", "words"),
    [
        ("", "it names no class"),
        (" \n", "it names no class"),
        ("n01 ../../x", "'../../x' is not the name of a class"),
        ("../x", "'../x' is not the name of a class"),
        ("/etc", "'/etc' is not the name of a class"),
        ("..", "'..' is not the name of a class"),
        ("n01/../n01", "is not the name of a class"),
        ("n01 \x1b[31mn02", "is not the name of a class"),
        ("n01 n01", "it names a class twice"),
    ],
)
def test_names_of_classes_do_not_leave_the_folder(tmp_path: Path, wnids: str, words: str) -> None:
    (tmp_path / "x" / "images").mkdir(parents=True)  # where ../x would lead to
    Image.new("RGB", (64, 64)).save(tmp_path / "x" / "images" / "secret.png")
    with pytest.raises(UserError, match=r"wnids\.txt cannot be read as a list of classes") as caught:
        read_tiny_imagenet(tiny_imagenet(tmp_path / "data", wnids))
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["words.txt", "val/val_annotations.txt", "train/n01/images/b.png"])
def test_fifos_are_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = tiny_imagenet(tmp_path, "n01")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(UserError, match=f"{name} cannot be read .*it is a FIFO, not a regular file"):
        read_tiny_imagenet(folder)


def test_idx_files_are_regular_and_unpack_to_what_they_announce(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte.gz").touch()
    (tmp_path / "train-images-idx3-ubyte.gz").unlink()
    os.mkfifo(tmp_path / "train-images-idx3-ubyte.gz")
    with pytest.raises(UserError, match="it is a FIFO"):
        readers.read_idx(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").unlink()
    head = bytes((0, 0, 8, 3)) + struct.pack(">3I", 1, 2, 2)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + bytes(100_000)))
    with pytest.raises(UserError, match="cannot be read as an IDX file"):
        readers.read_idx(tmp_path)
    head = bytes((0, 0, 8, 3)) + b"\xff" * 12
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(head))
    with pytest.raises(UserError, match="its head announces the shape"):
        readers.read_idx(tmp_path)


def make_png(width: int, height: int) -> bytes:
    """A PNG that says how large it is, and has nothing in it."""
    chunks = [
        (b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"")),
        (b"IEND", b""),
    ]
    packed = [struct.pack(">I", len(c)) + kind + c + struct.pack(">I", zlib.crc32(kind + c)) for kind, c in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (make_png(10_000, 9_000), "it has 10000x9000 pixels, and may have 33554432"),
        (make_png(65_535, 65_535), "exceeds limit"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot identify image file"),  # starts Ghostscript
        (b"GIF89a", "cannot identify image file"),
    ],
)
def test_images_have_a_few_formats_and_sizes(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.png cannot be read as an image") as caught:
        read_image(tmp_path / "a.png", (3, 8, 8))
    assert words in str(caught.value)


def test_members_of_an_npz_are_arrays(tmp_path: Path) -> None:
    import zipfile

    from fedptr.data.load import load_dataset

    np.savez(tmp_path / "own.npz", train_x=np.zeros((2, 4, 4), np.uint8), train_y=[0, 1], test_y=[0])
    with zipfile.ZipFile(tmp_path / "own.npz", "a") as file:
        file.writestr("test_x.npy", b"no array")
    with pytest.raises(UserError, match=r"own\.npz cannot be read as an \.npz file \(its test_x is not an array\)"):
        load_dataset(str(tmp_path / "own.npz"))
