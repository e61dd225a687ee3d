"""Functions under torch.compile, with their eager selves as oracle and as fallback."""

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

TOLERANCE = 1e-2  # float32 differs by 1e-5; a function that was not understood, by everything
Function = Callable[..., tuple[Tensor, ...]]


class CompiledFunction:
    """An eager function, computed by compiled code; on first use both are computed and must agree.

    It is compiled for the shapes of its first arguments, and for those only: more shapes are more compilations.
    """

    def __init__(self, eager: Function, compiling: Callable[..., Function], what: str) -> None:
        self.eager, self.compiling = eager, compiling
        self.fast: Function | None = None  # where compiling went well
        self.what, self.lock, self.tried = what, threading.Lock(), False

    def __call__(self, *args: Any) -> tuple[Tensor, ...]:
        if not self.tried:
            with self.lock:
                if not self.tried:
                    return self.first(*args)
        return (self.fast or self.eager)(*args)

    def first(self, *args: Any) -> tuple[Tensor, ...]:
        """The first result, which decides how the others are computed."""
        expected = self.eager(*args)  # should this fail, it is not the compiler's fault
        print_notice(f"compiling {self.what}: up to a minute or two, and seconds when it was done before")
        self.tried = True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the compiler, about itself
                fast = self.compiling(*args)
                got = fast(*args)
            off = max(float((a - b).norm() / (b.norm() + 1e-30)) for a, b in zip(got, expected, strict=True))
            if off <= TOLERANCE:
                self.fast = fast
                return got
            reason = f"its result differs by {off:.0e}"
        except Exception as error:  # no compiler, an operation it does not know …
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        print_notice(f"{self.what} is not compiled ({reason}); going on without, which is slower")
        return expected


def trace_operations(f: Callable[..., Tensor], *args: Tensor) -> Callable[..., Tensor]:
    """f as the list of operations it does with arguments like these, without the modules and Python it did them with.

    Should they depend on the numbers in the arguments, it fails.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    operations: Callable[..., Tensor] = make_fx(f, tracing_mode="fake")(*(arg.detach() for arg in args))
    return operations


def compile_function(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """f for fixed shapes; its code does not hold the interpreter, so that threads can run it at the same time."""
    fast: Callable[..., Tensor] = torch.compile(f, dynamic=False, options={"cpp_wrapper": True})
    return fast


def compile_cache_folder() -> Path:
    """Compiled code is kept in the user's own cache, unless another place was chosen."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(base) / "fedptr" / "compiled")))
