"""Every on-disk form gives back the pixels that were put into it, and damage is one sentence."""

import gzip
import json
import pickle

import numpy as np
import pytest
from PIL import Image

from fedptr.data import image_folders, own_data, readers
from fedptr.data.dataset import array_sha256
from fedptr.errors import UserError

rng = np.random.default_rng(5)
N = 3  # images per batch
IMAGES = rng.integers(0, 256, (6 * N, 3, 32, 32), dtype=np.uint8)  # five training batches and one for the test
LABELS = rng.integers(0, 10, 6 * N)
GRAY = rng.integers(0, 256, (2 * N, 1, 28, 28), dtype=np.uint8)
NAMES = [*readers.BATCHES, "test_batch"]


def batches():
    return zip(NAMES, np.split(IMAGES, 6), np.split(LABELS, 6), strict=True)


def write_idx(folder, opener=gzip.open, suffix=".gz"):
    for part, rows in (("train", slice(N)), ("t10k", slice(N, None))):
        head = np.array([N, 28, 28], ">u4").tobytes()
        with opener(folder / f"{part}-images-idx3-ubyte{suffix}", "wb") as file:
            file.write(b"\0\0\x08\x03" + head + GRAY[rows].tobytes())
        with opener(folder / f"{part}-labels-idx1-ubyte{suffix}", "wb") as file:
            file.write(b"\0\0\x08\x01" + head[:4] + LABELS[: 2 * N][rows].astype(np.uint8).tobytes())


def write_idx_plain(folder):
    write_idx(folder, open, "")


def write_cifar10_python(folder, protocol=2):
    for name, x, y in batches():
        content = {"data": x.reshape(len(x), -1), "labels": y.tolist(), "filenames": ["a.png"] * len(y)}
        (folder / name).write_bytes(pickle.dumps(content, protocol=protocol))


def write_cifar10_old_numpy(folder):
    write_cifar10_python(folder)
    for name in NAMES:
        old = (folder / name).read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        (folder / name).write_bytes(old)


def write_cifar10_new_pickle(folder):
    write_cifar10_python(folder, protocol=4)


def write_cifar10_binary(folder):
    for name, x, y in batches():
        table = np.concatenate([y[:, None].astype(np.uint8), x.reshape(len(x), -1)], axis=1)
        (folder / f"{name}.bin").write_bytes(table.tobytes())


def write_cifar10_png(folder):
    for name, x, _ in batches():
        Image.fromarray(x.transpose(0, 2, 3, 1).reshape(len(x), 1024, 3)).save(folder / f"{name}.png")
    (folder / "train_lables.json").write_text(json.dumps(LABELS[: 5 * N].tolist()))
    (folder / "test_lables.json").write_text(json.dumps(LABELS[5 * N :].tolist()))


def write_cifar100_python(folder):
    for name, rows in (("train", slice(5 * N)), ("test", slice(5 * N, None))):
        x, fine = IMAGES[rows].reshape(-1, 3072), LABELS[rows].tolist()
        content = {b"data": x, b"fine_labels": fine, b"coarse_labels": [0] * len(fine)}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


def write_cifar100_binary(folder):
    for name, rows in (("train", slice(5 * N)), ("test", slice(5 * N, None))):
        x, fine = IMAGES[rows].reshape(-1, 3072), LABELS[rows, None].astype(np.uint8)
        (folder / f"{name}.bin").write_bytes(np.concatenate([fine * 0, fine, x], axis=1).tobytes())


