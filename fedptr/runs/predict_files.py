"""Predictions for images, tables, arrays and texts: what the model sees in each, as CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedptr.core.predictor import Predictor
from fedptr.data.image_folders import SUFFIXES, natural_order, read_image
from fedptr.data.own_data import take_array
from fedptr.data.readers import explain_read_errors
from fedptr.data.tables import SUFFIXES as TABLES
from fedptr.data.tables import is_table, load_texts, read_features
from fedptr.data.tokens import TextPlan, encode_texts
from fedptr.errors import UserError
from fedptr.regular_files import open_regular, read_text

CHUNK = 256  # inputs at a time
KEYS = ("x", "test_x", "train_x")  # of an .npz file, the first that it has


class Prediction(NamedTuple):
    input: str  # a file, or file[row]
    class_name: str
    probability: float


class NumberPrediction(NamedTuple):
    input: str
    prediction: float  # in the units of the labels


class LabelsPrediction(NamedTuple):
    input: str
    labels: tuple[str, ...]  # those that are more probable than not


AnyPrediction = Prediction | NumberPrediction | LabelsPrediction


def predict_path(model: Predictor, given: str | Path, resize: bool = False) -> Iterator[AnyPrediction]:
    """A prediction for an image, for every image in a folder and below, or for every row of a table, .npy or .npz.

    For a model of texts: for a text, every line of a .txt file, or every row of a table.
    """
    path = Path(given)
    if model.card.text:
        inputs = read_texts(model, str(given))
    elif path.suffix in TABLES:
        inputs = read_table(model, path)
    else:
        inputs = read_rows(model, path) if path.suffix in (".npy", ".npz") else read_images(model, path, resize)
    while chunk := list(islice(inputs, CHUNK)):
        x = torch.stack([x for _, x in chunk])
        if model.card.target != "class":
            for (name, _), found in zip(chunk, model.predict(x), strict=True):
                number = model.card.target == "number"
                yield NumberPrediction(name, found) if number else LabelsPrediction(name, tuple(found))
            continue
        probabilities = model.probabilities(x)
        best = probabilities.max(1)
        for (name, _), value, k in zip(chunk, best.values.tolist(), best.indices.tolist(), strict=True):
            yield Prediction(name, model.classes[k], value)


def read_table(model: Predictor, path: Path) -> Iterator[tuple[str, Tensor]]:
    """The rows of a table, whose first line names its columns; a label column is ignored."""
    if not is_table(model.shape):
        raise UserError(f"the model takes inputs of shape {list(model.shape)}, and rows of {path} are none")
    with explain_read_errors(path, "a table"):
        rows = read_features(path, model.shape[0])
    for row, values in enumerate(rows):
        yield f"{path}[{row}]", torch.from_numpy(values).float().reshape(model.shape)


def read_texts(model: Predictor, given: str) -> Iterator[tuple[str, Tensor]]:
    """Token numbers of a text, or of those in a file."""
    length, vocabulary = model.shape
    path, named = Path(given), [given]
    if path.suffix in (".txt", *TABLES):
        if not path.is_file():
            raise UserError(f"{path} does not exist; name a .txt, .csv or .parquet file, or give the text itself")
        with explain_read_errors(path, "texts"):
            lines = load_texts(path) if path.suffix in TABLES else read_text(path, encoding="utf-8-sig").splitlines()
        named = [f"{path}[{row}]" for row in range(len(lines))]
    else:
        lines = [given]
    for name, line in zip(named, lines, strict=True):
        yield name, torch.from_numpy(encode_texts([line], TextPlan(vocabulary, length))[0])


def read_images(model: Predictor, path: Path, resize: bool) -> Iterator[tuple[str, Tensor]]:
    """Image files as the model takes them, with values in [0, 1]."""
    if len(model.shape) != 3 or model.shape[0] not in (1, 3):
        raise UserError(f"the model does not take images but inputs of shape {list(model.shape)}; give an .npz file")
    for file in list_images(path):
        x = torch.from_numpy(read_image(file, model.shape, resize)).float() / 255
        yield str(file), x if model.card.pixel_max else x * 255


def list_images(path: Path) -> list[Path]:
    if path.is_dir():
        found = [file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file()]
        if not found:
            raise UserError(
                f"{path} holds no images ({', '.join(sorted(SUFFIXES))}); name a folder or a file that does"
            )
        return sorted(found, key=lambda file: natural_order(str(file)))
    if not path.is_file():
        raise UserError(f"{path} does not exist; name an image, a folder of images, a .csv, an .npy or an .npz file")
    return [path]


def read_rows(model: Predictor, path: Path) -> Iterator[tuple[str, Tensor]]:
    """The rows of an array: [n, …] of the model's shape, or images [n, H, W] of one channel."""
    with explain_read_errors(path, "an array"), open_regular(path) as file:
        array = np.load(file, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            with array:
                key = next((key for key in KEYS if key in array.files), None)
                if key is None:
                    raise UserError(f"{path} has none of the keys {', '.join(KEYS)}; save the inputs as x")
                array = take_array(array, key)
    if array.ndim == 3 and model.shape[:1] == (1,) and len(model.shape) == 3:
        array = array[:, None]
    if array.ndim == 2 and is_table(model.shape):
        array = array[:, :, None, None]
    if array.shape[1:] != model.shape or array.dtype.kind not in "uif":
        there = f"{array.dtype} of shape {list(array.shape)}"
        raise UserError(f"{path} holds {there}, and the model takes numbers of shape [n, {str(list(model.shape))[1:]}")
    for row in range(len(array)):
        x = torch.from_numpy(np.ascontiguousarray(array[row]))
        yield f"{path}[{row}]", x.float() if array.dtype.kind == "f" else x


def format_predictions(predictions: Sequence[AnyPrediction], form: str) -> str:
    """As CSV with a header, or as a JSON list.

    >>> print(format_predictions([Prediction("a.png", "cat", 0.5)], "csv"), end="")
    input,class,probability
    a.png,cat,0.500000
    """
    if form == "json":
        rows = [dict(zip(name_columns(p), p, strict=True)) for p in predictions]
        return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(name_columns(predictions[0]) if predictions else ("input", "class", "probability"))
    for p in predictions:
        if isinstance(p, Prediction):
            writer.writerow((p.input, p.class_name, f"{p.probability:.6f}"))
        else:
            writer.writerow((p.input, f"{p.prediction:.6g}" if isinstance(p, NumberPrediction) else " ".join(p.labels)))
    return text.getvalue()


def name_columns(prediction: AnyPrediction) -> tuple[str, ...]:
    return tuple("class" if name == "class_name" else name for name in prediction._fields)
