"""Tables, .csv or .parquet: a row per sample, a column per feature, and labels that may be words.

A table is kept as images of one pixel with a channel per feature, so that normalisation per channel is normalisation
per feature, and everything that works for images works for tables. Where the only feature is text, its rows become
token numbers (`fedptr.data.tokens`).
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedptr.data.dataset import Array
from fedptr.data.image_folders import natural_order
from fedptr.data.parquet import read_parquet
from fedptr.data.readers import RawDataset
from fedptr.data.targets import Task, check_number_labels
from fedptr.data.tokens import TextPlan, encode_texts
from fedptr.errors import UserError
from fedptr.regular_files import expand_home, open_regular, read_text

USERS = ("user", "client", "group")  # a column of this name says whose row it is, and is no feature
LABELS = ("label", "class", "target", "y")  # a column of this name has the labels; else it is the last column
TEXTS = ("text", "sentence", "review", "content")  # a column of this name is text, even if it looks like numbers
TRAIN, TEST, SUFFIXES = "train", "test", (".csv", ".parquet")
HELD_OUT = 5  # of a single file, one row in five is for tests
MOST_COLUMNS = 4096
HEAD, LOOKED_AT = 1 << 18, 100  # bytes and rows from which a table of texts is recognised
DEFAULT = TextPlan()
Column = list[str] | Array
OTHER_MARKS = {";": "semicolons", "\t": "tabs"}


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
        numbers = all(is_number(str(name)) for name in train)
        raise UserError(
            f"the test part of {path} has the label {unknown[0]!r}, which the training part does not have"
            + ("; to predict numbers use --task regression" if numbers else "")
        )
    train, test = (np.array([number[str(name)] for name in part], dtype=np.int64) for part in (train, test))
    return train, test, tuple(names)


def read_table(path: Path, text: TextPlan = DEFAULT, task: Task = "auto") -> RawDataset:
    """One file, of which a fifth of the rows, drawn once and for all, is the test part."""
    table = load_table(path)
    order = np.random.default_rng(0).permutation(len(table.labels))
    test, train = np.sort(order[: len(order) // HELD_OUT]), np.sort(order[len(order) // HELD_OUT :])
    note = "a fifth of the rows held out for tests"
    return make_dataset(table.take(train), table.take(test), path, text, task, note)


def read_table_folder(folder: Path, text: TextPlan = DEFAULT, task: Task = "auto") -> RawDataset:
    """train.csv and test.csv, or the same as .parquet."""
    names = table_parts(folder) or (TRAIN + SUFFIXES[0], TEST + SUFFIXES[0])
    train, test = (load_table(folder / name) for name in names)
    if train.names != test.names:
        raise UserError(
            f"{names[0]} and {names[1]} in {folder} have different columns; give them the same, in the same order"
        )
    return make_dataset(train, test, folder, text, task)


def table_parts(folder: str | Path) -> tuple[str, str] | None:
    """The two files of a folder that is a table."""
    for suffix in SUFFIXES:
        if all(os.path.isfile(os.path.join(folder, part + suffix)) for part in (TRAIN, TEST)):
            return TRAIN + suffix, TEST + suffix
    return None


def make_dataset(
    train: Table, test: Table, path: Path, text: TextPlan, task: Task = "auto", note: str = ""
) -> RawDataset:
    train_y, test_y, names, target = read_labels(train, test, path, task)
    if is_text(train):
        x, test_x = (encode_texts(map(str, part.columns[0]), text) for part in (train, test))
        raw = RawDataset(x, train_y, test_x, test_y, names, (0.0,), (1.0,), vocabulary=text.vocabulary)
    else:
        x, test_x = (np.stack([read_column(*each, path) for each in part.named()], axis=1) for part in (train, test))
        raw = RawDataset(table_to_images(x), train_y, table_to_images(test_x), test_y, names)
    raw = raw._replace(note=note, target=target)
    return raw if train.users is None else with_users(raw, train.users, test.users)


def read_labels(train: Table, test: Table, path: Path, task: Task) -> tuple[Array, Array, tuple[str, ...], str]:
    """Labels of both parts, the classes, and the target: numbers if all are numbers, and some have fractions."""
    if task == "multi-label":
        raise UserError(
            f"{path} has one label column; several labels a sample come as an .npz file, with train_y and test_y of "
            "zeros and ones [n, labels]"
        )
    if task == "regression" or (task == "auto" and has_fractions([*train.labels, *test.labels])):
        train_y, test_y = (read_column(list(map(str, part.labels)), part.label, path) for part in (train, test))
        return *check_number_labels(train_y, test_y, path), (), "number"
    return *number_labels(train.labels, test.labels, path), "class"


class Table(NamedTuple):
    """Columns of numbers, or of words as they are written, and the labels as words."""

    names: tuple[str, ...]  # of all columns, the label among them
    features: tuple[str, ...]
    columns: list[Column]
    labels: Array
    users: Array | None = None  # whose row it is, as words
    label: str = "label"  # the name of the column of labels

    def take(self, rows: Array) -> Table:
        columns = [column[rows] if isinstance(column, np.ndarray) else pick(column, rows) for column in self.columns]
        users = None if self.users is None else self.users[rows]
        return self._replace(columns=columns, labels=self.labels[rows], users=users)

    def named(self) -> Iterator[tuple[Column, str]]:
        return zip(self.columns, self.features, strict=True)


def pick(values: list[str], rows: Array) -> list[str]:
    return [values[row] for row in rows.tolist()]


def is_text(table: Table) -> bool:
    """Whether the only column beside the label is one of text: by its name, or because it holds no numbers."""
    if len(table.columns) != 1 or isinstance(table.columns[0], np.ndarray):
        return False
    return table.features[0].lower() in TEXTS or not all(map(is_number, table.columns[0]))


def with_users(dataset: RawDataset, users: Array, test_users: Array | None = None) -> RawDataset:
    """The dataset with its samples' users, who are named by words or numbers."""
    whose = [users] if test_users is None else [users, test_users]
    names = sorted({str(name) for part in whose for name in np.unique(part)}, key=natural_order)
    number = {name: k for k, name in enumerate(names)}
    numbered = [np.array([number[str(name)] for name in part], dtype=np.int64) for part in whose]
    return dataset._replace(
        users=numbered[0], user_names=tuple(names), test_users=numbered[1] if test_users is not None else None
    )


