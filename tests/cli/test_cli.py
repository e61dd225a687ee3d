"""The command line: what it prints and where, exit codes, and one sentence for every mistake."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import unicodedata
from dataclasses import fields
from pathlib import Path

import pytest
from tiny_runs import MLP
from wait_until import PATIENCE

from fedptr.cli.main import main
from fedptr.errors import ClientError
from fedptr.methods import all_methods

TINY = [*MLP, "--rounds", "2", "--set", "local.batch=32", "--set", "machine.threads=1"]
Capture = pytest.CaptureFixture[str]


def refused(capsys: Capture, *argv: str, code: int = 2) -> str:
    """Runs a command that must fail, and returns its one sentence."""
    assert main(list(argv)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fedptr: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err.removeprefix("fedptr: ").rstrip("\n")


def fedptr(*argv: str, **how: object) -> subprocess.Popen[str]:
    """The real thing, as a process of its own."""
    command = [sys.executable, "-m", "fedptr", *argv]
    return subprocess.Popen(command, text=True, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how})  # type: ignore[call-overload, no-any-return]


# Help


def test_help_and_mistakes_in_options_do_not_import_torch() -> None:
    script = """
import sys
from fedptr.cli.main import main
for argv in ([], ["run"], ["compare"], ["partition"], ["methods"], ["data"], ["data", "get"], [None]):
    try:
        main([*argv, "--help"] if argv != [None] else ["--version"])
    except SystemExit as end:
        assert not end.code, argv
