"""Models for texts, which come as [n, length] token numbers; 0 is padding.

`embed` gives the tokens' vectors, [n, length, width], and `forward` takes these as well as the tokens themselves. That
is what trajectory matching needs: its auxiliary samples are such vectors, which can be learned, unlike token numbers.
Padding is a zero vector, whatever the table says, so that both ways give the same logits.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedptr.errors import UserError

SPREAD = 0.1  # of the first word vectors; from torch's 1 plain SGD moves a rare word's hardly at all
WINDOWS = (3, 4, 5)  # words that a filter of the convolution sees, as in Kim's paper


class TextModel(nn.Module):
    """A table of word vectors; what is done with them is in `classify`."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=SPREAD)

    def embed(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.embedding(tokens) * (tokens != 0).unsqueeze(-1)
        return vectors

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(x if x.is_floating_point() else self.embed(x))

    def classify(self, vectors: Tensor) -> Tensor:
        raise NotImplementedError


class TextMean(TextModel):
    """The mean of a text's word vectors, normalised, then two linear layers.

    LayerNorm makes the sum as good as the mean, so that nobody has to count the words: padding adds zero.

    >>> TextMean((8, 100), classes=2)(torch.zeros(3, 8, dtype=torch.int64)).shape
    torch.Size([3, 2])
    """

    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 64) -> None:
        length, vocabulary = shape
        super().__init__(vocabulary, width)
        self.scale = 1 / math.sqrt(length)
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def classify(self, vectors: Tensor) -> Tensor:
        logits: Tensor = self.head(F.relu(self.hidden(self.norm(vectors.sum(1) * self.scale))))
        return logits


class TextConv(TextModel):
    """Filters over 3, 4 and 5 words, the largest answer of each, then one linear layer (Kim, 2014, arXiv:1408.5882)."""

    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 64) -> None:
        super().__init__(shape[1], width)
        self.filters = nn.ModuleList(nn.Conv1d(width, width, size, padding=size // 2) for size in WINDOWS)
        self.head = nn.Linear(width * len(WINDOWS), classes)

    def classify(self, vectors: Tensor) -> Tensor:
        columns = vectors.transpose(1, 2)
        logits: Tensor = self.head(torch.cat([F.relu(layer(columns)).amax(2) for layer in self.filters], 1))
        return logits


def is_text_shape(shape: tuple[int, ...]) -> bool:
    """Of `Dataset.shape`: texts have a length and a vocabulary, images and tables three sizes."""
    return len(shape) == 2


def check_kind(name: str, text_model: bool, shape: tuple[int, ...]) -> None:
    """Refuses a model of images for texts, and the reverse."""
    if is_text_shape(shape) and not text_model:
        raise UserError(f"the model {name} is for images and tables, and these are texts; use --model text-mean")
    if text_model and not is_text_shape(shape):
        raise UserError(f"the model {name} is for texts, and these are numbers or images; use --model mlp or convnet")


def learnable_shape(model: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one input as a task needs it: of a text, that of its vectors, or its length if there are none."""
    if not is_text_shape(shape):
        return shape
    embed: Any = getattr(model, "embed", None)
    if embed is None:
        return shape[:1]
    device = next(model.parameters()).device
    return tuple(embed(torch.zeros(1, shape[0], dtype=torch.int64, device=device)).shape[1:])