def write_tiny(folder):
    (folder / "wnids.txt").write_text("n2\nn1\n")
    (folder / "words.txt").write_text("n1\tcat, feline\nn2\treel\nn3\tball\n")
    for wnid in ("n1", "n2"):
        (folder / "train" / wnid / "images").mkdir(parents=True)
        for i in (0, 2, 10):  # gray level 100 * class + i
            level = 100 * int(wnid[1]) + i
            mode, color = ("L", level) if i == 2 else ("RGB", (level,) * 3)
            Image.new(mode, (64, 64), color).save(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG")
    (folder / "val" / "images").mkdir(parents=True)
    for i in range(3):
        Image.new("RGB", (64, 64), (i, i, i)).save(folder / "val" / "images" / f"val_{i}.JPEG")
    (folder / "val" / "val_annotations.txt").write_text(
        "".join(f"val_{i}.JPEG\tn{i + 1}\t0\t0\t9\t9\n" for i in range(3))
    )


def write_images(folder, mode="RGB"):
    for part in ("train", "test"):
        for k, name in enumerate(("class2", "class10")):
            (folder / part / name).mkdir(parents=True)
            for i in (2, 10):
                color = 50 * k + i
                Image.new(mode, (5, 4), color if mode == "L" else (color, 0, 0)).save(folder / part / name / f"{i}.png")


COLOUR = (IMAGES[: 5 * N], LABELS[: 5 * N], IMAGES[5 * N :], LABELS[5 * N :])
FORMS = [
    (write_idx, readers.read_idx, (GRAY[:N], LABELS[:N], GRAY[N:], LABELS[N : 2 * N])),
    (write_idx_plain, readers.read_idx, (GRAY[:N], LABELS[:N], GRAY[N:], LABELS[N : 2 * N])),
    (write_cifar10_python, readers.read_cifar10_python, COLOUR),
    (write_cifar10_old_numpy, readers.read_cifar10_python, COLOUR),
    (write_cifar10_new_pickle, readers.read_cifar10_python, COLOUR),
    (write_cifar10_binary, readers.read_cifar10_binary, COLOUR),
    (write_cifar10_png, readers.read_cifar10_png, COLOUR),
    (write_cifar100_python, readers.read_cifar100_python, COLOUR),
    (write_cifar100_binary, readers.read_cifar100_binary, COLOUR),
]


@pytest.mark.parametrize(("write", "read", "expected"), FORMS, ids=lambda f: getattr(f, "__name__", ""))
def test_round_trip(tmp_path, write, read, expected):
    write(tmp_path)
    for got, put in zip(read(tmp_path)[:4], expected, strict=True):
        np.testing.assert_array_equal(got, put)
        assert got.dtype == (np.uint8 if put.ndim == 4 else np.int64)
        assert array_sha256(got) == array_sha256(put)


def test_tiny_imagenet(tmp_path):
    write_tiny(tmp_path)
    raw = image_folders.read_tiny_imagenet(tmp_path)
    assert raw.classes == ("reel", "cat")
    assert raw.note == "2 of 200 classes"
    assert raw.train_x.shape == (6, 3, 64, 64)
    assert raw.train_x.mean(axis=(1, 2, 3)).tolist() == [200, 202, 210, 100, 102, 110]  # 2 before 10
    assert raw.train_y.tolist() == [0, 0, 0, 1, 1, 1]
    assert raw.test_y.tolist() == [1, 0]  # n3 is not among the classes
    assert raw.test_x.mean(axis=(1, 2, 3)).tolist() == [0, 1]


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1)])
def test_image_folder(tmp_path, mode, channels):
    write_images(tmp_path, mode)
    raw = image_folders.read_image_folder(tmp_path)
    assert raw.classes == ("class2", "class10")
    assert raw.train_x.shape == (4, channels, 4, 5)
    assert raw.train_x[:, 0, 0, 0].tolist() == [2, 10, 52, 60]
    assert raw.test_y.tolist() == [0, 0, 1, 1]


def test_an_image_of_another_size_is_named(tmp_path):
    write_images(tmp_path)
    Image.new("RGB", (5, 5)).save(tmp_path / "train/class10/3.png")
    with pytest.raises(UserError, match=r"class10/3\.png is 5x5 pixels, not 5x4"):
        image_folders.read_image_folder(tmp_path)


def test_a_test_class_without_training_images(tmp_path):
    write_images(tmp_path)
    (tmp_path / "test/other").mkdir()
    with pytest.raises(UserError, match="test/other has no counterpart"):
        image_folders.read_image_folder(tmp_path)


def write_npz(folder):
    np.savez_compressed(folder / "own.npz", train_x=GRAY, train_y=LABELS[: 2 * N], test_x=GRAY, test_y=LABELS[: 2 * N])


DAMAGED = [
    *(form[:2] for form in FORMS),
    (write_tiny, image_folders.read_tiny_imagenet),
    (write_images, image_folders.read_image_folder),
    (write_npz, lambda folder: own_data.read_npz(folder / "own.npz")),
]


@pytest.mark.parametrize(("write", "read"), DAMAGED, ids=lambda f: f.__name__)
def test_damage_is_a_user_error_and_nothing_else(tmp_path, write, read):
    """Flipped bits may go unnoticed here (checksums catch them later) but may never be a traceback."""
    write(tmp_path)
    random = np.random.default_rng(1)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    for turn in range(60):
        path = files[turn % len(files)]
        whole = path.read_bytes()
        flipped = bytearray(whole)
        for at in random.integers(0, min(len(whole), 200 if turn % 2 else len(whole)), 3):
            flipped[at] ^= 1 << random.integers(8)
        path.write_bytes(flipped)
        assert "\n" not in complaint(read, tmp_path)
        path.write_bytes(whole)
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        if path.suffix != ".txt" and path.name != "val_2.JPEG":  # half a list is a list; the image's class is not used
            assert path.name in complaint(read, tmp_path)
        path.write_bytes(whole)


def complaint(read, folder):
    try:
        read(folder)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("write", "read", "_"), FORMS, ids=lambda f: getattr(f, "__name__", ""))
def test_a_missing_file_is_named(tmp_path, write, read, _):
    write(tmp_path)
    for path in list(tmp_path.iterdir()):
        whole = path.read_bytes()
        path.unlink()
        assert f"{path.with_suffix('')}" in complaint(read, tmp_path)
        assert "is missing" in complaint(read, tmp_path)
        path.write_bytes(whole)
