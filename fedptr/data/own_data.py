"""The user's own data: the `.npz` format, the checks of every own dataset, and its normalisation."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic

from fedptr.data.dataset import PARTS, Array
from fedptr.data.readers import RawDataset, explain_read_errors
from fedptr.data.tables import MOST_COLUMNS, is_table, number_labels, table_to_images, with_users
from fedptr.data.targets import TARGETS, Task, check_label_sets, check_number_labels
from fedptr.errors import UserError
from fedptr.regular_files import expand_home, open_regular

USERS = ("train_user", "test_user")
CHUNK = 1024  # images at a time, so that normalising never holds a float copy of the whole set


def read_npz(path: Path, task: Task = "auto") -> RawDataset:
    """Keys train_x, train_y, test_x, test_y; optionally classes, mean and std (per channel, in units of the pixels).

    Optionally train_user and test_user: whose sample it is, as numbers or words.

    Images are [n, H, W], [n, C, H, W] or [n, H, W, C] with 1 or 3 channels: axis 1 holds the channels if its size is
    1 or 3, else the last axis does. They are uint8, or floats, which become float32. A table is [n, features]. Labels
    are numbers of classes, or words; floats are numbers to predict, and rows of zeros and ones several labels a sample.
    """
    if not os.access(path, os.R_OK):
        raise UserError(f"{path} may not be read; change its permissions, or copy it")
    with explain_read_errors(path, "an .npz file"), open_regular(path) as file:
        return parse_npz(file, path, task)


def parse_npz(opened: IO[bytes], path: Path, task: Task = "auto") -> RawDataset:
    """The dataset in an open .npz file; what is wrong with it is explained with its path."""
    if not zipfile.is_zipfile(opened):
        raise UserError(f"{path} is not an .npz file; save it with np.savez")
    opened.seek(0)
    with explain_read_errors(path, "an .npz file"), np.load(opened, allow_pickle=False) as file:
        missing = [key for key in PARTS if key not in file.files]
        if missing:
            raise UserError(f"{path} lacks {' and '.join(missing)}; save it with np.savez(path, {'=, '.join(PARTS)}=)")
        train_x, train_y, test_x, test_y = (take_array(file, key) for key in PARTS)
        given = {key: take_array(file, key) for key in (*USERS, "classes", "mean", "std") if key in file.files}
    mean, std = (_check_numbers(path, key, given[key]) if key in given else () for key in ("mean", "std"))
    names = tuple(str(name) for name in np.atleast_1d(given["classes"])) if "classes" in given else ()
    train_x, test_x = _check_images(path, "train_x", train_x), _check_images(path, "test_x", test_x)
    target = TARGETS.get(task) or guess_target(train_y, test_y)
    if target == "number":
        train_y, test_y = check_number_labels(train_y, test_y, path)
        names = ()
    elif target == "labels":
        train_y, test_y = check_label_sets(train_y, test_y, path)
    else:
        if train_y.ndim == test_y.ndim == 1 and train_y.dtype.kind == test_y.dtype.kind == "U" and not names:
            train_y, test_y, names = number_labels(train_y, test_y, path)
        train_y, test_y = _check_labels(path, "train_y", train_y), _check_labels(path, "test_y", test_y)
    made = RawDataset(train_x, train_y, test_x, test_y, names, mean, std, target=target)
    users = {key: _check_users(path, key, given[key], len(y)) for key, y in zip(USERS, (train_y, test_y), strict=True)
             if key in given}  # fmt: skip
    return with_users(made, users[USERS[0]], users.get(USERS[1])) if USERS[0] in users else made


def holds_rows(name: str) -> bool:
    """Whether an `.npz` file holds rows of numbers, not images, as the head of its `train_x` shows; never raises."""
    try:
        with open_regular(expand_home(name)) as file, zipfile.ZipFile(file).open(f"{PARTS[0]}.npy") as array:
            read_head = {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0}[read_magic(array)]
            return len(read_head(array)[0]) == 2
    except Exception:  # whatever is wrong with it is said when it is read
        return False


def guess_target(train_y: Array, test_y: Array) -> str:
    """What labels are, where nobody said it.

    >>> guess_target(np.array([0.5]), np.array([1.0])), guess_target(np.array([1]), np.array([0]))
    ('number', 'class')
    """
    if train_y.ndim == test_y.ndim == 1 and {train_y.dtype.kind, test_y.dtype.kind} == {"f"}:
        return "number"
    return "labels" if train_y.ndim == test_y.ndim == 2 else "class"


def take_array(file: Mapping[str, Any], key: str) -> Array:
    """An array of an opened .npz file. A member without the head of an array comes as bytes."""
    found = file[key]
    if not isinstance(found, np.ndarray):
        raise ValueError(f"its {key} is not an array")
    return found


def _check_images(path: Path, key: str, x: Array) -> Array:
    if x.ndim == 2 and x.dtype.kind in "iu":  # whole numbers in a table are no pixels
        x = x.astype(np.float32)
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise UserError(f"{key} in {path} is {x.dtype}; save it as uint8 or float32")
    if x.ndim == 2 and 0 < x.shape[1] <= MOST_COLUMNS:
        with np.errstate(over="ignore"):
            x = table_to_images(x)
    elif x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.ndim != 4 or (x.shape[1] not in (1, 3) and not is_table(x.shape[1:])) or 0 in x.shape[1:]:
        shape = list(x.shape)
        raise UserError(
            f"{key} in {path} has shape {shape}; save images as [n, H, W], or with 1 or 3 channels, and tables as "
            f"[n, features] with at most {MOST_COLUMNS}"
        )
    if x.dtype.kind == "f":
        with np.errstate(over="ignore"):  # values too large for float32 become infinite, which is refused next
            x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise UserError(f"{key} in {path} has values that are NaN or infinite; replace them")
    return x


def _check_labels(path: Path, key: str, y: Array) -> Array:
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise UserError(f"{key} in {path} must be whole numbers [n], not {y.dtype} of shape {list(y.shape)}")
    return y.astype(np.int64)


def _check_users(path: Path, key: str, users: Array, samples: int) -> Array:
    if users.shape != (samples,) or users.dtype.kind not in "iuU":
        raise UserError(
            f"{key} in {path} must be a whole number or a word for each of {samples} samples, not {users.dtype} of "
            f"shape {list(users.shape)}"
        )
    return users


def _check_numbers(path: Path, key: str, values: Array) -> tuple[float, ...]:
    if values.dtype.kind not in "iuf" or values.ndim > 1 or not np.isfinite(values).all():
        raise UserError(f"{key} in {path} must be one finite number per channel")
    return tuple(float(value) for value in np.atleast_1d(values))


def complete_own_data(path: Path, raw: RawDataset) -> RawDataset:
    """The dataset with class names and normalisation filled in; raises a UserError if something is wrong with it."""
    for part, x, y in (("train", raw.train_x, raw.train_y), ("test", raw.test_x, raw.test_y)):
        if len(x) != len(y):
            raise UserError(
                f"{part}_x in {path} has {len(x)} samples but {part}_y has {len(y)} labels; make them match"
            )
        if len(x) == 0:
            raise UserError(f"the {part} part of {path} is empty; put at least one sample into it")
    train, test = ((x.shape[1:], x.dtype) for x in (raw.train_x, raw.test_x))
    if train != test:
        both = f"{_describe_images(*train)} and {_describe_images(*test)}"
        raise UserError(f"training and test samples in {path} differ ({both}); make them the same")
    classes = raw.classes
    if raw.target == "class":
        classes = classes or _number_classes(path, raw.train_y)
        _check_class_numbers(path, raw, len(classes))
    elif raw.target == "labels":
        columns = raw.train_y.shape[1]
        classes = classes or tuple(map(str, range(columns)))
        if len(classes) != columns:
            raise UserError(f"classes in {path} names {len(classes)} labels and train_y has {columns}; name each once")
    if raw.vocabulary:
        return raw._replace(classes=classes)
    mean, std = _channel_moments(raw.train_x)
    mean, std = raw.mean or mean, raw.std or std
    if not len(mean) == len(std) == raw.train_x.shape[1] or min(std) <= 0:
        raise UserError(f"mean and std in {path} must be one number per channel, and std more than 0")
    return raw._replace(classes=classes, mean=mean, std=std)


def _check_class_numbers(path: Path, raw: RawDataset, classes: int) -> None:
    for part, y in (("train", raw.train_y), ("test", raw.test_y)):
        if y.min() < 0 or y.max() >= classes:
            wrong = int(y.min() if y.min() < 0 else y.max())
            raise UserError(f"{part}_y in {path} has the label {wrong}; labels must be 0 to {classes - 1}")
    if raw.train_y.min() == raw.train_y.max():
        raise UserError(f"the train part of {path} holds one class only; a classifier needs two or more")


def _describe_images(shape: tuple[int, ...], dtype: object) -> str:
    return f"{dtype} {'x'.join(map(str, shape))}"


def _number_classes(path: Path, labels: Array) -> tuple[str, ...]:
    """Without class names, a gap is more likely a mistake (such as counting from 1) than a class without images."""
    present = np.unique(labels)
    gaps = np.flatnonzero(present != np.arange(len(present)))
    if len(gaps):
        raise UserError(
            f"train_y in {path} has the label {present[gaps[0]]} but not {gaps[0]}; "
            "number the classes from 0 without gaps, or name them all under the key classes"
        )
    return tuple(str(k) for k in present)


def _channel_moments(x: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel; a constant channel gets deviation 1, to avoid division by zero."""
    mean = x.mean(axis=(0, 2, 3), dtype=np.float64)
    chunks = (x[i : i + CHUNK] - mean[:, None, None] for i in range(0, len(x), CHUNK))
    var = np.sum([np.square(chunk).sum(axis=(0, 2, 3)) for chunk in chunks], axis=0) / x[:, 0].size
    std = np.sqrt(var)
    std = np.where(std > 1e-6 * np.abs(mean), std, 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())
