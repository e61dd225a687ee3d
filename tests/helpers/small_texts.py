"""A table of short texts that a small model learns in seconds, and a small federated world of tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.models.text import TextMean

GOOD, BAD = ["good", "great", "lovely", "fine", "happy"], ["bad", "awful", "sad", "poor", "boring"]
OTHER = ["the", "film", "was", "a", "story", "of", "people", "in", "town", "who", "see", "many", "things"]
LENGTH, VOCABULARY, WIDTH = 6, 30, 4


def make_texts(n: int = 120, seed: int = 0) -> list[tuple[str, str]]:
    """(text, label), of which two words tell the label."""
    draw = np.random.default_rng(seed)
    found = []
    for i in range(n):
        own = list(draw.choice(GOOD if i % 2 else BAD, 2)) + list(draw.choice(OTHER, draw.integers(1, 6)))
        found.append((" ".join(draw.permutation(own)) + ", really!", "good" if i % 2 else "bad"))
    return found


def write_texts(path: Path, n: int = 120, seed: int = 0, head: str = "review,label") -> Path:
    path.write_text("\n".join([head, *(f'"{text}",{label}' for text, label in make_texts(n, seed))]) + "\n")
    return path


def text_world(model: torch.nn.Module | None = None, dtype: torch.dtype = torch.float32) -> tuple[Classification, list]:
    """A task and four clients' token numbers; the first tokens tell the class."""
    with Key(1).fixed("texts"):
        model = model or TextMean((LENGTH, VOCABULARY), 3, WIDTH)
        clients = []
        for i, n in enumerate((7, 5, 9, 12)):
            y = (torch.randint(2, (n,)) + i) % 3
            x = torch.randint(4, VOCABULARY, (n, LENGTH))
            x[:, 0] = y + 1
            x[: n // 2, -2:] = 0
            clients.append(Samples(x, y))
    return Classification(model.to(dtype), (LENGTH, WIDTH), 3), clients
