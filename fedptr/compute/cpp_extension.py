"""The package's C++ code, compiled on first use by the user's compiler and kept in the user's cache."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from fedptr.compute import torch_compile
from fedptr.messages import print_notice

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared")
PATIENCE = 300  # seconds


class UnavailableError(Exception):
    """The code cannot be compiled or used here; the message gives the reason."""


@cache
def load_library(name: str, real: str) -> ctypes.CDLL:
    """The compiled `name`.cpp for numbers of type `real`. Calls release the interpreter lock."""
    source = Path(__file__).with_name(f"{name}.cpp")
    compiler = os.environ.get("CXX") or next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        raise UnavailableError("there is no C++ compiler")
    command = [*compiler.split(), *FLAGS, f"-DREAL={real}", str(source)]
    made_of = "\0".join([*command[:-1], source.read_text(encoding="utf-8"), describe_processor()])
    built = torch_compile.compile_cache_folder() / f"{name}-{hashlib.sha256(made_of.encode()).hexdigest()[:32]}.so"
    if not built.exists():
        print_notice(f"compiling {name}.cpp for this processor: a few seconds, once")
        compile_library(command, built)
    try:
        return ctypes.CDLL(str(built))
    except OSError as error:
        raise UnavailableError(f"{built} cannot be loaded ({error}); delete it to compile it again") from error


def compile_library(command: list[str], built: Path) -> None:
    """Compiles under a temporary name, so a partial file is never loaded and several processes may compile at once."""
    try:
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as folder:
            made = Path(folder) / "made.so"
            run = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True, timeout=PATIENCE)
            if run.returncode:
                said = next((line for line in run.stderr.splitlines() if "error" in line), "no reason given")
                raise UnavailableError(f"the compiler failed: {said.strip()}")
            os.replace(made, built)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(str(error)) from error


def describe_processor() -> str:
    """Identifies the processor, as other machines that share this home folder must not load the code."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.platform() + platform.processor()
