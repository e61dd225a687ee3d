"""Every module can be the first to be imported, as Flower, Ray or a user may do it: none needs another before it."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import importlib, pkgutil, sys, traceback
import torch
import fedptr

names = ["fedptr", *(info.name for info in pkgutil.walk_packages(fedptr.__path__, "fedptr."))]
for name in names:
    if name.endswith("__main__"):
        continue
    for other in [other for other in sys.modules if other.partition(".")[0] == "fedptr"]:
        del sys.modules[other]
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "fedptr":
            raise  # an extra may be missing, a part of ours may not
    except ImportError:
        print(name)
        traceback.print_exc()
print(len(names))
"""


def test_every_module_can_come_first() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100, done.stdout + done.stderr
