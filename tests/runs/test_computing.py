"""How a run is computed is part of it: a resume that would round differently is refused, or accepted and told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from same_bits import outcome

from fedptr import atomic_files
from fedptr.cli.main import main
from fedptr.compute import compiler, cpp_extension
from fedptr.compute.cpp_extension import load_library
from fedptr.compute.describe_computing import describe_computing, name_backend
from fedptr.jobs.run_queue import run_plans
from fedptr.runs.checkpoint import CheckpointStore
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.plan import load_plan
from fedptr.runs.rounds_file import RoundsFile
from fedptr.runs.summary import read_finished

Capture = pytest.CaptureFixture[str]
WORLD = ["--preset", "paper", "--width", "8", "--batch", "32", "--subset", "200", "--clients", "3", "--threads", "1"]
MLP = [*WORLD, "--method", "fedavg", "--model", "mlp"]
CONVNET = [*WORLD, "--method", "fedavg", "--model", "convnet", "--set", "model.depth=2", "--compile", "on"]


def run_until(folder: Path, stop: int, *options: str) -> Path:
    """A run of six rounds that is killed in the round after `stop`."""
    append = RoundsFile.append

    def killed(self: RoundsFile, record: dict[str, Any]) -> None:
        if record["round"] > stop:
            raise KeyboardInterrupt
        append(self, record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoundsFile, "append", killed)
        code = main(["run", *(options or MLP), "--rounds", "6", "--out", str(folder)])
    assert code == (130 if stop < 6 else 0)
    return folder


def resume(folder: Path, capsys: Capture, *options: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["resume", str(folder), *options]) == code
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


def pretend(folder: Path, **computed: str) -> None:
    """Checkpoints that tell something else of what computed them; nothing where this is empty."""
    for path in (folder / "checkpoint").glob("server-*"):
        tensors, header = atomic_files.read_tensors(path)
        told = {**json.loads(header.pop("computed")), **computed}
        atomic_files.write_tensors(path, tensors, {**header, "computed": json.dumps(told)} if computed else header)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"torch": "1.9"}, f"torch was 1.9 and is {torch.__version__}"),
        ({"processor": "Z80"}, "processor was Z80 and is"),
        ({"block size": "7"}, "block size was 7 and is"),
        ({"backend": "winograd", "block size": "7"}, "backend was winograd and is blocks; undo that"),
    ],
)
def test_another_way_is_refused_and_changes_nothing(
    changed: dict[str, str], words: str, tmp_path: Path, capsys: Capture
) -> None:
    out = run_until(tmp_path / "run", 4)
    pretend(out, **changed)
    before = contents(out)
    said = resume(out, capsys, code=2)
    assert words in said
    assert f"or accept it with `fedptr resume {out} --recompute`" in said
    assert said.count("\n") == 1
    assert contents(out) == before


def test_what_was_accepted_is_in_the_summary_even_after_more_kills(tmp_path: Path, capsys: Capture) -> None:
    whole = run_until(tmp_path / "whole", 6)
    assert "recomputed" not in read_finished(whole)[0]
    out = run_until(tmp_path / "run", 4)
    pretend(out, torch="1.9")
    said = resume(out, capsys, "--recompute", "--rounds", "5")
    assert f"is computed another way from round 5 on: torch was 1.9 and is {torch.__version__}" in said
    changes = [{"round": 4, "from": {"torch": "1.9"}, "to": {"torch": torch.__version__}}]
    assert read_finished(out)[0]["recomputed"] == changes
    resume(out, capsys, "--rounds", "6")
    assert read_finished(out)[0]["recomputed"] == changes, "from now on it is computed this way"
    assert outcome(out) == outcome(whole)


def test_checkpoints_of_earlier_versions_do_not_tell(tmp_path: Path, capsys: Capture) -> None:
    out = run_until(tmp_path / "run", 4)
    pretend(out)
    resume(out, capsys)
    assert outcome(out) == outcome(run_until(tmp_path / "whole", 6))
    (last,) = CheckpointStore(out / "checkpoint").rounds()
    header = CheckpointStore(out / "checkpoint").load(last)[1]
    assert json.loads(header["computed"])["backend"] == read_finished(out)[0]["computed"] == "blocks"


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_queue_says_the_sentence_and_can_accept(jobs: int, tmp_path: Path) -> None:
    out = run_until(tmp_path / "run", 4)
    pretend(out, torch="1.9")
    plans = {out: load_plan(out)}
    board = run_plans(plans, jobs, lambda board: None)
    assert f"torch was 1.9 and is {torch.__version__}; undo that, or accept it" in board.failed[out][:300]
    board = run_plans(plans, jobs, lambda board: None, recompute=True)
    assert not board.failed
    assert board.done[out][0]["recomputed"][0]["round"] == 4


def test_a_comparison_can_accept(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "compared"
    assert main(["compare", *WORLD, "--model", "mlp", "--methods", "fedavg", "--rounds", "2", "--out", str(out)]) == 0
    pretend(out / "fedavg" / "seed0", torch="1.9")
    said = resume(out, capsys, "--rounds", "3", code=2)
    assert f"`fedptr resume {out / 'fedavg' / 'seed0'} --recompute`" in said
    resume(out, capsys, "--recompute")
    assert json.loads((out / "compare.json").read_text())["fedavg"][0]["recomputed"][0]["round"] == 2


@pytest.fixture
def compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A cache of its own, and nothing loaded."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(cpp_extension, "INSTALLED", tmp_path / "nothing")
    load_library.cache_clear()
    yield tmp_path / "compiled"
    load_library.cache_clear()


@pytest.mark.slow
def test_a_run_of_convnet_cpp_whose_compiler_is_gone_or_another(
    compiled_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    whole = run_until(tmp_path / "whole", 6, *CONVNET)
    assert read_finished(whole)[0]["computed"] == "winograd"
    out = run_until(tmp_path / "run", 3, *CONVNET)
    load_library.cache_clear()
    monkeypatch.setenv("CXX", "c++ -O1")
    said = resume(out, capsys, code=2)
    assert "convnet.cpp was" in said
    assert "-O1; undo that" in said
    load_library.cache_clear()
    for path in compiled_once.glob("*.so"):
        if "-O1" in path.with_suffix(".json").read_text():
            path.unlink()
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(compiler, "COMPILERS", ())
    (library,) = compiled_once.glob("*.so")
    kept = library.read_bytes()
    library.unlink()
    assert "backend was winograd and is torch.compile" in resume(out, capsys, code=2)
    load_library.cache_clear()
    library.write_bytes(kept)
    assert "using convnet.cpp as it was compiled before" in resume(out, capsys)
    assert outcome(out) == outcome(whole), "it is the same code"


def test_the_summary_tells_what_really_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile is known to have failed only when it was tried."""

    def fail(f: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr("fedptr.compute.blocks.compile_function", fail)
    monkeypatch.setattr("fedptr.compute.blocks.PROGRAMS", {})
    out = run_until(tmp_path / "run", 6, *MLP, "--compile", "on")
    assert read_finished(out)[0]["computed"] == "blocks"
    header = CheckpointStore(out / "checkpoint").load(6)[1]
    assert json.loads(header["computed"])["compiled gradient"] == "no"


def test_a_resume_notices_that_torch_compile_fails_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("fedptr.compute.blocks.PROGRAMS", {})
    monkeypatch.setattr("fedptr.compute.blocks.compile_function", lambda f: f)  # it succeeds
    out = run_until(tmp_path / "run", 3, *MLP, "--compile", "on")
    assert read_lines(out) == 3

    def fail(f: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr("fedptr.compute.blocks.PROGRAMS", {})
    monkeypatch.setattr("fedptr.compute.blocks.compile_function", fail)
    said = resume(out, capsys, code=2)
    assert "compiled gradient was yes and is no" in said
    assert read_lines(out) == 3, "the round was not written down"
    monkeypatch.setattr("fedptr.compute.blocks.PROGRAMS", {})
    resume(out, capsys, "--recompute")
    assert read_finished(out)[0]["recomputed"][0]["round"] == 3


def read_lines(folder: Path) -> int:
    return len((folder / "rounds.jsonl").read_text().splitlines())


def test_threads_matter_where_they_share_a_sum(tmp_path: Path) -> None:
    out = run_until(tmp_path / "run", 6)
    blocks = prepare_experiment(load_plan(out)).task
    assert "threads" not in describe_computing(blocks)
    assert name_backend(blocks) == "blocks"
