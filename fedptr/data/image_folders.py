"""Datasets that are folders of image files: tiny-imagenet-200, and the user's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import IO

import numpy as np

from fedptr.data.dataset import Array
from fedptr.data.readers import RawDataset, explain_read_errors, open_image
from fedptr.errors import UserError
from fedptr.messages import progress_bar
from fedptr.regular_files import open_regular, read_text

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
Labelled = list[tuple[Path, int]]


def read_tiny_imagenet(folder: Path) -> RawDataset:
    """`wnids.txt` lists the classes, perhaps fewer than 200; the validation images are the test set."""
    with explain_read_errors(folder / "wnids.txt", "a list of classes"):
        wnids = _check_wnids(read_text(folder / "wnids.txt").split())
    with explain_read_errors(folder / "words.txt", "a list of class names"):
        lines = read_text(folder / "words.txt").splitlines()
        words = dict(line.split("\t", 1) for line in lines if "\t" in line)
    label = {wnid: k for k, wnid in enumerate(wnids)}
    train = [(path, label[wnid]) for wnid in wnids for path in _list_images(folder / "train" / wnid / "images")]
    annotations = folder / "val" / "val_annotations.txt"
    with explain_read_errors(annotations, "a list of image names and classes"):
        rows = [line.split("\t")[:2] for line in read_text(annotations).splitlines() if line]
        # `.name` keeps a malicious annotation from leaving the folder.
        test = [(folder / "val" / "images" / Path(name).name, label[wnid]) for name, wnid in rows if wnid in label]
    names = tuple(words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids)
    note = "" if len(wnids) == 200 else f"{len(wnids)} of 200 classes"
    return RawDataset(
        *_decode_images(train, "RGB", (64, 64)), *_decode_images(test, "RGB", (64, 64)), classes=names, note=note
    )


def _check_wnids(names: list[str]) -> list[str]:
    """Each is the name of a folder in train/, so none may lead anywhere else."""
    if not names:
        raise ValueError("it names no class")
    for name in names:
        if not re.fullmatch(r"[\w-]+", name):
            raise ValueError(f"{name[:40]!r} is not the name of a class")
    if len(set(names)) < len(names):
        raise ValueError("it names a class twice")
    return names


def read_image_folder(folder: Path) -> RawDataset:
    """train/CLASS/*.png and test/CLASS/*.png, all of one size; grey if every image is grey, else RGB."""
    classes = tuple(sorted((p.name for p in _list_subfolders(folder / "train")), key=natural_order))
    extra = sorted({p.name for p in _list_subfolders(folder / "test")} - set(classes))
    if extra:
        raise UserError(f"{folder / 'test' / extra[0]} has no counterpart in {folder / 'train'}; add or remove it")
    train, test = (
        [
            (path, k)
            for k, name in enumerate(classes)
            for path in _list_images(folder / part / name, optional=part == "test")
        ]
        for part in ("train", "test")
    )
    if not test:
        raise UserError(f"{folder / 'test'} holds no images; put some there, in one folder per class")
    mode = "L" if all(_mode_and_size(path)[0] in ("1", "L") for path, _ in train + test) else "RGB"
    size = _mode_and_size(train[0][0])[1]
    return RawDataset(*_decode_images(train, mode, size), *_decode_images(test, mode, size), classes=classes)


def _list_subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder} is missing; an image folder needs train/CLASS/ and test/CLASS/ with images in them")
    return [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]


def _list_images(folder: Path, optional: bool = False) -> list[Path]:
    found = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES] if folder.is_dir() else []
    if not found and not optional:
        raise UserError(f"{folder} holds no images; restore them, or remove the class")
    return sorted(found, key=lambda path: natural_order(path.name))


def natural_order(name: str) -> tuple[list[str | int], str]:
    """Sorts `2.png` before `10.png`. Text and numbers alternate, so equal positions have the same type."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"(\d+)", name))], name


def _mode_and_size(path: Path) -> tuple[str, tuple[int, int]]:
    with explain_read_errors(path, "an image"), open_regular(path) as file, open_image(file) as image:
        return image.mode, image.size


def _decode_images(items: Labelled, mode: str, size: tuple[int, int]) -> tuple[Array, Array]:
    """Images as [n, C, H, W], and their labels."""
    width, height = size
    pixels = np.empty((len(items), 1 if mode == "L" else 3, height, width), np.uint8)
    with progress_bar("decoding images", len(items)) as advance:
        for i, (path, _) in enumerate(items):
            image = _read_pixels(path, mode)
            if image.shape[:2] != (height, width):
                there = f"{image.shape[1]}x{image.shape[0]}"
                raise UserError(f"{path} is {there} pixels, not {width}x{height} like the others; resize it")
            pixels[i] = image if mode == "L" else image.transpose(2, 0, 1)
            advance(1)
    return pixels, np.array([label for _, label in items], np.int64)


def read_image(path: Path, shape: tuple[int, ...], resize: bool = False) -> Array:
    """One image file as [C, H, W] in 0 to 255; an image of another size is refused unless it may be resized."""
    channels, height, width = shape
    image = _read_pixels(path, "L" if channels == 1 else "RGB")
    if image.shape[:2] != (height, width):
        if not resize:
            there = f"{image.shape[1]}x{image.shape[0]}"
            raise UserError(
                f"{path} is {there} pixels, and the model takes {width}x{height}; resize it, or add --resize"
            )
        from PIL import Image

        image = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
    return image[None].copy() if channels == 1 else np.ascontiguousarray(image.transpose(2, 0, 1))


def _read_pixels(path: Path, mode: str) -> Array:
    with explain_read_errors(path, "an image"), open_regular(path) as file:
        return decode_image(file, mode)


def decode_image(file: IO[bytes], mode: str) -> Array:
    """The pixels of an open file, as grey or as RGB."""
    with open_image(file) as image:
        if image.mode[0] in "IF":
            raise ValueError("it has more than 8 bits per channel")
        if image.mode in (mode, "1", "L"):
            return np.asarray(image.convert(mode))
        # Via RGBA, because palettes with transparency give a warning otherwise.
        return np.asarray(image.convert("RGBA").convert(mode))
