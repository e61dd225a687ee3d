"""Loads a dataset by its name, or the user's own data by its path. Nothing is downloaded here."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedptr.data import cache
from fedptr.data.dataset import Dataset
from fedptr.data.image_folders import read_image_folder
from fedptr.data.own_data import complete_own_data, read_npz
from fedptr.data.readers import RawDataset, explain_read_errors, read_digits
from fedptr.data.sources import SOURCES, Source, find_dataset, search_folders, verify_dataset
from fedptr.data.tables import SUFFIXES, read_table, read_table_folder, table_parts
from fedptr.data.targets import TARGETS, Task, label_moments
from fedptr.data.tokens import TextPlan
from fedptr.errors import UserError
from fedptr.regular_files import expand_home
from fedptr.settings import unknown_name_error

DEFAULT_TEXT = TextPlan()


@dataclass(frozen=True)
class LocatedDataset:
    """A dataset that was found but not yet read."""

    name: str
    path: Path
    words: str  # where and in which form
    read: Callable[[Path], RawDataset]
    deep: bool
    source: Source | None  # None for own data
    task: Task = "auto"
    text: TextPlan | None = None  # of a table, which may be one of texts

    def decode(self) -> Dataset:
        """Reads the files, not the cache. Own data is checked here, published data by `verified`."""
        with explain_read_errors(self.path, "a dataset"):
            raw = self.read(self.path)
        known = self.source or complete_own_data(self.path, raw)
        # Writable memory, because torch warns about any other.
        train_x, train_y, test_x, test_y = (np.require(array, requirements=["C", "W"]) for array in raw[:4])
        words = f"{self.words}, {raw.note}" if raw.note else self.words
        classes = raw.classes or known.classes
        target: Any = raw.target
        if self.task != "auto" and target != TARGETS[self.task]:
            raise UserError(f"{self.name} has classes, so data.task cannot be {self.task}; leave it out")
        dataset = Dataset(self.name, train_x, train_y, test_x, test_y, known.mean, known.std, classes, words)
        users = {"users": raw.users, "user_names": raw.user_names, "test_users": raw.test_users}
        dataset = replace(dataset, vocabulary=raw.vocabulary, **users)  # type: ignore[arg-type]
        if target == "class":
            return dataset
        mean, std = label_moments(train_y) if target == "number" else (0.0, 1.0)
        return replace(dataset, target=target, label_mean=mean, label_std=std)

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
            found = f"{self.name}-{cache.fingerprint_files(self.path, self.deep)}"
        text = self.text or DEFAULT_TEXT
        task = "" if self.task == "auto" else f"-{self.task}"
        more = "" if text == DEFAULT_TEXT else f"-{text.vocabulary}-{text.length}"
        return cache.cache_root() / f"{found}{task}{more}"


def load_dataset(name: str, folder: str = "", task: Task = "auto", text: TextPlan = DEFAULT_TEXT) -> Dataset:
    """A named dataset, an `.npz`, `.csv` or `.parquet` file, or a folder. Named ones are searched in `folder` first.

    `task`: what the labels of own data are, if not what they look like. `text`: how texts become numbers.
    """
    found = locate_dataset(name, folder, task, text)
    kept = found.cache_folder()
    return cache.load_or_build(kept, found.verified) if kept else found.verified()


def locate_dataset(name: str, folder: str = "", task: Task = "auto", text: TextPlan = DEFAULT_TEXT) -> LocatedDataset:
    return replace(_locate(name, folder, task, text), task=task)


def _locate(name: str, folder: str, task: Task, text: TextPlan) -> LocatedDataset:
    if name == "digits":
        return LocatedDataset(name, Path(), "the digits that come with scikit-learn", read_digits, False, SOURCES[name])
    if name in SOURCES:
        return _locate_named(SOURCES[name], folder)
    path = expand_home(name).absolute()
    if parts := table_parts(path):
        words, read = f"{path} ({' and '.join(parts)})", functools.partial(read_table_folder, text=text, task=task)
        return LocatedDataset(path.resolve().name, path, words, read, True, None, text=text)
    if os.path.isdir(path):
        return LocatedDataset(path.resolve().name, path, f"{path} (image folder)", read_image_folder, True, None)
    if path.suffix == ".npz" and os.path.isfile(path):
        read = functools.partial(read_npz, task=task)
        return LocatedDataset(path.stem, path, f"{path} (.npz file)", read, False, None)
    if path.suffix in SUFFIXES and os.path.isfile(path):
        read = functools.partial(read_table, text=text, task=task)
        return LocatedDataset(path.stem, path, f"{path} (table)", read, False, None, text=text)
    if os.path.exists(path):
        raise UserError(f"{path} is neither an .npz, .csv or .parquet file nor a folder of images; name one of these")
    if path.suffix in (".npz", *SUFFIXES) or os.sep in name:
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
