"""What the command line does not expect: a sentence that asks for a report, a file with the traceback, exit code 3."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from wait_until import PATIENCE

from fedptr.cli import methods
from fedptr.cli.main import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Lets `fedptr methods` raise an error; reports go to a folder of the test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def let_fail(error: BaseException) -> None:
        def handler(*_: object) -> int:
            raise error

        monkeypatch.setattr(methods, "methods", handler)

    return let_fail


def test_one_sentence_and_a_file(fails, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    fails(KeyError("what\nis this"))
    assert main(["methods"]) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "Traceback" not in said
    match = re.fullmatch(
        r"fedptr: this should not happen \(KeyError: .*\); please report it, with (\S+), which .*\n", said
    )
    assert match, said
    report = Path(match[1])
    assert report.parent == tmp_path
    assert report.stat().st_mode & 0o777 == 0o600
    text = report.read_text()
    assert "Traceback (most recent call last)" in text
    assert "\nfedptr methods\n" in text
    assert "hunter2" not in text


def test_the_traceback_is_shown_where_it_is_asked_for(fails, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDPTR_TRACEBACK", "1")
    fails(KeyError("x"))
    with pytest.raises(KeyError):
        main(["methods"])
    assert not list(tmp_path.iterdir())


def test_where_the_report_cannot_be_written(fails, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    fails(RecursionError())
    assert main(["methods"]) == 3
    assert "could not be written (No such file or directory); please run it again with FEDPTR_TRACEBACK=1" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes")]
)
def test_too_little_memory_is_no_fault_of_ours(error: Exception, fails, capsys: Capture, tmp_path: Path) -> None:
    fails(error)
    assert main(["methods"]) == 2
    assert "there is not enough memory" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_interrupt_is_still_one(fails, capsys: Capture, tmp_path: Path) -> None:
    fails(KeyboardInterrupt())
    assert main(["methods"]) == 130
    assert "stopped at once" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    code = (
        "import sys; from fedptr.cli import main as cli, methods\n"
        "def fail(*_): raise ZeroDivisionError('oh')\n"
        "methods.methods = fail\n"
        "sys.exit(cli.main(['methods']))\n"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 3, done.stderr
    (report,) = tmp_path.iterdir()
    assert str(report) in done.stderr
