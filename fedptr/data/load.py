"""Loads a dataset by its name, or the user's own data by its path. Nothing is downloaded here."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedptr.data import cache
from fedptr.data.dataset import Dataset
from fedptr.data.image_folders import read_image_folder
from fedptr.data.own_data import complete_own_data, read_npz
from fedptr.data.readers import RawDataset, explain_read_errors, read_digits
from fedptr.data.sources import SOURCES, Source, find_dataset, search_folders, verify_dataset
from fedptr.data.tables import TEST, TRAIN, read_csv, read_csv_folder
from fedptr.errors import UserError
from fedptr.regular_files import expand_home
from fedptr.settings import unknown_name_error


@dataclass(frozen=True)
class LocatedDataset:
    """A dataset that was found but not yet read."""

    name: str
    path: Path
    words: str  # where and in which form
    read: Callable[[Path], RawDataset]
    deep: bool
    source: Source | None  # None for own data

    def decode(self) -> Dataset:
        """Reads the files, not the cache. Own data is checked here, published data by `verified`."""
        with explain_read_errors(self.path, "a dataset"):
            raw = self.read(self.path)
        known = self.source or complete_own_data(self.path, raw)
        # Writable memory, because torch warns about any other.
        train_x, train_y, test_x, test_y = (np.require(array, requirements=["C", "W"]) for array in raw[:4])
        words = f"{self.words}, {raw.note}" if raw.note else self.words
        classes = raw.classes or known.classes
        return Dataset(self.name, train_x, train_y, test_x, test_y, known.mean, known.std, classes, words)

    def verified(self) -> Dataset:
        dataset = self.decode()
        if self.source:
            verify_dataset(self.source, dataset)
        return dataset

    def cache_folder(self) -> Path | None:
        """None for digits, which are decoded as fast as a cache would be opened."""
        if self.read is read_digits:
            return None
        with explain_read_errors(self.path, "a dataset"):
            return cache.cache_root() / f"{self.name}-{cache.fingerprint_files(self.path, self.deep)}"


def load_dataset(name: str, folder: str = "") -> Dataset:
    """A named dataset, an `.npz` file or an image folder. Named datasets are searched in `folder` first."""
    found = locate_dataset(name, folder)
    kept = found.cache_folder()
    return cache.load_or_build(kept, found.verified) if kept else found.verified()


def locate_dataset(name: str, folder: str = "") -> LocatedDataset:
    if name == "digits":
        return LocatedDataset(name, Path(), "the digits that come with scikit-learn", read_digits, False, SOURCES[name])
    if name in SOURCES:
        return _locate_named(SOURCES[name], folder)
    path = expand_home(name).absolute()
    if os.path.isfile(path / TRAIN) and os.path.isfile(path / TEST):
        return LocatedDataset(path.resolve().name, path, f"{path} ({TRAIN} and {TEST})", read_csv_folder, True, None)
    if os.path.isdir(path):
        return LocatedDataset(path.resolve().name, path, f"{path} (image folder)", read_image_folder, True, None)
    if path.suffix == ".npz" and os.path.isfile(path):
        return LocatedDataset(path.stem, path, f"{path} (.npz file)", read_npz, False, None)
    if path.suffix == ".csv" and os.path.isfile(path):
        return LocatedDataset(path.stem, path, f"{path} (table)", read_csv, False, None)
    if os.path.exists(path):
        raise UserError(f"{path} is neither an .npz or .csv file nor a folder of images; name one of these")
    if path.suffix in (".npz", ".csv") or os.sep in name:
        raise UserError(f"{path} does not exist; correct the path")
    raise unknown_name_error(name, name, SOURCES, "a known dataset, and no such file or folder exists")


def _locate_named(source: Source, folder: str) -> LocatedDataset:
    if folder and not os.path.isdir(expand_home(folder)):
        raise UserError(f"the data folder {folder} does not exist; correct the path, or leave it out")
    found = find_dataset(source, folder)
    if found is None:
        names = ", ".join(name for form in source.forms for name in form.folders)
        looked = ", ".join(str(place) for place in search_folders(source, folder))
        raise UserError(f"{source.name} was not found: no {names} in {looked}; run `fedptr data get {source.name}`")
    path, form = found
    return LocatedDataset(source.name, path, f"{path} ({form.words})", form.read, form.deep, source)
