"""The way from the shell to the first round loads nothing that this round does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HEAVY = {
    "sklearn",
    "scipy",
    "matplotlib",
    "plotly",
    "pandas",
    "ray",
    "flwr",
    "rich",
    "torch._dynamo",
    "torch._inductor",
}
RUN = """
import gc, json, sys
from fedptr.cli.main import main
code = main(["run", "--dataset", "digits", "--method", "fedavg", "--rounds", "1", "--out", sys.argv[1]])
print(json.dumps([code, gc.isenabled(), sorted(sys.modules)]))
"""


def test_the_first_round_needs_torch_and_numpy_only(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, str(tmp_path / "run")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    code, collects, loaded = json.loads(printed.splitlines()[-1])
    assert code == 0
    assert collects
    assert {"torch", "numpy"} <= set(loaded)
    assert not HEAVY & set(loaded)
    methods = {name for name in loaded if name.startswith("fedptr.methods.") and name.count(".") == 2}
    assert "fedptr.methods.fedavg" in methods
    assert "fedptr.methods.scaffold" not in methods
