"""Trackers get what rounds.jsonl has: every round once, also after a stop and a resume."""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import MLP

from fedptr.cli.main import main
from fedptr.runs import trackers
from fedptr.runs.rounds_file import Record

TINY = [*MLP, "--method", "fedptr", "--set", "local.batch=32", "--set", "machine.threads=1"]
PTR = ["--set", "method.H=1", "--set", "method.R=2", "--set", "method.ipc=1", "--rounds", "5"]
Capture = pytest.CaptureFixture[str]
KINDS = pytest.mark.parametrize("kind", ["tensorboard", "mlflow", "wandb"])
KEY = "local-0123456789abcdef0123456789abcdef01234567"  # nobody's
# What the packages warn of in their own code is not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore")
Points = dict[str, list[tuple[int, float]]]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)


def needs(kind: str) -> None:
    pytest.importorskip(kind, reason=f"fedptr[{kind}] is not installed")


def rounds(out: Path) -> list[Record]:
    return [json.loads(line) for line in (out / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]


def expected(out: Path) -> Points:
    """What rounds.jsonl says, as curves."""
    points: Points = {}
    for record in rounds(out):
        for name, value in trackers.record_scalars(record).items():
            points.setdefault(name, []).append((record["round"], value))
    return points


def read(kind: str, out: Path, label: str = ".") -> Points:
    if kind == "wandb":
        return wandb(out, label)
    return tensorboard(out / "tensorboard" / label) if kind == "tensorboard" else mlflow(out, label)


def tensorboard(folder: Path) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def mlflow(out: Path, label: str) -> Points:
    client, run = mlflow_run(out, label)
    return {
        name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)] for name in run.data.metrics
    }


def wandb(out: Path, label: str = ".") -> Points:
    """What the one file of this run holds; what came twice would be here twice."""
    from wandb.proto.wandb_internal_pb2 import Record as Entry

    number = (out / label / "wandb_run.txt").read_text().strip()
    (file,) = (out / "wandb").glob(f"offline-run-*-{number}/run-{number}.wandb")
    points: Points = {}
    for content in leveldb_records(file.read_bytes()):
        history = Entry.FromString(content).history
        values = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in history.item}
        for name, value in values.items():
            if not name.startswith("_"):
                points.setdefault(name, []).append((history.step.num, value))
    return points


def leveldb_records(content: bytes) -> Iterator[bytes]:
    """The records of a log in the format of LevelDB, after seven bytes of wandb's own."""
    place, parts = 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:  # the rest of a block
            place += 32768 - place % 32768
            continue
        size, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        parts += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # full, or the last part
            yield parts
            parts = b""


def mlflow_run(out: Path, label: str = ".") -> tuple[Any, Any]:
    from mlflow import MlflowClient

    client = MlflowClient((out / "mlflow").resolve().as_uri())
    experiment = client.get_experiment_by_name("fedptr")
    name = out.name if label == "." else label
    (run,) = [run for run in client.search_runs([experiment.experiment_id]) if run.info.run_name == name]
    return client, run


def agree(found: Points, wanted: Points) -> None:
    assert found.keys() == wanted.keys()
    for name, points in wanted.items():
        assert [step for step, _ in found[name]] == [step for step, _ in points], name
        assert [v for _, v in found[name]] == pytest.approx([v for _, v in points], rel=1e-6), name


@KINDS
def test_a_run_is_tracked(kind: str, tmp_path: Path) -> None:
    needs(kind)
    assert main(["run", *TINY, *PTR, f"--{kind}", "--out", "out"]) == 0
    found = read(kind, tmp_path / "out")
    agree(found, expected(tmp_path / "out"))
    assert {"test_accuracy", "train_loss", "seconds/total", "clients/match_after", "clients/beta", "cohort"} <= set(
        found
    )
    assert len(found["test_accuracy"]) == 5
    assert len(found["clients/match_after"]) == 2, "matching begins in round 4"
    assert not any((tmp_path / "out" / other).exists() for other in {"tensorboard", "mlflow", "wandb"} - {kind})


@KINDS
def test_a_continued_run_has_every_round_once(kind: str, tmp_path: Path) -> None:
    needs(kind)
    assert main(["run", *TINY, *PTR, f"--{kind}", "--out", "out"]) == 0
    assert main(["resume", "out", "--rounds", "8"]) == 0
    found = read(kind, tmp_path / "out")
    agree(found, expected(tmp_path / "out"))
    assert [step for step, _ in found["test_accuracy"]] == list(range(1, 9))


