"""Every module can be the first to be imported, as Flower, Ray or a user may do it: none needs another before it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from wait_until import PATIENCE

import fedptr

SCRIPT = """
import importlib, json, sys, traceback
import torch

found = {"imported": [], "lacks": {}, "failed": {}}
for name in json.load(sys.stdin):
    for other in [other for other in sys.modules if other.partition(".")[0] == "fedptr"]:
        del sys.modules[other]
    try:
        importlib.import_module(name)
        found["imported"].append(name)
    except ModuleNotFoundError as error:
        found["lacks"][name] = (error.name or "").partition(".")[0]
    except Exception:
        found["failed"][name] = traceback.format_exc()
print(json.dumps(found))
"""
EXTRAS = {
    "flwr",
    "ray",
    "cryptography",
    "starlette",
    "uvicorn",
    "mlflow",
    "tensorboard",
    "wandb",
    "dp_accounting",
    "optuna",
}


def modules() -> list[str]:
    """By their files; what pkgutil does not find, for want of an `__init__.py`, is there too."""
    root = Path(fedptr.__file__).parent
    parts = (path.relative_to(root.parent).with_suffix("").parts for path in root.rglob("*.py"))
    return sorted(".".join(one).removesuffix(".__init__") for one in parts if one[-1] != "__main__")


@pytest.mark.slow
def test_every_module_can_come_first() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps(modules()), capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["failed"] == {}, "\n".join(found["failed"].values())
    assert set(found["lacks"].values()) <= EXTRAS, "an extra may be missing, a part of ours may not"
    assert sorted([*found["imported"], *found["lacks"]]) == modules()
    assert {"fedptr", "fedptr.core.federation", "fedptr.cli.main"} <= set(found["imported"])


def test_packages_are_packages() -> None:
    """A folder of modules without `__init__.py` would work here and be left out of the wheel."""
    root = Path(fedptr.__file__).parent
    assert not [path for path in root.rglob("*.py") if not (path.parent / "__init__.py").exists()]
