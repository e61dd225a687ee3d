"""Official archives: download with a verified checksum, and unpacking that cannot write outside its folder."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import tarfile
import urllib.request
import zipfile
from pathlib import Path, PurePosixPath

from fedptr.data.readers import explain_read_errors
from fedptr.data.sources import Archive
from fedptr.errors import UserError
from fedptr.messages import progress_bar

BLOCK = 1 << 20


def obtain_archive(archive: Archive, root: Path, into: Path) -> Path:
    """The archive, its checksum verified: from the data folder if it is there, else downloaded into `into`."""
    path = root / archive.file
    if not path.is_file():
        path = into / archive.file
        download_file(archive.url, path)
    found = md5_of_file(path)
    if found != archive.md5:
        raise UserError(f"{path.name} has md5 {found}, not {archive.md5}; delete it and download it again")
    return path


def download_file(url: str, path: Path) -> None:
    """Downloads `url`; every failure becomes a UserError."""
    try:
        with urllib.request.urlopen(url, timeout=60) as reply, path.open("wb") as file:
            length = reply.headers.get("Content-Length")
            with progress_bar(path.name, int(length) if length else None) as advance:
                while block := reply.read(BLOCK):
                    file.write(block)
                    advance(len(block))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UserError(f"{url} could not be downloaded ({error}); check the network and try again") from error


def md5_of_file(path: Path) -> str:
    """The published checksums are md5: they detect accidents, and no better ones are published."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def unpack_archive(path: Path, into: Path) -> None:
    """Unpacks a tar, zip or gz file; refuses the archive if any member would be written outside `into`."""
    with explain_read_errors(path, "a safe archive"):
        if path.suffix in (".zip", ".whl"):
            _unzip(path, into)
        elif path.name.endswith((".tar.gz", ".tgz")):
            _untar(path, into)
        else:
            shutil.copy(path, into)  # Fashion-MNIST is read from its gz files


def _untar(path: Path, into: Path) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise UserError("this Python cannot unpack archives safely; update it to 3.11.4 or later")
    with tarfile.open(path) as file:
        for member in file:
            # Stricter than the filter, which strips a leading slash and allows links that stay inside.
            if member.name.startswith("/") or not (member.isfile() or member.isdir()):
                raise ValueError(f"{member.name!r} is not a plain file inside the folder")
            file.extract(member, into, filter="data")


def _unzip(path: Path, into: Path) -> None:
    with zipfile.ZipFile(path) as file:
        names = file.namelist()
        for name in names:
            pure = PurePosixPath(name.replace("\\", "/"))
            if pure.is_absolute() or ".." in pure.parts:
                raise ValueError(f"{name!r} is not a plain file inside the folder")
        with progress_bar(f"unpacking {path.name}", len(names)) as advance:
            for name in names:
                file.extract(name, into)
                advance(1)
