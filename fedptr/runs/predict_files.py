"""Predictions for image files and arrays: which inputs there are, what the model sees in them, as CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
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
from fedptr.errors import UserError
from fedptr.regular_files import open_regular

CHUNK = 256  # inputs at a time
KEYS = ("x", "test_x", "train_x")  # of an .npz file, the first that it has


class Prediction(NamedTuple):
    input: str  # a file, or file[row]
    class_name: str
    probability: float


def predict_path(model: Predictor, path: Path, resize: bool = False) -> Iterator[Prediction]:
    """A prediction for an image, for every image in a folder and below, or for every row of an .npy or .npz file."""
    inputs = read_rows(model, path) if path.suffix in (".npy", ".npz") else read_images(model, path, resize)
    while chunk := list(islice(inputs, CHUNK)):
        probabilities = model.probabilities(torch.stack([x for _, x in chunk]))
        best = probabilities.max(1)
        for (name, _), value, k in zip(chunk, best.values.tolist(), best.indices.tolist(), strict=True):
            yield Prediction(name, model.classes[k], value)


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
        raise UserError(f"{path} does not exist; name an image, a folder of images, an .npy or an .npz file")
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
    if array.shape[1:] != model.shape or array.dtype.kind not in "uif":
        there = f"{array.dtype} of shape {list(array.shape)}"
        raise UserError(f"{path} holds {there}, and the model takes numbers of shape [n, {str(list(model.shape))[1:]}")
    for row in range(len(array)):
        x = torch.from_numpy(np.ascontiguousarray(array[row]))
        yield f"{path}[{row}]", x.float() if array.dtype.kind == "f" else x


def format_predictions(predictions: list[Prediction], form: str) -> str:
    """As CSV with a header, or as a JSON list.

    >>> print(format_predictions([Prediction("a.png", "cat", 0.5)], "csv"), end="")
    input,class,probability
    a.png,cat,0.500000
    """
    if form == "json":
        rows = [{"input": p.input, "class": p.class_name, "probability": p.probability} for p in predictions]
        return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("input", "class", "probability"))
    writer.writerows((p.input, p.class_name, f"{p.probability:.6f}") for p in predictions)
    return text.getvalue()
