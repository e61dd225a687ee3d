"""The C++ compiler, on first use and when the package is installed: setup.py runs this file, so it needs Python alone.

What is compiled on first use is for this processor. What an installation brings must run on others too, so there is one
library for each kind of processor, and the best that a processor can run is loaded:

    built/convnet-float-KIND.so      KIND: see `KINDS`
    built/convnet-float-KIND.json    the compiler in words, the checksums of the library and of what it was made of
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared")
HERE = ("-march=native",)
PATIENCE = 300  # seconds
KINDS: dict[str, tuple[str, ...]] = {  # of x86-64 processors, by the instructions that they must have; the best first
    "avx512": ("avx2", "fma", "avx512f", "avx512vl", "avx512bw", "avx512dq"),
    "avx2": ("avx2", "fma"),
}
X86 = ("x86_64", "amd64")


class UnavailableError(Exception):
    """The code cannot be compiled or used here; the message gives the reason."""


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


def run_compiler(command: list[str], made: Path) -> None:
    try:
        run = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(str(error)) from error
    if run.returncode:
        said = next((line for line in run.stderr.splitlines() if "error" in line), "no reason given")
        raise UnavailableError(f"the compiler failed: {said.strip()}")


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def flags_of_kinds() -> dict[str, tuple[str, ...]]:
    """The kinds of processors that an installation serves, and what the compiler is told for each."""
    if platform.machine().lower() not in X86:
        return {platform.machine().lower(): ()}  # the instructions that all processors of this kind have
    return {kind: tuple(f"-m{name}" for name in needed) for kind, needed in KINDS.items()}


def kinds_here(features: frozenset[str]) -> list[str]:
    """Those of them that a processor with these instructions can run, the best first."""
    kinds = flags_of_kinds()
    return [kind for kind in kinds if kind not in KINDS or features.issuperset(KINDS[kind])]


def source_digest(source: Path, kind: str, real: str) -> str:
    """Of all that decides what the compiler makes, but for the compiler."""
    return digest(*FLAGS, *flags_of_kinds()[kind], real, source.read_text(encoding="utf-8"))


def build_for_installation(source: Path, folder: Path, real: str = "float") -> list[Path]:
    """The libraries for every kind of processor, in this folder; those that are there already are left alone."""
    command = find_compiler()
    compiler = describe_compiler(command)
    folder.mkdir(parents=True, exist_ok=True)

    def build(kind: str) -> Path:
        built = folder / f"{source.stem}-{real}-{kind}.so"
        made_of = {"compiler": compiler, "source": source_digest(source, kind, real)}
        if not made_of.items() <= read_note(built).items():
            made, note = built.with_suffix(f".{os.getpid()}.so"), built.with_suffix(f".{os.getpid()}.json")
            try:
                run_compiler([*command, *FLAGS, *flags_of_kinds()[kind], f"-DREAL={real}", str(source)], made)
                note.write_text(json.dumps({**made_of, "sha256": sha256_of(made)}) + "\n", encoding="utf-8")
                os.replace(made, built)
                os.replace(note, built.with_suffix(".json"))
            finally:
                made.unlink(missing_ok=True)
                note.unlink(missing_ok=True)
        return built

    with ThreadPoolExecutor() as pool:
        return list(pool.map(build, flags_of_kinds()))


def read_note(built: Path) -> dict[str, str]:
    """What is said of a library that is as it was built; nothing if it is not, or if there is none."""
    try:
        told = json.loads(built.with_suffix(".json").read_bytes())
        return dict(told) if told["sha256"] == sha256_of(built) else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
