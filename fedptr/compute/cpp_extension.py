"""C++ of this package, compiled on first use by the user's own compiler and kept in the user's cache."""

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
    """There is no such code here; the reason is a part of a sentence."""


@cache
def load_library(name: str, real: str) -> ctypes.CDLL:
    """The code of fedptr/`name`.cpp for one kind of numbers. Calls do not hold the interpreter."""
    source = Path(__file__).with_name(f"{name}.cpp")
    compiler = os.environ.get("CXX") or next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        raise UnavailableError("there is no C++ compiler")
    command = [*compiler.split(), *FLAGS, f"-DREAL={real}", str(source)]
    made_of = "\0".join([*command[:-1], source.read_text(encoding="utf-8"), describe_processor()])
    built = torch_compile.compile_cache_folder() / f"{name}-{hashlib.sha256(made_of.encode()).hexdigest()[:32]}.so"
    if not built.exists():
        print_notice(f"compiling {name}.cpp for this processor: some seconds, once")
        compile_library(command, built)
    try:
        return ctypes.CDLL(str(built))
    except OSError as error:
        raise UnavailableError(f"{built} cannot be loaded ({error}); remove it to have it compiled again") from error


def compile_library(command: list[str], built: Path) -> None:
    """Under another name first: a half-written file is never loaded, and two processes may do this at once."""
    try:
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as folder:
            made = Path(folder) / "made.so"
            run = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True, timeout=PATIENCE)
            if run.returncode:
                said = next((line for line in run.stderr.splitlines() if "error" in line), "it gives no reason")
                raise UnavailableError(f"the compiler refused it: {said.strip()}")
            os.replace(made, built)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(str(error)) from error


def describe_processor() -> str:
    """What the code is made for: another machine with the same home must not run it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.platform() + platform.processor()
