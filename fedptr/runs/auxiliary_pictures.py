"""Learned images over the rounds, as contact sheets in a run folder: auxiliary/round0007.png.

Of what clients sent, a row shows up to ten images of one of the first ten clients, spread over its set; the PNG text
`rows` has a line for each. Otherwise the set is the server's where it has one, else that of the lowest-numbered client
that has one; the text `owner` says whose, and rows are the first ten classes, with up to ten images each. Pixels are
taken back to the dataset's own units and clipped to the range its training images have; only the first channel is
shown unless there are three.
An auxiliary set never leaves its owner: in a simulation these pictures are a debugging view.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedptr.atomic_files import replace_atomically
from fedptr.core.federation import Run
from fedptr.data.dataset import Dataset
from fedptr.runs.leftovers import AUXILIARY
from fedptr.runs.set_owners import has_images, were_sent
from fedptr.types import State

FOLDER = AUXILIARY
ROWS, COLUMNS = 10, 10
OFTEN = 20  # times over a run, about, where nothing else is said
GAP = 1  # pixels between images
LOOKED_AT = 1000  # training images that tell the range of pixels


def is_picture_due(every: int | Literal["auto"], t: int, total: int) -> bool:
    """Whether round t (from 1) is to be kept: every N rounds, and after the last; 0 = never.

    >>> [t for t in range(1, 101) if is_picture_due("auto", t, 100)] == list(range(5, 101, 5))
    True
    >>> [t for t in range(1, 8) if is_picture_due(3, t, 7)], [t for t in range(1, 8) if is_picture_due(0, t, 7)]
    ([3, 6, 7], [])
    """
    step = max(1, -(-total // OFTEN)) if every == "auto" else every
    return step > 0 and (t % step == 0 or t == total)


def save_picture(run: Run, dataset: Dataset, folder: Path) -> None:
    """Writes this round's sheet; nothing where there are no images."""
    sheet = find_sheet(run)
    if sheet is None:
        return
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    words = PngInfo()
    for name in ("owner", "rows"):
        if text := getattr(sheet, name):
            words.add_text(name, text)
    picture = Image.fromarray(make_contact_sheet(sheet.X, sheet.y, dataset))
    folder.mkdir(exist_ok=True)
    with replace_atomically(folder / f"round{run.round:04}.png") as scratch, open(scratch, "xb") as file:
        picture.save(file, "PNG", pnginfo=words)


class Sheet(NamedTuple):
    """What is shown, and whose it is."""

    X: Tensor
    y: Tensor  # a row for every number
    owner: str = ""
    rows: str = ""  # what rows are where they are no classes, a line each


def find_sheet(run: Run) -> Sheet | None:
    """The images to show; None if there are none."""
    if were_sent(run):
        return sheet_of_clients(run.server) if has_images(run.server) else None
    if has_images(run.server):
        return Sheet(run.server["X"], run.server["y"], "the server")
    first = next(iter(run.clients), None)  # of one method, so that if this client has none then nobody has
    if first is None or not has_images(state := run.clients[first]):
        return None
    return Sheet(state["X"], state["y"], f"client {first}")


def sheet_of_clients(server: State) -> Sheet:
    """Of every client's images as many as a row has, evenly spread, so that many classes and steps are among them."""
    shown = server["owner"].unique().tolist()[:ROWS]
    places = [(server["owner"] == i).nonzero().flatten() for i in shown]
    spread = [rows[torch.linspace(0, len(rows) - 1, min(COLUMNS, len(rows))).round().long()] for rows in places]
    chosen = torch.cat(spread)
    return Sheet(server["X"][chosen], server["owner"][chosen], rows="\n".join(f"client {i}" for i in shown))


def make_contact_sheet(X: Tensor, y: Tensor, dataset: Dataset) -> npt.NDArray[np.uint8]:
    """Images [n, C, H, W] as one picture, a row for every number in y."""
    pixels = to_pixels(X.detach().float().cpu(), dataset)
    labels = y.cpu()
    rows = [pixels[labels == k][:COLUMNS] for k in labels.unique().tolist()[:ROWS]]
    channels, high, wide = pixels.shape[1:]
    across = max(map(len, rows))
    canvas = np.full(
        (len(rows) * (high + GAP) - GAP, across * (wide + GAP) - GAP, channels), 128, dtype=np.uint8
    )  # grey between the images
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            top, left = i * (high + GAP), j * (wide + GAP)
            canvas[top : top + high, left : left + wide] = image.permute(1, 2, 0).numpy()
    return canvas if channels == 3 else canvas[:, :, 0]


def to_pixels(X: Tensor, dataset: Dataset) -> Tensor:
    """As bytes: 0 is the darkest pixel of the training images and 255 the brightest; what lies beyond is clipped."""
    mean, std = (torch.tensor(v, dtype=torch.float32).reshape(1, -1, 1, 1) for v in (dataset.mean, dataset.std))
    seen = dataset.train_x[:LOOKED_AT]
    low, high = float(seen.min()), float(seen.max())
    scaled = (X * std + mean - low) / max(high - low, 1e-12)
    shown = scaled if X.shape[1] == 3 else scaled[:, :1]
    return (shown.nan_to_num(0.0).clamp(0, 1) * 255).round().to(torch.uint8)
