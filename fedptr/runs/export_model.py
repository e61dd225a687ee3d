"""Exports a trained model to one file that runs without fedptr, with the preprocessing inside.

    torch          model.pt2, for torch.export.load
    torchscript    model.torchscript, for torch.jit.load, also in C++
    onnx           model.onnx, for ONNX Runtime and others

The input is `inputs`: float32, any number of them; images have values in [0, 1]; texts are int64 token numbers. The
output is `logits`, or `numbers` of a model that predicts those. Every file is loaded again and compared with our own
model on the test part before it counts.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedptr.atomic_files import replace_atomically
from fedptr.core.predictor import Predictor
from fedptr.errors import UserError
from fedptr.messages import install_command
from fedptr.runs.experiment import load_data
from fedptr.runs.plan import load_plan

FORMATS = {"torch": "model.pt2", "torchscript": "model.torchscript", "onnx": "model.onnx"}
TOLERANCE = 1e-3  # of logits
CHECKED = 500  # inputs
Function = Callable[[Tensor], Tensor]


class Check(NamedTuple):
    """How an exported file compares with our model."""

    inputs: str  # which, in words
    largest_difference: float  # of a logit, or a number


def export_model(model: Predictor, form: str, path: Path, inputs: Tensor, words: str) -> Check:
    """Writes the file, loads it again and compares it; nothing is left of a file that differs."""
    write, read = EXPORTERS[form]
    model = model.cpu()
    example = inputs[:2].clone() if len(inputs) > 1 else inputs.repeat(2, *[1] * (inputs.dim() - 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_atomically(path) as scratch, without_warnings():
        write(model, example, scratch)
        with torch.no_grad():
            ours, theirs = model(inputs), read(scratch)(inputs)
        difference = float((ours - theirs).abs().max())
        if not difference <= TOLERANCE * model.card.label_std:
            one = name_output(model).removesuffix("s")
            raise UserError(
                f"the exported model differs from ours by {difference:g} in a {one}; {path} was not written"
            )
    return Check(words, difference)


def name_output(model: Predictor) -> str:
    return "numbers" if model.card.target == "number" else "logits"


def choose_inputs(model: Predictor, folder: Path) -> tuple[Tensor, str]:
    """Test images of the run's dataset in [0, 1]; random inputs where the data is not here."""
    try:
        x = torch.from_numpy(load_data(load_plan(folder).data).test_x[:CHECKED].copy())
        if model.card.text and len(x):
            return x, f"{len(x)} test texts"
        if len(x) and tuple(x.shape[1:]) == model.shape:
            return x.float() / (model.card.pixel_max or 1), f"{len(x)} test images"
    except UserError:
        pass
    draw = torch.Generator().manual_seed(0)
    if model.card.text:
        return torch.randint(model.shape[1], (64, model.shape[0]), generator=draw), "64 random texts"
    return torch.rand(64, *model.shape, generator=draw), "64 random inputs"


def write_torch(model: Predictor, example: Tensor, path: Path) -> None:
    program = torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim("n")},))
    with open(path, "wb") as file:
        torch.export.save(program, file)


def read_torch(path: Path) -> Function:
    with open(path, "rb") as file:
        return torch.export.load(file).module()


def write_torchscript(model: Predictor, example: Tensor, path: Path) -> None:
    with torch.no_grad():
        torch.jit.trace(model, (example,)).save(str(path))


def read_torchscript(path: Path) -> Function:
    return torch.jit.load(str(path))  # type: ignore[no-any-return]


def write_onnx(model: Predictor, example: Tensor, path: Path) -> None:
    for name in ("onnxscript", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            raise UserError(f"--format onnx needs {name}; install it with: {install_command('onnx')}")
    torch.onnx.export(
        model,
        (example,),
        str(path),
        input_names=["inputs"],
        output_names=[name_output(model)],
        dynamic_shapes=({0: torch.export.Dim("n")},),
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def read_onnx(path: Path) -> Function:
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"inputs": x.numpy()})[0])


EXPORTERS: dict[str, tuple[Callable[[Predictor, Tensor, Path], None], Callable[[Path], Function]]] = {
    "torch": (write_torch, read_torch),
    "torchscript": (write_torchscript, read_torchscript),
    "onnx": (write_onnx, read_onnx),
}


@contextmanager
def without_warnings() -> Iterator[None]:
    """Silences what exporters say to their developers: deprecations, and operators that nobody here uses."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)
