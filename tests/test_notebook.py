"""examples/quickstart.ipynb runs from its first cell to its last, and learns."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from wait_until import PATIENCE

import fedptr

NOTEBOOK = Path(__file__).parent.parent / "examples" / "quickstart.ipynb"
EXECUTE = """
import nbclient, nbformat
book = nbformat.read("book.ipynb", as_version=4)
nbclient.NotebookClient(book, kernel_name="python3").execute()
nbformat.write(book, "done.ipynb")
"""


def read_cells(path: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


def test_it_is_kept_without_outputs() -> None:
    """Outputs would be those of an earlier version."""
    assert not [cell for cell in read_cells(NOTEBOOK) if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.slow
def test_it_runs(tmp_path: Path) -> None:
    """In a process of its own, since Jupyter's packages warn of their own sockets."""
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'fedptr[test]'")
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    if not hasattr(fedptr, "load_model"):
        book["cells"] = [cell for cell in book["cells"] if "model" not in cell["metadata"].get("tags", [])]
    (tmp_path / "book.ipynb").write_text(json.dumps(book), encoding="utf-8")
    env = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"} | {"IPYTHONDIR": str(tmp_path)}
    command = [sys.executable, "-c", EXECUTE]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    outputs = [output for cell in read_cells(tmp_path / "done.ipynb") for output in cell.get("outputs", [])]
    said = "".join("".join(output.get("text", "")) for output in outputs)
    accuracy = {name: float(value) for name, value in re.findall(r"^(\S+) +([\d.]+)% after 20", said, re.MULTILINE)}
    assert list(accuracy) == ["fedavg", "fedagm", "fedptr-s"], said
    assert min(accuracy.values()) > 70  # chance is 10
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