def load_table(path: Path) -> Table:
    return separate_label(*load_columns(path), path, first=1 if path.suffix == ".parquet" else 2)


def load_columns(path: Path) -> tuple[list[str], Sequence[Column]]:
    """The names of the columns, and the columns."""
    if path.suffix == ".parquet":
        return read_parquet(path, MOST_COLUMNS + 1)
    try:
        text = read_text(path, encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 ({error.reason}, byte {error.start}); save it as UTF-8") from None
    return parse_csv(text, path)


def load_texts(path: Path) -> list[str]:
    """The column of texts of a table that may have a label, for predictions."""
    names, columns = load_columns(path)
    places = [k for k, name in enumerate(names) if name.lower() in TEXTS]
    places = places or [k for k, name in enumerate(names) if len(names) == 1 or name.lower() not in LABELS]
    if len(places) != 1:
        raise UserError(f"{path} has {len(places)} columns that may be the text; call the one that it is 'text'")
    return [str(value) for value in columns[places[0]]]


def parse_csv(text: str, path: Path) -> tuple[list[str], Sequence[Column]]:
    """The names of the columns, and what they hold as it is written."""
    try:
        found = [row for row in csv.reader(io.StringIO(text)) if row]
    except csv.Error as error:
        raise UserError(f"{path} cannot be read as a table ({error}); save it as CSV") from None
    if not found:
        raise UserError(f"{path} cannot be read as a table (it is empty); its first line must name the columns")
    head, *rows = found
    head = [name.strip() for name in head]
    other = next((mark for mark in OTHER_MARKS if len(head) == 1 and mark in head[0]), "")
    if other:
        raise UserError(f"{path} separates its columns by {OTHER_MARKS[other]}; save it with commas")
    if 2 <= len(head) <= MOST_COLUMNS + 1 and rows and names_are_values(head):
        raise UserError(f"{path} begins with numbers; its first line must name the columns")
    for line, row in enumerate(rows, 2):
        if len(row) != len(head):
            raise UserError(f"row {line} of {path} has {len(row)} values, and there are {len(head)} columns")
    return head, [[row[k] for row in rows] for k in range(len(head))]


def separate_label(names: list[str], columns: Sequence[Column], path: Path, first: int) -> Table:
    """The columns of labels and users apart from the features; `first` is the number of the first row in messages."""
    rows = len(columns[0]) if columns else 0
    if not 2 <= len(names) <= MOST_COLUMNS + 1 or not rows:
        raise UserError(f"{path} has {len(names)} columns and {rows} rows; a table needs features and a label")
    whose = find_users(names)
    left = [k for k in range(len(names)) if k != whose]
    if len(left) < 2:
        raise UserError(f"{path} has no column besides {' and '.join(map(repr, names))}; a table needs features too")
    place = left[find_label([names[k] for k in left])]

    def read_words(k: int, what: str) -> Array:
        words = np.array([str(value).strip() for value in columns[k]])
        if "" in words:
            raise UserError(f"row {int(np.argmax(words == '')) + first} of {path} has no {names[k]!r}, which is {what}")
        return words

    others = [k for k in left if k != place]
    labels = read_words(place, "the label")
    users = None if whose is None else read_words(whose, "whose row it is")
    return Table(
        tuple(names), tuple(names[k] for k in others), [columns[k] for k in others], labels, users, names[place]
    )


def find_users(head: Sequence[str]) -> int | None:
    """The column that says whose a row is, if there is one."""
    return next((k for wanted in USERS for k, name in enumerate(head) if name.lower() == wanted), None)


def find_label(head: Sequence[str]) -> int:
    """The column with the labels."""
    return next((k for k, name in enumerate(head) if name.lower() in LABELS), len(head) - 1)


def read_features(path: Path, count: int) -> Array:
    """The rows of a table that is to be predicted from: `count` features, and perhaps labels, which are left out."""
    names, columns = load_columns(path)
    kept = [k for k in range(len(names)) if k != find_users(names)]
    if len(kept) == count + 1:
        kept.remove(kept[find_label([names[k] for k in kept])])
    if len(kept) != count:
        raise UserError(f"{path} has {len(names)} columns, and the model takes {count} features; give it those alone")
    return np.stack([read_column(columns[k], names[k], path) for k in kept], axis=1)


def read_column(values: Column, name: str, path: Path) -> Array:
    try:
        column = np.array([float(value) for value in values])
    except ValueError:
        wrong = next(str(value) for value in values if not is_number(str(value)))
        told = f"has {wrong[:40]!r}, which is not a number" if wrong.strip() else "has empty values"
        raise UserError(
            f"the column {name!r} of {path} {told}; encode it as numbers, or leave it out (text is taken where it is "
            "the only column beside the label)"
        ) from None
    if not (np.abs(column) < np.finfo(np.float32).max).all():
        raise UserError(f"the column {name!r} of {path} has values that are NaN or infinite; replace them")
    return column


def names_are_values(head: Sequence[str]) -> bool:
    """Whether a first line holds values instead of names: numbers alone, or mostly numbers with fractions.

    >>> names_are_values(["5.1", "3.5", "setosa"]), names_are_values(["0", "1", "label"])
    (True, False)
    """
    fractions = sum(is_number(name) and not float(name).is_integer() for name in head)
    return all(map(is_number, head)) or fractions > len(head) / 2


def has_fractions(labels: Sequence[str]) -> bool:
    """
    >>> has_fractions(["1", "2.5"]), has_fractions(["1.0", "2.0"]), has_fractions(["0.5", "cat"])
    (True, False, False)
    """
    return all(map(is_number, labels)) and any(not float(label).is_integer() for label in labels)


def holds_text(name: str) -> bool:
    """Whether a file or a folder of this name is a table of texts, as far as its first rows show; never raises."""
    try:
        path = expand_home(name)
        parts = table_parts(path)
        path = path / parts[0] if parts else path
        if path.suffix == ".parquet":
            return is_text(load_table(path))
        if path.suffix != ".csv":
            return False
        with open_regular(path) as file:
            head = file.read(HEAD + 1)
        if len(head) > HEAD:  # up to the last whole line, which may be within a text: what is cut off is left out
            head = head[: head.rfind(b"\n") + 1]
        rows = [row for row in csv.reader(io.StringIO(head.decode("utf-8-sig", "ignore"))) if row]
        rows = [row for row in rows if len(row) == len(rows[0])][:LOOKED_AT]
        names, columns = [word.strip() for word in rows[0]], [list(column) for column in zip(*rows[1:], strict=True)]
        return is_text(separate_label(names, columns, path, first=2))
    except Exception:  # whatever is wrong with it is said when it is read
        return False


def is_number(text: str) -> bool:
    try:
        float(text)
        return True
    except ValueError:
        return False
