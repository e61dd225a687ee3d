"""A trained model that takes raw inputs: the network with its preprocessing inside, and model.json, which describes it.

model.json holds, beside a network's weights, what is needed to use it:

    format       1
    network      name, width and depth of a model of fedptr, or module:factory; null for a module of the user's own
    shape        of one input: channels, height, width for images; length, vocabulary for texts
    classes      the names of the classes, in the order of the outputs
    mean, std    per channel, in the units of the inputs that were trained on; empty = inputs are taken as they are
    pixel_max    what white is in those units, for images of whole numbers: inputs in [0, 1] are multiplied by it;
                 0 = the inputs were floats, and are taken as they are
    made_by      method, dataset and rounds, for people
    target       number where it predicts numbers, labels where an input may have several classes; else it is left out
    label_mean, label_std  of the numbers it was trained on: an output is multiplied by the second, plus the first
    text         whether inputs are the token numbers of texts (`fedptr.data.tokens`)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedptr.atomic_files import DamagedFileError, Header, unpack_tensors, write_tensors, write_text
from fedptr.errors import UserError
from fedptr.regular_files import read_text
from fedptr.types import State

NAME, WEIGHTS = "model.json", "weights.safetensors"
FORMAT = 1
LATER = {"target": "class", "label_mean": 0.0, "label_std": 1.0, "text": False}  # left out where they are this


@dataclass(frozen=True)
class ModelCard:
    """What model.json says of a model; see above."""

    shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    pixel_max: float = 0
    network: Mapping[str, Any] | None = None
    made_by: Mapping[str, Any] = field(default_factory=dict)
    target: str = "class"
    label_mean: float = 0.0
    label_std: float = 1.0
    text: bool = False

    @property
    def outputs(self) -> int:
        return 1 if self.target == "number" else len(self.classes)

    def save(self, folder: Path) -> None:
        told = {name: value for name, value in asdict(self).items() if name not in LATER or value != LATER[name]}
        write_text(folder / NAME, json.dumps({"format": FORMAT, **told}, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> ModelCard:
        path = folder / NAME
        try:
            told = json.loads(read_text(path))
            if told.pop("format") != FORMAT:
                raise ValueError(f"its format is not {FORMAT}")
            later = {name: told.pop(name) for name in LATER if name in told}
            told = {spec.name: told[spec.name] for spec in fields(cls) if spec.name not in LATER}
            shape, classes = tuple(map(int, told["shape"])), tuple(map(str, told["classes"]))
            mean, std = (tuple(map(float, told[name])) for name in ("mean", "std"))
            target = str(later.get("target", "class"))
            if target not in ("class", "number", "labels"):
                raise ValueError(f"its target is {target!r}")
            text = bool(later.get("text", False))
            if text and (len(shape) != 2 or shape[0] < 1 or shape[1] < 2):
                raise ValueError(f"texts cannot have the shape {list(shape)}")
            unit = (float(later.get("label_mean", 0.0)), float(later.get("label_std", 1.0)))
            numbers = mean, std, float(told["pixel_max"])
            return cls(shape, classes, *numbers, told["network"], told["made_by"], target, *unit, text)
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}); name the folder of a run") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"{path} does not describe a model ({error}); run its plan again") from None


class Predictor(nn.Module):
    """A trained network that takes raw inputs and returns logits, a row for each; or the numbers it predicts.

    Images are N×C×H×W: whole numbers as in the dataset (0 to 255 in photographs), or floats in [0, 1]. Texts are token
    numbers of `fedptr.data.tokens.encode_texts`. Other inputs are floats as they were given for training.

    >>> card = ModelCard((2,), ("no", "yes"), mean=(1.0, 1.0), std=(2.0, 2.0))
    >>> model = Predictor(nn.Identity(), card)
    >>> model(torch.tensor([[1.0, 3.0]])), model.predict(torch.tensor([[1.0, 3.0]]))
    (tensor([[0., 1.]]), ['yes'])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, card: ModelCard) -> None:
        super().__init__()
        self.network, self.card = network, card
        per_channel = (1, -1) + (1,) * (len(card.shape) - 1)
        self.register_buffer("mean", torch.tensor(card.mean or (0.0,)).reshape(per_channel), persistent=False)
        self.register_buffer("std", torch.tensor(card.std or (1.0,)).reshape(per_channel), persistent=False)
        self.eval()

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the outputs."""
        return self.card.classes

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.card.shape

    def forward(self, x: Tensor) -> Tensor:
        if self.card.text:
            logits: Tensor = self.network(x)
            return logits
        if x.dtype.is_floating_point and self.card.pixel_max:
            x = x * self.card.pixel_max
        outputs: Tensor = self.network((x.float() - self.mean) / self.std)
        return outputs * self.card.label_std + self.card.label_mean if self.card.target == "number" else outputs

    @torch.no_grad()
    def probabilities(self, x: Tensor, chunk: int = 1000) -> Tensor:
        """The probability of every class, a row for each input; each on its own where an input may have several."""
        if self.card.target == "number":
            raise UserError("this model predicts numbers, which have no probabilities; use predict_numbers")
        to_probabilities = torch.sigmoid if self.card.target == "labels" else lambda logits: logits.softmax(1)
        return torch.cat([to_probabilities(self(part)) for part in x.split(chunk)])

    @torch.no_grad()
    def predict_numbers(self, x: Tensor, chunk: int = 1000) -> Tensor:
        """The number of each input, in the units of the labels."""
        if self.card.target != "number":
            raise UserError("this model predicts classes, not numbers; use predict or probabilities")
        return torch.cat([self(part).flatten() for part in x.split(chunk)])

    def predict(self, x: Tensor) -> list[Any]:
        """The name of the most probable class of each input; its number, or the list of its labels, if it has such."""
        if self.card.target == "number":
            return self.predict_numbers(x).tolist()
        found = self.probabilities(x)
        if self.card.target == "labels":
            return [[name for name, p in zip(self.classes, row, strict=True) if p > 0.5] for row in found.tolist()]
        return [self.classes[k] for k in found.argmax(1).tolist()]


def number_classes(count: int, names: Sequence[str] | None = None) -> tuple[str, ...]:
    """The classes' names, or their numbers if they have none."""
    if names is not None and len(names) != count:
        raise UserError(f"{len(names)} class names were given for {count} classes; name each once")
    return tuple(map(str, names if names is not None else range(count)))


def write_weights(path: Path, tensors: Mapping[str, Tensor], header: Header | None = None) -> None:
    """Parameters and running statistics, by name: plain safetensors, with a checksum among the metadata."""
    write_tensors(path, dict(tensors), header or {})


def read_weights(path: Path) -> tuple[State, Header]:
    """What `write_weights` wrote; raises DamagedFileError. Files of earlier versions have no checksum."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedFileError(f"{path.name} cannot be read ({error.strerror})") from None
    try:
        if "__metadata__" not in json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]):
            return safetensors.torch.load(content), {}
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DamagedFileError(f"{path.name} is not a file of tensors ({type(error).__name__})") from None
    return unpack_tensors(content, path.name)