@KINDS
def test_a_resumed_run_has_every_round_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after round 3 with a checkpoint of round 2 only: round 3 comes a second time."""
    needs(kind)
    out = tmp_path / "out"
    original = trackers.record_scalars

    def stopping(record: Record) -> dict[str, float]:
        values = original(record)
        if record["round"] == 4:
            raise KeyboardInterrupt  # as a second Ctrl-C
        return values

    monkeypatch.setattr(trackers, "record_scalars", stopping)
    assert main(["run", *TINY, *PTR, "--set", "run.checkpoint_every=2", f"--{kind}", "--out", "out"]) == 130
    assert [step for step, _ in read(kind, out)["test_accuracy"]] == [1, 2, 3]
    monkeypatch.setattr(trackers, "record_scalars", original)
    assert main(["resume", "out"]) == 0
    found, wanted = read(kind, out), expected(out)
    if kind == "mlflow":  # it keeps the clock of the round's first time
        found, wanted = ({k: v for k, v in p.items() if "seconds" not in k} for p in (found, wanted))
    agree(found, wanted)


@KINDS
def test_a_comparison_has_one_store(kind: str, tmp_path: Path) -> None:
    needs(kind)
    argv = ["compare", "--methods", "fedavg,scaffold", *TINY[:4], "--rounds", "2", "--set", "machine.threads=1"]
    assert main([*argv, f"--{kind}", "--out", "out"]) == 0
    out = tmp_path / "out"
    for label in ("fedavg/seed0", "scaffold/seed0"):
        agree(read(kind, out, label), expected(out / label))
    assert not (out / "fedavg/seed0" / kind).exists()
    assert main([*argv, f"--{kind}", "--out", "out", "--force"]) == 0, "its files are known as ours"


def test_mlflow_has_the_plan_and_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("mlflow")
    assert main(["run", *TINY, "--rounds", "1", "--mlflow", "--out", "out"]) == 0
    _, run = mlflow_run(tmp_path / "out")
    assert run.info.status == "FINISHED"
    assert run.data.params["method.name"] == "fedptr"
    assert run.data.params["run.rounds"] == "1"


def test_mlflow_goes_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "elsewhere").as_uri())
    assert main(["run", *TINY, "--rounds", "1", "--mlflow", "--out", "out"]) == 0
    assert list((tmp_path / "elsewhere").rglob("test_accuracy"))
    assert not list((tmp_path / "out/mlflow").iterdir())


def test_wandb_has_the_plan_and_keeps_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """Without WANDB_MODE nothing is sent; the key is in no file and no message, and the folder is ours."""
    needs("wandb")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    argv = ["run", *TINY, "--rounds", "1", "--wandb", "--out", "out"]
    assert main(argv) == 0
    said = "".join(capfd.readouterr())
    contents = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert KEY not in said
    assert KEY.encode() not in contents
    assert b"method.name" in contents
    assert "wandb" not in said.lower()
    assert main([*argv, "--force"]) == 0, "its files are known as ours"


@KINDS
@pytest.mark.parametrize("command", ["run", "compare"])
def test_without_its_package_nothing_runs(
    kind: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    original = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] in ("tensorboard", "mlflow", "wandb") or name == "torch.utils.tensorboard":
            raise ModuleNotFoundError(f"No module named {name!r}")
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert main([command, "--model", "mlp", f"--{kind}", "--out", "out"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"fedptr: --{kind} needs a package that is not here; install it with: ")
    assert err.endswith(f"pip install 'fedptr[{kind}]'\n")
    assert not list(tmp_path.iterdir())


class Broken:
    def __init__(self, *_: object) -> None: ...

    def log(self, step: int, values: dict[str, float]) -> None:
        raise RuntimeError(f"no room\nfor step {step}")


def test_a_tracker_that_fails_does_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(trackers.KINDS, "tensorboard", Broken)
    monkeypatch.setattr(trackers, "check_trackers", lambda names: None)
    assert main(["run", *TINY, "--rounds", "2", "--tensorboard", "--out", "out"]) == 0
    err = capsys.readouterr().err
    assert err.count("tensorboard gets no more of out (no room for step 1); rounds.jsonl has everything") == 1
    assert len(rounds(tmp_path / "out")) == 2


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    """Only a comparison's trackers are looked for above a run; whatever else is called mlflow is not ours."""
    (tmp_path / "mlflow").mkdir()
    assert main(["run", *TINY, "--rounds", "1", "--out", "runs/one"]) == 0
    assert not list((tmp_path / "mlflow").iterdir())


def test_numbers_of_a_record() -> None:
    client = {"id": 1, "distances": [1.0], "steps": 2}
    record = {"round": 1, "loss": float("nan"), "test_loss": None, "cohort": [1, 3], "clients": [client]}
    record |= {"server": {"beta": 0.5, "target": [1.0]}, "dropped": {"3": "simulated"}}
    assert trackers.record_scalars(record) == {"server/beta": 0.5, "dropped": 1, "cohort": 2, "clients/steps": 2}
