"""The stub by which editors and mypy know `fedptr.methods.FedPTR` names every method."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from methods_stub import STUB, make_stub
from wait_until import PATIENCE


def test_the_stub_names_every_method() -> None:
    assert STUB.read_text(encoding="utf-8") == make_stub(), "run python tests/helpers/methods_stub.py"


@pytest.mark.slow
def test_attributes_are_typed(tmp_path: Path) -> None:
    """mypy knows a setting's type, and still lets through a class that it does not know."""
    (tmp_path / "use.py").write_text(
        "from fedptr import methods\n"
        "reveal_type(methods.FedProx(mu=0.1).mu)\n"
        "methods.FedProx(mu='much')\n"
        "methods.NotYetInTheStub()\n"
    )
    command = [sys.executable, "-m", "mypy", "--no-incremental", "--follow-imports=silent", "use.py"]
    here = {**os.environ, "MYPYPATH": str(STUB.parents[2])}  # mypy does not see what is installed to be edited
    done = subprocess.run(command, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=PATIENCE)
    assert 'use.py:2: note: Revealed type is "' in done.stdout
    assert "float" in done.stdout.splitlines()[0]
    assert 'use.py:3: error: Argument "mu"' in done.stdout
    assert "use.py:4" not in done.stdout
