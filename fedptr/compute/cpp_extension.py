"""The package's C++ code, compiled on first use by the user's compiler and kept in the user's cache.

    convnet-KIND-COMPILER.so      KIND: hash of source, flags and processor; COMPILER: hash of the compiler's version
    convnet-KIND-COMPILER.json    the compiler in words, and the checksum of the library

A library that does not match its checksum is never loaded: a process that maps a file which is cut off may be killed by
the system. It is compiled again. Where there is no compiler (any more), a library of the same KIND serves.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

from fedptr.atomic_files import flush_path, write_text
from fedptr.compute import torch_compile
from fedptr.messages import print_notice

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared")
PATIENCE = 300  # seconds
SCRATCH = "building-"  # start of temporary folders
BEFORE = "tmp"  # as they started in earlier versions
DAY = 24 * 3600  # seconds after which a temporary folder belongs to nobody: a compilation ends after PATIENCE


class UnavailableError(Exception):
    """The code cannot be compiled or used here; the message gives the reason."""


class Library(ctypes.CDLL):
    """Compiled code. Calls release the interpreter lock."""

    identity = ""  # what it was made of, and by which compiler: the same for the same bits


@cache
def load_library(name: str, real: str) -> Library:
    """The compiled `name`.cpp for numbers of type `real`."""
    source, folder = Path(__file__).with_name(f"{name}.cpp"), torch_compile.compile_cache_folder()
    flags = [*FLAGS, f"-DREAL={real}"]
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


def find_compiler() -> list[str]:
    """The command that starts the user's compiler."""
    command = (os.environ.get("CXX") or next(filter(shutil.which, COMPILERS), "")).split()
    if not command:
        raise UnavailableError("there is no C++ compiler")
    return command


@cache
def ask_compiler(command: tuple[str, ...]) -> str:
    """The first line of what a compiler says of its version, without the name it was called by."""
    try:
        run = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, errors="replace", timeout=PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(str(error)) from error
    said = next(iter(run.stdout.splitlines()), "").strip()
    if run.returncode or not said:
        raise UnavailableError(f"the compiler failed: {command[0]} does not tell its version")
    return said.removeprefix(Path(command[0]).name).strip()


def describe_compiler(command: list[str]) -> str:
    """The compiler's version, and the options it is always given; its name and place do not matter."""
    return " ".join([ask_compiler(tuple(command)), *command[1:]])


def compile_library(command: list[str], built: Path, compiler: str) -> None:
    """Compiles under a temporary name, so a partial file is never loaded and several processes may compile at once."""
    try:
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent, prefix=SCRATCH) as folder:
            made = Path(folder) / "made.so"
            run = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True, timeout=PATIENCE)
            if run.returncode:
                said = next((line for line in run.stderr.splitlines() if "error" in line), "no reason given")
                raise UnavailableError(f"the compiler failed: {said.strip()}")
            told = {"compiler": compiler, "sha256": hashlib.sha256(made.read_bytes()).hexdigest()}
            flush_path(made)
            os.replace(made, built)
            write_text(note_of(built), json.dumps(told) + "\n")  # flushes the folder, too
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(str(error)) from error


def note_of(built: Path) -> Path:
    return built.with_suffix(".json")


def read_compiler(built: Path) -> str | None:
    """The compiler of a library that is as it was built; None if it is not, or if there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        told = json.loads(note_of(built).read_bytes())
        compiler = str(told["compiler"])
        whole = hashlib.sha256(built.read_bytes()).hexdigest() == told["sha256"]
        if whole and built.stem.endswith(f"-{digest(compiler)}"):
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


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def describe_processor() -> str:
    """Identifies the processor, as other machines that share this home folder must not load the code."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.platform() + platform.processor()
