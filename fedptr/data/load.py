"""From a dataset's name, or the path to one's own data, to the dataset. Nothing is ever downloaded here."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedptr.data import cache
from fedptr.data.dataset import Dataset
from fedptr.data.image_folders import image_folder
from fedptr.data.own_data import complete, npz
from fedptr.data.readers import Raw, digits, reading
from fedptr.data.sources import SOURCES, Source, find, places, verify
from fedptr.errors import UserError
from fedptr.settings import unknown_name_error


@dataclass(frozen=True)
class Located:
    """A dataset that was found and not yet read."""

    name: str
    path: Path
    words: str  # where and in which form
    read: Callable[[Path], Raw]
    deep: bool
    source: Source | None  # None for own data

    def decode(self) -> Dataset:
        """Reads the files afresh; own data is checked on the way, published data by `verified`."""
        with reading(self.path, "a dataset"):
            raw = self.read(self.path)
        known = self.source or complete(self.path, raw)
        # Owned, writable memory: torch warns about any other.
        train_x, train_y, test_x, test_y = (np.require(array, requirements=["C", "W"]) for array in raw[:4])
        words = f"{self.words}, {raw.note}" if raw.note else self.words
        classes = raw.classes or known.classes
        return Dataset(self.name, train_x, train_y, test_x, test_y, known.mean, known.std, classes, words)

    def verified(self) -> Dataset:
        dataset = self.decode()
        if self.source:
            verify(self.source, dataset)
        return dataset

    def cache_folder(self) -> Path | None:
        """None for digits, which are decoded as fast as a cache is opened."""
        if self.read is digits:
            return None
        with reading(self.path, "a dataset"):
            return cache.cache_root() / f"{self.name}-{cache.fingerprint(self.path, self.deep)}"


def load(name: str, folder: str = "") -> Dataset:
    """A named dataset, an `.npz` file or an image folder; `folder` is looked into first for a named one."""
    found = locate(name, folder)
    kept = found.cache_folder()
    return cache.cached(kept, found.verified) if kept else found.verified()


def locate(name: str, folder: str = "") -> Located:
    if name == "digits":
        return Located(name, Path(), "the digits that come with scikit-learn", digits, False, SOURCES[name])
    if name in SOURCES:
        return _named(SOURCES[name], folder)
    path = Path(name).expanduser().absolute()
    if os.path.isdir(path):
        return Located(path.resolve().name, path, f"{path} (image folder)", image_folder, True, None)
    if path.suffix == ".npz" and os.path.isfile(path):
        return Located(path.stem, path, f"{path} (.npz file)", npz, False, None)
    if path.suffix == ".npz" or os.sep in name:
        raise UserError(f"{path} is neither an .npz file nor an image folder; correct the path")
    raise unknown_name_error(name, name, SOURCES, "a known dataset")


def _named(source: Source, folder: str) -> Located:
    if folder and not os.path.isdir(os.path.expanduser(folder)):
        raise UserError(f"the data folder {folder} does not exist; correct the path, or leave it out")
    found = find(source, folder)
    if found is None:
        names = ", ".join(name for form in source.forms for name in form.folders)
        looked = ", ".join(str(place) for place in places(source, folder))
        raise UserError(f"{source.name} was not found: no {names} in {looked}; run `fedptr data get {source.name}`")
    path, form = found
    return Located(source.name, path, f"{path} ({form.words})", form.read, form.deep, source)