assert main(["run", "--rouns", "3"]) == 2
heavy = {"torch", "numpy", "matplotlib", "rich", "sklearn"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for words in ("--participation F", "--set SECTION.KEY=VALUE", "--methods M,M,…", "fedptr 0.", "--min-size S"):
        assert words in done.stdout


def test_idle_threads_do_not_spin(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(os, "environ", {})
    main(["nonsense"])
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    os.environ["OMP_WAIT_POLICY"] = "active"
    main(["nonsense"])
    assert os.environ["OMP_WAIT_POLICY"] == "active", "the user's choice stands"


def listing(capsys: Capture, monkeypatch: pytest.MonkeyPatch, *argv: str) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["methods", *argv]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert not re.search(r"\w…", out), "something is cut off"
    assert max(sum(not unicodedata.combining(c) for c in line) for line in out.splitlines()) <= 80
    return out


def test_methods_are_listed_with_idea_cost_and_citation(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = listing(capsys, monkeypatch).splitlines()
    text = " ".join(" ".join(lines).split())
    assert [line.split()[0] for line in lines if line[:1] not in (" ", "", "`", "D")] == list(all_methods())
    for method in all_methods().values():
        assert method.idea in text
        assert method.cite in text
        assert " · ".join(f"{name} {value}" for name, value in method.cost_in_words().items()) in text
    assert len(lines) <= 5 * len(all_methods()) + 4


@pytest.mark.parametrize("name", all_methods())
def test_a_method_is_described_with_every_setting(name: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    out = listing(capsys, monkeypatch, name)
    rows = {line.split()[0]: line for line in out.splitlines() if re.match(r"  \S", line)}  # not what is continued
    text = " ".join(out.split())
    method = all_methods()[name]
    assert method.cite in text
    for f in fields(method):
        assert str(f.default).lower() in rows[f.name].lower()
        assert f.metadata["doc"].split()[0] in rows[f.name]
    if name == "fedptr":
        assert "a number at least 0 and less than 1" in text


def test_a_misspelt_method_is_guessed(capsys: Capture) -> None:
    assert refused(capsys, "methods", "fedpr") == "fedpr is not a method; did you mean fedptr?"


def test_data_is_listed(capsys: Capture) -> None:
    assert main(["data", "list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("digits", "fashion-mnist", "cifar10", "cifar100", "tiny-imagenet"))
    assert main(["data", "check", "digits"]) == 0
    assert "checksum: right" in capsys.readouterr().out
    assert "did you mean cifar10" in refused(capsys, "data", "get", "cifar11")


# Mistakes


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["rnu"], "rnu is not a command of `fedptr`; did you mean run?"),
        (["comapre", "--seeds", "2"], "comapre is not a command of `fedptr`; did you mean compare?"),
        (["data", "lits"], "lits is not a command of `fedptr data`; did you mean list?"),
        (["xyzzy"], "xyzzy is not a command of `fedptr`; choose from: init, run, compare"),
        (["data"], "required: COMMAND; see `fedptr data --help`"),
        (["run", "--rouns", "3"], "--rouns is not an option of `fedptr run`; did you mean --rounds?"),
        (["compare", "--method", "fedavg"], "--method is not an option of `fedptr compare`; did you mean --methods?"),
        (["partition", "--rounds", "3"], "--rounds is not an option of `fedptr partition`"),
        (["data", "list", "--data-dri", "x"], "is not an option of `fedptr data list`; did you mean --data-dir"),
        (["run", "--rounds"], "argument --rounds: expected one argument; see `fedptr run --help`"),
        (["run", "none.toml"], "plan none.toml cannot be read (No such file or directory)"),
        (["run", "--set", "x"], "--set x has no value"),
        (["run", "--method", "fedpr"], "method.name: fedpr is not a method; did you mean fedptr?"),
        (["run", "--dataset", "digit"], "file or folder exists; did you mean digits?"),
        (["run", "--dataset", "none.npz"], "none.npz does not exist; correct the path"),
        (["data", "check", "no/folder"], "no/folder does not exist; correct the path"),
        (["data", "check", "nofolder"], "nofolder is not a known dataset, and no such file or folder exists"),
        (["data", "check", __file__], "is neither an .npz, .csv or .parquet file nor a folder of images"),
        (["run", "--model", "convnt"], "model.name: convnt is not a model; did you mean convnet?"),
        (["run", "--set", 'model.name="a\\nb\\u001b[31m"'], "model.name: a b [31m is not a model"),
        (["run", "--device", "gpu"], "machine.device 'gpu' is not available here; use auto or cpu"),
        (["run", "--device", "meta"], "machine.device 'meta' is not available here"),
        (["run", "--device", ""], "machine.device '' is not available here"),
        (["run", "--clients", "2000"], "needs 40000 samples"),
        (["run", "--model", "lenet"], "at least 12×12, not 8×8"),
        (["run", "--split", "none.json"], "split file none.json cannot be read"),
        (["compare", "--seeds", "0"], "--seeds must be at least 1, not 0"),
        (["compare", "--seeds", "two"], "argument --seeds: invalid int value: 'two'"),
        (["compare", "--methods", "fedavg,fedavg"], "--methods names a method twice"),
        (["compare", "--methods", "fedavg,fedpr"], "fedpr is not a method; did you mean fedptr?"),
        (["compare", "--methods", ""], "an empty name is not a method; choose from: fedavg"),
        (["compare", "--methods", "fedavg", "--set", "method.mu=1"], "method.mu is not a setting of fedavg"),
        (["compare", "--methods", "fedavg", "--set", "method=1"], "--set method=1 names no section"),
        (["partition", "--out", "split.png"], "--out split.png must end in .json"),
        (["run", "--model", "mlp", "--out", "/dev/null/x"], "/dev/null/x cannot be used for results (Not a directory)"),
        (["run", "--model", "mlp", "--out", "/proc/none"], "/proc/none cannot be used for results (No such file"),
    ],
)  # fmt: skip
def test_one_sentence_and_exit_code_2(
    argv: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused(capsys, *argv)
    assert not list(tmp_path.iterdir()), "nothing is written when nothing was run"


OWN = {
    "raises": ("raise OSError('half\\nway')", "cannot be imported (half way); give it as module:factory"),
    "syntax": ("def make(:", "cannot be imported (invalid syntax"),
    "missing": ("", "has no attribute 'make'"),
    "fails": (
        "def make(shape, classes): raise KeyError('oops')",
        "cannot be built for 1×8×8 images, 10 classes: 'oops'",
    ),
    "takes": ("def make(): ...", "takes 0 positional arguments but 2 were given"),
    "nothing": ("def make(shape, classes): ...", "must return a torch.nn.Module with parameters, not NoneType"),
    "empty": ("from torch import nn\ndef make(s, c): return nn.Flatten()", "with parameters, not Flatten"),
    "size": (
        "from torch import nn\ndef make(s, c): return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))",
        "must turn 2 images into a tensor of shape (2, 10), not a tensor of shape (2, 7)",
    ),
    "images": ("from torch import nn\ndef make(s, c): return nn.Linear(7, c)", "cannot take 1×8×8 images: mat1"),
    "lazy": ("from torch import nn\ndef make(s, c): return nn.LazyLinear(c)", "cannot take 1×8×8 images"),
    "tuple": (
        "from torch import nn\nclass Two(nn.Linear):\n    def forward(self, x): return x, x\n"
        "def make(s, c): return Two(2, 2)",
        "must turn 2 images into a tensor of shape (2, 10), not tuple",
    ),
}


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("case", OWN)
def test_own_models_that_do_not_work(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    code, words = OWN[case]
    (tmp_path / f"own_{case}.py").write_text(code)
    assert words in refused(capsys, "run", "--model", f"own_{case}:make")
    assert str(tmp_path) not in sys.path


def test_own_models_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    assert "No module named 'none_such'" in refused(capsys, "run", "--model", "none_such:make")
    assert "cannot be imported (Empty module name)" in refused(capsys, "run", "--model", ":make")


def test_an_own_model_runs_and_its_factory_may_import_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_layers.py").write_text("from torch import nn\n")
    (tmp_path / "own_good.py").write_text(
        "def make(shape, classes):\n    from own_layers import nn\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    argv = ["run", "--model", "own_good:make", "--method", "fedavg", "--rounds", "1", "--out", "out"]
    assert main(argv) == 0, capsys.readouterr().err
    assert 'name = "own_good:make"' in (tmp_path / "out/plan.toml").read_text()


@pytest.mark.filterwarnings("default")
def test_warnings_are_notes_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_bn.py").write_text(
        "from torch import nn\n"
        "def make(s, c): return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, c))\n"
    )
    argv = ["run", "--model", "own_bn:make", "--method", "fedavg", "--rounds", "1", "--batch", "500", "--out", "out"]
    assert main(argv) == 0
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith("fedptr: note: the model has BatchNorm")
    assert err[1] == "fedptr: digits: width 16, lr 0.1 (defaults for digits; --preset paper takes the paper's)"
    assert err[2].startswith("fedptr: note: local.batch is 500 and the largest client has")
    assert err[3].startswith("fedavg: round 1/1")


def test_a_failing_client_is_exit_code_1(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["run", *TINY, "--method", "fedavg", "--set", "local.lr=1e30", "--out"]
    err = refused(capsys, *argv, str(tmp_path / "a"), code=1)
    assert err.startswith("fedavg, round 1, client 0: its 'w' is not finite; a smaller local.lr")
    monkeypatch.setenv("FEDPTR_TRACEBACK", "1")
    with pytest.raises(ClientError):
        main([*argv, str(tmp_path / "b")])


def test_a_full_disk_is_one_sentence(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "rounds.jsonl")

    monkeypatch.setattr("fedptr.runs.runner.start_run", full)
    assert "rounds.jsonl: No space left on device" in refused(capsys, "run", *TINY, "--out", str(tmp_path / "out"))


# Processes


def test_without_a_terminal_lines_go_to_stderr_and_the_result_to_stdout(tmp_path: Path) -> None:
    out, err = fedptr("run", *TINY, "--method", "fedavg", "--out", str(tmp_path / "out")).communicate(timeout=PATIENCE)
    first, second = err.splitlines()
    assert first.startswith("fedavg: round 1/2  accuracy ")
    assert "s/round" in first
    assert second.startswith("fedavg: round 2/2")
    assert second.endswith("0 s left")
    result, where = out.splitlines()
    assert result.startswith("fedavg: accuracy ")
    assert "(mean of the last two rounds)" in result
    assert where == f"results: {tmp_path / 'out'}"


def test_a_subset_of_the_test_images_is_said(tmp_path: Path, capsys: Capture) -> None:
    few = ["--rounds", "1", "--subset", "100", "--clients", "2", "--min-size", "1"]

    def said(*more: str) -> tuple[str, str]:
        capsys.readouterr()
        name = f"out{len(list(tmp_path.iterdir()))}"
        assert main(["run", *TINY, "--method", "fedavg", *few, *more, "--out", str(tmp_path / name)]) == 0
        out, err = capsys.readouterr()
        return out, err

    out, err = said()
    assert "(after one round, tested on 100 of 360 test images)" in out
    assert "note: tested on 100 of 360 test images, as many as --subset takes; use all with --set" in err
    out, err = said("--set", "data.subset_test=360")
    assert "(after one round)" in out
    assert "test images" not in out + err
    out, err = said("--set", "data.subset_test=50")
    assert "(after one round, tested on 50 of 360 test images)" in out
    assert "test images" not in err, "that is what was asked for"
    assert main(["compare", *TINY, *few, "--methods", "fedavg", "--out", str(tmp_path / "both")]) == 0
    out, err = capsys.readouterr()
    assert "tested on 100 of 360 test images" in " ".join(out.split())
    assert "accuracy % (last round)" in (tmp_path / "both" / "table.md").read_text()
    assert "tested on 100 of 360" in err


@pytest.mark.slow
def test_in_a_terminal_there_is_a_bar(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    process = fedptr(
        "run", *TINY, "--method", "fedavg", "--out", str(tmp_path / "out"), stderr=theirs, env=environment
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # how Linux says that the other side has closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert out.startswith("fedavg: accuracy")
    text = shown.decode()
    assert all(words in text for words in ("━", "round", "2/2", "accuracy", "s/round", "left"))


@pytest.mark.parametrize("stop", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_asked_to_stop_it_finishes_the_round_and_says_how_to_go_on(tmp_path: Path, stop: signal.Signals) -> None:
    process = fedptr("run", *TINY, "--rounds", "100000", "--method", "fedavg", "--out", str(tmp_path / "out"))
    assert process.stderr is not None
    try:
        assert process.stderr.readline().startswith("fedptr: this run will take about ")
        assert process.stderr.readline().startswith("fedavg: round 1/100000")
        process.send_signal(stop)
        _, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 128 + stop, err
    assert err.splitlines()[-2] == "fedptr: stopping after this round; again to stop at once"
    assert re.fullmatch(r"fedptr: stopped after round \d+; continue with `fedptr resume .*out`", err.splitlines()[-1])
    assert "Traceback" not in err


def test_a_reader_that_goes_away_is_no_error() -> None:
    process = fedptr("methods")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=PATIENCE) in (1, 141)  # rich says 1, our own prints 141
