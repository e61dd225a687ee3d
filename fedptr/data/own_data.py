"""The user's own data: the `.npz` format, the checks of every own dataset, and its normalisation."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedptr.data.dataset import PARTS, Array
from fedptr.data.readers import RawDataset, explain_read_errors
from fedptr.data.tables import MOST_COLUMNS, is_table, number_labels, table_to_images
from fedptr.errors import UserError
from fedptr.regular_files import open_regular

CHUNK = 1024  # images at a time, so that normalising never holds a float copy of the whole set


def read_npz(path: Path) -> RawDataset:
    """Keys train_x, train_y, test_x, test_y; optionally classes, mean and std (per channel, in units of the pixels).

    Images are [n, H, W], [n, C, H, W] or [n, H, W, C] with 1 or 3 channels: axis 1 holds the channels if its size is
    1 or 3, else the last axis does. They are uint8, or floats, which become float32. A table is [n, features]. Labels
    are numbers, or words.
    """
    if not os.access(path, os.R_OK):
        raise UserError(f"{path} may not be read; change its permissions, or copy it")
    with explain_read_errors(path, "an .npz file"), open_regular(path) as file:
        return parse_npz(file, path)


def parse_npz(opened: IO[bytes], path: Path) -> RawDataset:
    """The dataset in an open .npz file; what is wrong with it is explained with its path."""
    if not zipfile.is_zipfile(opened):
        raise UserError(f"{path} is not an .npz file; save it with np.savez")
    opened.seek(0)
    with explain_read_errors(path, "an .npz file"), np.load(opened, allow_pickle=False) as file:
        missing = [key for key in PARTS if key not in file.files]
        if missing:
            raise UserError(f"{path} lacks {' and '.join(missing)}; save it with np.savez(path, {'=, '.join(PARTS)}=)")
        train_x, train_y, test_x, test_y = (take_array(file, key) for key in PARTS)
        given = {key: take_array(file, key) for key in ("classes", "mean", "std") if key in file.files}
    mean, std = (_check_numbers(path, key, given[key]) if key in given else () for key in ("mean", "std"))
    names = tuple(str(name) for name in np.atleast_1d(given["classes"])) if "classes" in given else ()
    train_x, test_x = _check_images(path, "train_x", train_x), _check_images(path, "test_x", test_x)
    if train_y.ndim == test_y.ndim == 1 and train_y.dtype.kind == test_y.dtype.kind == "U" and not names:
        train_y, test_y, names = number_labels(train_y, test_y, path)
    train_y, test_y = _check_labels(path, "train_y", train_y), _check_labels(path, "test_y", test_y)
    return RawDataset(train_x, train_y, test_x, test_y, names, mean, std)


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


def _check_numbers(path: Path, key: str, values: Array) -> tuple[float, ...]:
    if values.dtype.kind not in "iuf" or values.ndim > 1 or not np.isfinite(values).all():
        raise UserError(f"{key} in {path} must be one finite number per channel")
    return tuple(float(value) for value in np.atleast_1d(values))


def complete_own_data(path: Path, raw: RawDataset) -> RawDataset:
    """The dataset with class names and normalisation filled in; raises a UserError if something is wrong with it."""
    for part, x, y in (("train", raw.train_x, raw.train_y), ("test", raw.test_x, raw.test_y)):
        if len(x) != len(y):
            raise UserError(f"{part}_x in {path} has {len(x)} images but {part}_y has {len(y)} labels; make them match")
        if len(x) == 0:
            raise UserError(f"the {part} part of {path} is empty; put at least one image into it")
    train, test = ((x.shape[1:], x.dtype) for x in (raw.train_x, raw.test_x))
    if train != test:
        both = f"{_describe_images(*train)} and {_describe_images(*test)}"
        raise UserError(f"training and test images in {path} differ ({both}); make them the same")
    classes = raw.classes or _number_classes(path, raw.train_y)
    for part, y in (("train", raw.train_y), ("test", raw.test_y)):
        if y.min() < 0 or y.max() >= len(classes):
            wrong = int(y.min() if y.min() < 0 else y.max())
            raise UserError(f"{part}_y in {path} has the label {wrong}; labels must be 0 to {len(classes) - 1}")
    if raw.train_y.min() == raw.train_y.max():
        raise UserError(f"the train part of {path} holds one class only; a classifier needs two or more")
    mean, std = _channel_moments(raw.train_x)
    mean, std = raw.mean or mean, raw.std or std
    if not len(mean) == len(std) == raw.train_x.shape[1] or min(std) <= 0:
        raise UserError(f"mean and std in {path} must be one number per channel, and std more than 0")
    return raw._replace(classes=classes, mean=mean, std=std)


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
