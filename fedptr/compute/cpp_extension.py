"""The package's C++ code: as the installation brings it, or compiled on first use and kept in the user's cache.

An installation without a compiler brings none, and none is used that does not suit the source or the processor
(`fedptr.compute.compiler`). In the cache there are:

    convnet-KIND-COMPILER.so      KIND: hash of source, flags and processor; COMPILER: hash of the compiler's version
    convnet-KIND-COMPILER.json    the compiler in words, and the checksum of the library

A library that does not match its checksum is never loaded: a process that maps a file which is cut off may be killed by
the system. It is compiled again. Where there is no compiler (any more), a library of the same KIND serves.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import shutil
import tempfile
import time
from functools import cache
from pathlib import Path

from fedptr.atomic_files import flush_path, write_text
from fedptr.compute import torch_compile
from fedptr.compute.compiler import (
    FLAGS,
    HERE,
    UnavailableError,
    describe_compiler,
    digest,
    find_compiler,
    kinds_here,
    read_note,
    run_compiler,
    sha256_of,
    source_digest,
)
from fedptr.messages import print_notice

INSTALLED = Path(__file__).with_name("built")
SCRATCH = "building-"  # start of temporary folders
BEFORE = "tmp"  # as they started in earlier versions
DAY = 24 * 3600  # seconds after which a temporary folder belongs to nobody: a compilation ends after PATIENCE


class Library(ctypes.CDLL):
    """Compiled code. Calls release the interpreter lock."""

    identity = ""  # what it was made of, and by which compiler: the same for the same bits


@cache
def load_library(name: str, real: str) -> Library:
    """The compiled `name`.cpp for numbers of type `real`."""
    source = Path(__file__).with_name(f"{name}.cpp")
    return load_installed(source, real) or load_compiled(source, real)


def load_installed(source: Path, real: str) -> Library | None:
    """What the installation brought, if it is whole, was made of this source, and runs on this processor."""
    for kind in kinds_here(processor_features()):
        built = INSTALLED / f"{source.stem}-{real}-{kind}.so"
        told = read_note(built)
        if told.get("source") == source_digest(source, kind, real):
            with contextlib.suppress(OSError):  # it was built for another system
                library = Library(str(built))
                library.identity = f"{told['source']}-{kind} by {told.get('compiler')}"
                return library
    return None


def load_compiled(source: Path, real: str) -> Library:
    """From the cache, or made now."""
    name, folder = source.stem, torch_compile.compile_cache_folder()
    flags = [*FLAGS, *HERE, f"-DREAL={real}"]
    kind = f"{name}-{digest(*flags, source.read_text(encoding='utf-8'), describe_processor())}"
    remove_old_scratch(folder)
    try:
        command = find_compiler()
        compiler = describe_compiler(command)
        built = folder / f"{kind}-{digest(compiler)}.so"
        if read_compiler(built) is None:
            print_notice(f"compiling {name}.cpp for this processor: a few seconds, once")
            compile_library([*command, *flags, str(source)], built, compiler)
    except UnavailableError as error:
        found = find_built(folder, kind)
        if found is None:
            raise
        built, compiler = found
        print_notice(f"using {name}.cpp as it was compiled before, by {compiler}: {error}")
    try:
        library = Library(str(built))
    except OSError as error:
        raise UnavailableError(f"{built} cannot be loaded ({error}); delete it to compile it again") from error
    library.identity = f"{built.stem.removeprefix(f'{name}-')} by {compiler}"
    return library


def compile_library(command: list[str], built: Path, compiler: str) -> None:
    """Compiles under a temporary name, so a partial file is never loaded and several processes may compile at once."""
    try:
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent, prefix=SCRATCH) as folder:
            made = Path(folder) / "made.so"
            run_compiler(command, made)
            told = {"compiler": compiler, "sha256": sha256_of(made)}
            flush_path(made)
            os.replace(made, built)
            write_text(note_of(built), json.dumps(told) + "\n")  # flushes the folder, too
    except OSError as error:
        raise UnavailableError(str(error)) from error


def note_of(built: Path) -> Path:
    return built.with_suffix(".json")


def read_compiler(built: Path) -> str | None:
    """The compiler of a library that is as it was built; None if it is not, or if there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        told = json.loads(note_of(built).read_bytes())
        compiler = str(told["compiler"])
        if sha256_of(built) == told["sha256"] and built.stem.endswith(f"-{digest(compiler)}"):
            return compiler
    return None


def find_built(folder: Path, kind: str) -> tuple[Path, str] | None:
    """The newest sound library of this kind, and its compiler."""
    there = []
    for path in folder.glob(f"{kind}-*.so"):
        with contextlib.suppress(OSError):  # it was removed meanwhile
            there.append((path.stat().st_mtime, path))
    for _, path in sorted(there, reverse=True):
        if (compiler := read_compiler(path)) is not None:
            return path, compiler
    return None


def remove_old_scratch(folder: Path) -> None:
    """Removes the temporary folders of compilations that were killed; a compilation that runs is younger than a day."""
    for path in [*folder.glob(f"{SCRATCH}*"), *folder.glob(f"{BEFORE}*")]:
        with contextlib.suppress(OSError):
            ours = path.name.startswith(SCRATCH) or {inside.name for inside in path.iterdir()} <= {"made.so"}
            if ours and not path.is_symlink() and path.stat().st_mtime < time.time() - DAY:
                shutil.rmtree(path, ignore_errors=True)


def describe_processor() -> str:
    """Identifies the processor, as other machines that share this home folder must not load the code."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.platform() + platform.processor()


def processor_features() -> frozenset[str]:
    """The instructions that this processor has and the system lets us use, as Linux calls them."""
    return frozenset(describe_processor().partition(":")[2].split())
