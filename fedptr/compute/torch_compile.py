"""Functions under torch.compile, checked against their eager versions, which are also the fallback."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedptr.messages import print_notice

TOLERANCE = 1e-2  # float32 rounding differs by 1e-5; wrong code by far more
Function = Callable[..., tuple[Tensor, ...]]


class CompiledFunction:
    """An eager function computed by compiled code; on first use both run and must agree.

    It is compiled only for the shapes of its first arguments, as every further shape would be another compilation.
    """

    def __init__(self, eager: Function, compiling: Callable[..., Function], what: str) -> None:
        self.eager, self.compiling = eager, compiling
        self.fast: Function | None = None  # None unless compilation succeeded
        self.what, self.lock, self.tried = what, threading.Lock(), False

    def __call__(self, *args: Any) -> tuple[Tensor, ...]:
        if not self.tried:
            with self.lock:
                if not self.tried:
                    return self.first(*args)
        return (self.fast or self.eager)(*args)

    def first(self, *args: Any) -> tuple[Tensor, ...]:
        """Computes the first result both ways, which decides how later ones are computed."""
        expected = self.eager(*args)  # an error here is not the compiler's
        print_notice(f"compiling {self.what}: up to two minutes, or seconds if it is in the cache")
        self.tried = True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler's own warnings
                fast = self.compiling(*args)
                got = fast(*args)
            off = max(float((a - b).norm() / (b.norm() + 1e-30)) for a, b in zip(got, expected, strict=True))
            if off <= TOLERANCE:
                self.fast = fast
                return got
            reason = f"its result differs by {off:.0e}"
        except Exception as error:  # no compiler, an unsupported operation …
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        print_notice(f"{self.what} is not compiled ({reason}); continuing without it, which is slower")
        return expected


def trace_operations(f: Callable[..., Tensor], *args: Tensor, constants: bool = False) -> Callable[..., Tensor]:
    """f as the list of tensor operations it performs for arguments of these shapes, without modules and Python code.

    It fails if the operations depend on the values of the arguments, or on other tensors unless these are `constants`.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    operations: Callable[..., Tensor] = make_fx(f, tracing_mode="fake", _allow_non_fake_inputs=constants)(
        *(arg.detach() for arg in args)
    )
    return operations


def compile_function(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """f compiled for fixed shapes; the code releases the interpreter lock, so threads can run it in parallel."""
    fast: Callable[..., Tensor] = torch.compile(f, dynamic=False, options={"cpp_wrapper": True})
    return fast


def compile_cache_folder() -> Path:
    """The folder for compiled code: $TORCHINDUCTOR_CACHE_DIR, which is set to the user's cache if it is not set."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(base) / "fedptr" / "compiled")))
