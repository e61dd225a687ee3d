"""Tables: a row per sample, a column per feature, and labels that may be words.

A table is kept as images of one pixel with a channel per feature, so that normalisation per channel is normalisation
per feature, and everything that works for images works for tables.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedptr.data.dataset import Array
from fedptr.data.image_folders import natural_order
from fedptr.data.readers import RawDataset
from fedptr.errors import UserError
from fedptr.regular_files import read_text

LABELS = ("label", "class", "target", "y")  # a column of this name has the labels; else it is the last column
TRAIN, TEST = "train.csv", "test.csv"
HELD_OUT = 5  # of a single file, one row in five is for tests
MOST_COLUMNS = 4096


def table_to_images(x: Array) -> Array:
    """
    >>> table_to_images(np.zeros((5, 3))).shape
    (5, 3, 1, 1)
    """
    return x.astype(np.float32)[:, :, None, None]


def is_table(shape: Sequence[int]) -> bool:
    """Whether inputs of this shape are rows of a table."""
    return len(shape) == 3 and tuple(shape[1:]) == (1, 1)


def number_labels(train: Array, test: Array, path: Path) -> tuple[Array, Array, tuple[str, ...]]:
    """Labels that are words as numbers, and the words in order."""
    names = sorted({str(name) for name in train}, key=natural_order)
    number = {name: k for k, name in enumerate(names)}
    unknown = [str(name) for name in test if str(name) not in number]
    if unknown:
        raise UserError(f"the test part of {path} has the label {unknown[0]!r}, which the training part does not have")
    train, test = (np.array([number[str(name)] for name in part], dtype=np.int64) for part in (train, test))
    return train, test, tuple(names)


def read_csv(path: Path) -> RawDataset:
    """One file, of which a fifth of the rows, drawn once and for all, is the test part."""
    _, x, labels = parse_csv(read_text(path, encoding="utf-8-sig"), path)
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = np.sort(order[: len(labels) // HELD_OUT]), np.sort(order[len(labels) // HELD_OUT :])
    return make_dataset(x[train], labels[train], x[test], labels[test], path, "a fifth of the rows held out for tests")


def read_csv_folder(folder: Path) -> RawDataset:
    """train.csv and test.csv."""
    parts = [parse_csv(read_text(folder / name, encoding="utf-8-sig"), folder / name) for name in (TRAIN, TEST)]
    (names, x, labels), (test_names, test_x, test_labels) = parts
    if names != test_names:
        raise UserError(f"{TRAIN} and {TEST} in {folder} have different columns; give them the same, in the same order")
    return make_dataset(x, labels, test_x, test_labels, folder)


def make_dataset(x: Array, labels: Array, test_x: Array, test_labels: Array, path: Path, note: str = "") -> RawDataset:
    train_y, test_y, names = number_labels(labels, test_labels, path)
    return RawDataset(table_to_images(x), train_y, table_to_images(test_x), test_y, names, note=note)


def parse_csv(text: str, path: Path) -> tuple[list[str], Array, Array]:
    """The names of the columns, the features as numbers, and the labels as words."""
    try:
        head, *rows = [row for row in csv.reader(io.StringIO(text)) if row]
    except (csv.Error, ValueError) as error:
        raise UserError(f"{path} cannot be read as a table ({error or 'it is empty'}); save it as CSV") from None
    head = [name.strip() for name in head]
    if not 2 <= len(head) <= MOST_COLUMNS + 1 or not rows:
        raise UserError(f"{path} has {len(head)} columns and {len(rows)} rows; a table needs features and a label")
    if all(is_number(name) for name in head):
        raise UserError(f"{path} begins with numbers; its first line must name the columns")
    for line, row in enumerate(rows, 2):
        if len(row) != len(head):
            raise UserError(f"row {line} of {path} has {len(row)} values, and there are {len(head)} columns")
    place = next((k for k, name in enumerate(head) if name.lower() in LABELS), len(head) - 1)
    columns = [read_column([row[k] for row in rows], head[k], path) for k in range(len(head)) if k != place]
    labels = np.array([row[place].strip() for row in rows])
    if "" in labels:
        raise UserError(f"row {int(np.argmax(labels == '')) + 2} of {path} has no {head[place]!r}, which is the label")
    return head, np.stack(columns, axis=1), labels


def read_column(values: list[str], name: str, path: Path) -> Array:
    try:
        column = np.array([float(value) for value in values])
    except ValueError:
        wrong = next(value for value in values if not is_number(value))
        told = f"has {wrong[:40]!r}, which is not a number" if wrong.strip() else "has empty values"
        raise UserError(f"the column {name!r} of {path} {told}; encode it as numbers, or leave it out") from None
    if not (np.abs(column) < np.finfo(np.float32).max).all():
        raise UserError(f"the column {name!r} of {path} has values that are NaN or infinite; replace them")
    return column


def is_number(text: str) -> bool:
    try:
        float(text)
        return True
    except ValueError:
        return False
