"""The closest pairs as a picture: auxiliary images, and below each the nearest own and the nearest held-out sample.

Such a picture shows private data: it is for people who simulate a federation, not for those who take part in one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedptr.atomic_files import replace_atomically
from fedptr.audit.neighbours import OwnedClass, find_closest_pairs
from fedptr.audit.target import Target
from fedptr.runs.auxiliary_pictures import to_pixels
from fedptr.types import State

SHOWN = 8
TILE = 64  # pixels of a picture, at least
GAP = 4


def save_closest_pairs(
    run: Target, found: list[OwnedClass], rounds: dict[int, dict[str, State]], path: Path
) -> list[dict[str, Any]]:
    """The pairs after the last round; returns what the picture shows, column by column."""
    from PIL import Image

    last = rounds[max(rounds)]
    here = [group for group in found if group.owner in last]
    if not here:
        return []
    nearest = sorted(find_closest_pairs(run, here, last), key=lambda pair: pair[0])[:SHOWN]
    columns = torch.stack([triple for *_, triple in nearest])
    flat = to_pixels(columns.flatten(0, 1).float(), run.dataset).unflatten(0, columns.shape[:2])
    with replace_atomically(path) as scratch, open(scratch, "xb") as file:
        Image.fromarray(join_tiles(flat.numpy())).save(file, "PNG")
    return [
        {"owner": group.owner, "class": run.dataset.classes[group.label], "own": own, "held": held}
        for own, held, group, _ in nearest
    ]


def join_tiles(tiles: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """[column, row, channel, height, width] as one picture."""
    across, down, channels, height, width = tiles.shape
    zoom = -(-TILE // max(height, width))
    tiles = tiles.repeat(zoom, axis=3).repeat(zoom, axis=4)
    high, wide = height * zoom + GAP, width * zoom + GAP
    made = np.full((down * high - GAP, across * wide - GAP, channels), 255, dtype=np.uint8)
    for i in range(across):
        for j in range(down):
            tile = tiles[i, j].transpose(1, 2, 0)
            made[j * high : j * high + tile.shape[0], i * wide : i * wide + tile.shape[1]] = tile
    return made if channels == 3 else made[:, :, 0]
