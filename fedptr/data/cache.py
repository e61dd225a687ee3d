"""Decoded datasets as .npy files, which processes map into memory and so share one copy.

A cache folder gets its final name by one rename when it is complete, and never changes afterwards, so several processes
may build the same one at once. It can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedptr.data.dataset import PARTS, USER_PARTS, Array, Dataset, array_sha256
from fedptr.messages import print_notice
from fedptr.regular_files import expand_home

FORMAT = 2
LATER = {"target": "class", "label_mean": 0.0, "label_std": 1.0, "vocabulary": 0}  # which earlier caches do not have


def cache_root() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expand_home(os.environ.get("FEDPTR_CACHE") or f"{home}/fedptr")


def fingerprint_files(path: Path, deep: bool) -> str:
    """A checksum of the path and its files' names, sizes and times; a changed source gets another cache."""
    path = path.resolve()
    digest = hashlib.sha256(f"{FORMAT} {path}".encode())
    for parent, subfolders, files in os.walk(path) if path.is_dir() else [(str(path.parent), [], [path.name])]:
        if not deep:
            subfolders.clear()
        subfolders.sort()
        inside = os.path.relpath(parent, path)
        for name in sorted(files):
            stat = os.stat(os.path.join(parent, name))
            digest.update(f"\n{inside!r} {name!r} {stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest()[:20]


def load_or_build(folder: Path, build: Callable[[], Dataset]) -> Dataset:
    """The dataset from its cache folder, or built and cached there."""
    there = open_cache(folder)
    if isinstance(there, Dataset):
        return there
    if there:
        print_notice(f"the cache {folder} is damaged ({there}); building it again")
    dataset = build()
    try:
        _write_cache(folder, dataset)
        there = open_cache(folder)
        return there if isinstance(there, Dataset) else dataset
    except OSError as error:
        print_notice(
            f"cannot write the cache {folder} ({error.strerror or error}); {dataset.name} is kept in memory instead"
        )
        return dataset


def open_cache(folder: Path) -> Dataset | str:
    """Opens a cache and checks it. Returns how it is damaged if it is, and "" if there is none."""
    if not os.path.exists(folder):
        return ""
    try:
        return _open_checked(folder)
    except Exception as damage:  # damaged files can raise anything
        return str(damage) or type(damage).__name__


def _open_checked(folder: Path) -> Dataset:
    """Checks version, sizes, shapes, types, and a checksum of every byte: a flipped bit must not change a result."""
    meta = json.loads((folder / "meta.json").read_text())
    if meta["format"] != FORMAT:
        raise ValueError(f"format {meta['format']}")
    if meta.pop("seal") != _seal_meta(meta):
        raise ValueError("meta.json does not match its checksum")
    parts = [*PARTS, *(part for part in USER_PARTS if part in meta["arrays"])]
    fields: dict[str, Any] = {part: _open_array(folder / f"{part}.npy", meta["arrays"][part]) for part in parts}
    fields |= {key: meta[key] for key in ("name", "source")}
    fields |= {key: tuple(meta[key]) for key in ("mean", "std", "classes")}
    fields |= {key: meta[key] for key in LATER if key in meta}
    return Dataset(**fields, user_names=tuple(meta.get("user_names", ())))


def _open_array(path: Path, expected: dict[str, Any]) -> Any:
    if path.stat().st_size != expected["bytes"]:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes, not {expected['bytes']}")
    if _crc32(path) != expected["crc32"]:
        raise ValueError(f"{path.name} does not match its checksum")
    # "c" keeps writes private to the process, and torch accepts it without the warning it gives for read-only memory.
    array = np.load(path, mmap_mode="c", allow_pickle=False)
    if [*array.shape] != expected["shape"] or array.dtype.str != expected["dtype"]:
        raise ValueError(f"{path.name} is {array.dtype} {array.shape}")
    return array


def _write_cache(folder: Path, dataset: Dataset) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as temporary:
        new = Path(temporary) / "new"
        new.mkdir()
        described = {}
        for part, array in present_parts(dataset).items():
            np.save(new / f"{part}.npy", array)
            described[part] = {
                "shape": list(array.shape),
                "dtype": array.dtype.str,
                "bytes": (new / f"{part}.npy").stat().st_size,
                "crc32": _crc32(new / f"{part}.npy"),
                "sha256": array_sha256(array),
            }
        texts = {key: getattr(dataset, key) for key in ("name", "source", "mean", "std", "classes")}
        later = {key: value for key, usual in LATER.items() if (value := getattr(dataset, key)) != usual}
        named = {"user_names": dataset.user_names} if dataset.user_names else {}
        meta = {"format": FORMAT, **texts, **later, **named, "arrays": described}
        (new / "meta.json").write_text(json.dumps({**meta, "seal": _seal_meta(meta)}, indent=1))
        _move_into_place(new, folder, Path(temporary) / "old")


def _crc32(path: Path) -> int:
    """Fast enough for every start, unlike a cryptographic checksum, and detects any damage of a few bits."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _seal_meta(meta: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _move_into_place(new: Path, folder: Path, old: Path) -> None:
    """Moves the new cache into place, unless another process was faster with the same content."""
    there = open_cache(folder)
    if isinstance(there, Dataset):
        return
    if there:
        folder.rename(old)
    try:
        new.rename(folder)
    except OSError:
        if not isinstance(open_cache(folder), Dataset):
            raise


def cache_matches(folder: Path, dataset: Dataset) -> bool:
    """Whether a cache holds exactly this dataset, comparing every byte."""
    there = open_cache(folder)
    if not isinstance(there, Dataset) or there.user_names != dataset.user_names:
        return False
    kept, read = present_parts(there), present_parts(dataset)
    return kept.keys() == read.keys() and all(array_sha256(kept[part]) == array_sha256(read[part]) for part in read)


def present_parts(dataset: Dataset) -> dict[str, Array]:
    """The arrays of a dataset by name, of users only those it has."""
    found = {part: getattr(dataset, part) for part in (*PARTS, *USER_PARTS)}
    return {part: array for part, array in found.items() if array is not None}
