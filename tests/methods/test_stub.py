"""The stub by which editors and mypy know `fedptr.methods.FedPTR`: `python tests/methods/test_stub.py` writes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fedptr import methods

STUB = Path(methods.__file__).with_name("_classes.pyi")
HEAD = "# Written by tests/methods/test_stub.py from the classes in this folder.\n"


def stub() -> str:
    classes = sorted((method.__module__, method.__name__) for method in methods.built_in_methods())
    return HEAD + "".join(f"from {module} import {name} as {name}\n" for module, name in classes)


def test_the_stub_names_every_method() -> None:
    assert STUB.read_text(encoding="utf-8") == stub(), "run python tests/methods/test_stub.py"


def test_attributes_are_typed(tmp_path: Path) -> None:
    """mypy knows a setting's type, and still lets through a class that it does not know."""
    (tmp_path / "use.py").write_text(
        "from fedptr import methods\n"
        "reveal_type(methods.FedProx(mu=0.1).mu)\n"
        "methods.FedProx(mu='much')\n"
        "methods.NotYetInTheStub()\n"
    )
    command = [sys.executable, "-m", "mypy", "--no-incremental", "--follow-imports=silent", "use.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert 'use.py:2: note: Revealed type is "' in done.stdout
    assert "float" in done.stdout.splitlines()[0]
    assert 'use.py:3: error: Argument "mu"' in done.stdout
    assert "use.py:4" not in done.stdout


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
