"""Runs in archives: every byte comes back, everything reads them, nothing gets out of them, and no kill loses a run."""

from __future__ import annotations

import bz2
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged_files import damage
from made_runs import made_run
from smoke_recipe import smoke

from fedptr.cli.main import main
from fedptr.errors import UserError
from fedptr.report.find_runs import unpack_archived_runs
from fedptr.runs import archive
from fedptr.runs.archive import extract_runs, fetch_runs, pack_runs, unpack_runs
from fedptr.runs.lock import locked
from fedptr.runs.short_numbers import restore_numbers, shorten_numbers

Capture = pytest.CaptureFixture[str]
CELL = "fedavg-digits-0123456789ab"
KEPT = ("plan.toml", "rounds.jsonl", "summary.json")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def known_by(folder: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(folder).items() if name.endswith(KEPT)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with two seeds, one of them with checkpoints, and a run that is not finished."""
    base = tmp_path_factory.mktemp("made") / "runs"
    for seed in range(2):
        made_run(base / CELL / f"seed{seed}", {"run": {"rounds": 4, "seed": seed}, "method": {"name": "fedavg"}})
        tables = {"run": {"rounds": 4, "seed": seed}, "method": {"name": "fedptr"}}
        made_run(base / "fedptr-digits-abcdef012345" / f"seed{seed}", tables)
        checkpoint = base / CELL / f"seed{seed}" / "checkpoint"
        checkpoint.mkdir()
        for name in ("server-4", "client-0-4"):
            (checkpoint / f"{name}.safetensors").write_bytes(random.Random(name).randbytes(500))
    tables = {"run": {"rounds": 8, "seed": 2}, "method": {"name": "fedavg"}}
    made_run(base / CELL / "seed2", tables, finished=False)
    return base.parent


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "out")


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real runs: a recipe's, and audited ones with their shadows."""
    folder = tmp_path_factory.mktemp("reproduced")
    assert smoke("table7", folder, "--seeds", "2", "--only", "once", "--jobs", "1") == 0
    assert smoke("table10", folder, "--seeds", "1", "--only", "fedavg", "--jobs", "1") == 0
    return folder


def test_every_byte_comes_back(out: Path) -> None:
    before = known_by(out)
    done = pack_runs(out / "runs", remove=True)
    assert (len(done.runs), len(done.archives), done.removed) == (4, 2, 4)
    assert list(done.left_out) == [f"{CELL}/seed2"], "it is not finished"
    assert {path.name for path in (out / "runs").iterdir()} == {
        "fedavg-digits.tar.bz2", "fedptr-digits.tar.bz2", "plans.toml", "lock", CELL,
    }  # fmt: skip
    assert unpack_runs(out / "runs") == (4, 0)
    assert known_by(out) == before
    assert not list(out.rglob("checkpoint")), "not asked for"
    assert unpack_runs(out / "runs") == (0, 4)


def leave_behind(folder: Path) -> None:
    """What is not a run: as after a checkout that removed the files of a run and not those git ignores."""
    folder.mkdir(parents=True)
    (folder / "lock").write_text("{}")
    (folder / "log.txt").write_text("round 1\n")


@pytest.mark.parametrize("how", ["unpack_runs", "fetch_runs"])
def test_leftovers_do_not_hide_an_archived_run(how: str, out: Path) -> None:
    before, run = known_by(out), out / "runs" / CELL / "seed0"
    pack_runs(out / "runs", remove=True)
    leave_behind(run)
    with locked(run), pytest.raises(UserError, match="in use"):
        fetch_runs([run])
    assert unpack_runs(out / "runs") == (4, 0) if how == "unpack_runs" else fetch_runs([run]) is None
    after = known_by(run)
    assert after == {name: before[f"runs/{CELL}/seed0/{name}"] for name in after}
    assert set(after) == set(KEPT)
    assert (run.with_name("seed0.leftover") / "log.txt").read_text() == "round 1\n"
    assert unpack_runs(out / "runs") == ((0, 4) if how == "unpack_runs" else (3, 1))


def test_leftovers_do_not_hide_a_run_from_the_report(out: Path, tmp_path: Path) -> None:
    pack_runs(out / "runs", remove=True)
    leave_behind(out / "runs" / CELL / "seed0")
    assert out / "runs" / CELL / "seed0" in unpack_archived_runs(out, [], tmp_path)


@pytest.mark.parametrize("kept", KEPT[:2])
def test_a_run_that_was_begun_is_not_replaced(kept: str, out: Path) -> None:
    pack_runs(out / "runs", remove=True)
    run = out / "runs" / CELL / "seed0"
    run.mkdir(parents=True)
    (run / kept).write_text("mine")
    assert unpack_runs(out / "runs") == (3, 1)
    assert contents(run) == {kept: b"mine"}


def test_checkpoints_are_packed_where_they_are_asked_for(out: Path) -> None:
    before = contents(out / "runs" / CELL / "seed0" / "checkpoint")
    assert before
    pack_runs(out / "runs", ["*/seed0"], remove=True)
    unpack_runs(out / "runs")
    assert contents(out / "runs" / CELL / "seed0" / "checkpoint") == before
    assert not (out / "runs" / CELL / "seed1" / "checkpoint").exists()


def test_what_only_the_archive_holds_stays_in_it(out: Path) -> None:
    before = known_by(out)
    pack_runs(out / "runs", ["*"], remove=True)
    archives = {path.name: path.read_bytes() for path in (out / "runs").glob("*.bz2")}
    pack_runs(out / "runs", remove=True)
    assert {path.name: path.read_bytes() for path in (out / "runs").glob("*.bz2")} == archives
    made_run(out / "runs" / CELL / "seed7", {"run": {"rounds": 3, "seed": 7}, "method": {"name": "fedavg"}})
    assert len(pack_runs(out / "runs", remove=True).runs) == 5
    unpack_runs(out / "runs")
    after = known_by(out)
    assert {name: after[name] for name in before} == before
    assert f"runs/{CELL}/seed7/summary.json" in after


def test_the_same_runs_make_the_same_bytes(out: Path, made: Path, tmp_path: Path) -> None:
    again = shutil.copytree(made, tmp_path / "again")
    for path in again.rglob("*"):
        os.utime(path, (1, 1))
    for folder in (out, again):
        pack_runs(folder / "runs", ["*"])
    assert [path.read_bytes() for path in sorted((out / "runs").glob("*.*"))] == [
        path.read_bytes() for path in sorted((again / "runs").glob("*.*"))
    ]


def test_plans_can_be_read_without_unpacking(out: Path) -> None:
    pack_runs(out / "runs", remove=True)
    plans = tomllib.loads((out / "runs" / "plans.toml").read_text())
    assert plans[CELL]["runs"] == {"seed0": 4, "seed1": 4}
    assert plans[CELL]["method"]["name"] == "fedavg"


def test_a_run_that_is_in_use_is_left_alone(out: Path) -> None:
    with locked(out / "runs" / CELL / "seed0"):
        done = pack_runs(out / "runs", remove=True)
    assert "is in use" in done.left_out[f"{CELL}/seed0"]
    assert (out / "runs" / CELL / "seed0" / "summary.json").exists()


def test_numbers_are_shortened_without_loss() -> None:
    rng = random.Random(0)
    values = [rng.uniform(-1, 1) * 10 ** rng.randint(-30, 30) for _ in range(3000)]
    text = json.dumps([*values, *map(float, np.float32(values)), 0.0, -0.0, 0.1252, 1e300]).encode()
    short = shorten_numbers(text)
    assert len(short) < 0.9 * len(text)
    assert restore_numbers(short) == text
    assert json.loads(short) == pytest.approx(json.loads(text), rel=1e-7)


def test_text_that_cannot_be_shortened_is_packed_as_it_is(out: Path) -> None:
    """A capital E that Python's json did not write; it would come back otherwise."""
    folder = out / "runs" / CELL / "seed0"
    sources = {f"{CELL}/seed0": folder}
    (folder / "rounds.jsonl").write_bytes(b'{"round": 1, "loss": 2.5E-1, "other": 0.02540561743080616}\n')
    path = out / "runs" / "one.tar.bz2"
    archive.write_archive(path, sources, {f"{CELL}/seed0": ["rounds.jsonl"]})
    extract_runs(path, out / "there")
    assert (out / "there" / CELL / "seed0" / "rounds.jsonl").read_bytes() == (folder / "rounds.jsonl").read_bytes()


@pytest.mark.slow
def test_the_report_is_the_same(reproduced: Path, tmp_path: Path) -> None:
    out = shutil.copytree(reproduced, tmp_path / "out")
    places = [str(out), str(out / "table7"), str(next(out.glob("runs/fedavg-*")))]

    def pages() -> list[str]:
        for number, place in enumerate(places):
            assert main(["report", place, "-o", str(tmp_path / f"{number}.html"), "--force"]) == 0
        return [(tmp_path / f"{number}.html").read_text() for number in range(len(places))]

    for path in [*out.rglob("split.json"), *out.rglob("auxiliary")]:  # what is not packed
        if path.is_dir():
            shutil.rmtree(path)
        elif not (path.parent / "audit" / "audit.json").exists():
            path.unlink()
    before = pages()
    assert main(["results", "pack", str(out), "--remove"]) == 0
    assert not list(out.glob("runs/*/seed*"))
    assert pages() == before
    assert not list(out.glob("runs/*/seed*")), "a report leaves the folder as it is"


@pytest.mark.slow
def test_tables_are_the_same_and_nothing_is_run_again(reproduced: Path, tmp_path: Path, capsys: Capture) -> None:
    out = shutil.copytree(reproduced, tmp_path / "out")
    asked: dict[str, list[str]] = {"table7": ["--seeds", "2", "--only", "once"], "table10": ["--only", "fedavg"]}
    asked["table10"] += ["--seeds", "1"]
    tables = {name: (out / name / "table.csv").read_text() for name in asked}
    numbers = {name: json.loads((out / name / "reproduce.json").read_text()) for name in asked}
    runs, shadows = len(list(out.glob("runs/*/seed*"))), len(list(out.glob("audit/*/shadow*")))
    assert runs > 3
    assert shadows == 2
    assert main(["results", "pack", str(out), "--remove"]) == 0
    assert not [*out.glob("runs/*/seed*"), *out.glob("audit/*/shadow*")]
    stamp = (out / "runs" / "plans.toml").stat().st_mtime_ns
    for cell, several in tomllib.loads((out / "runs" / "plans.toml").read_text()).items():
        for name in several["runs"]:
            leave_behind(out / "runs" / cell / name)
    capsys.readouterr()
    for name, more in asked.items():
        assert smoke(name, out, *more, "--jobs", "1") == 0
        assert (out / name / "table.csv").read_text() == tables[name]
        assert json.loads((out / name / "reproduce.json").read_text()) == numbers[name]
    words = capsys.readouterr().err
    assert words.count("unpacked") == 2
    assert "from archives in" in words
    assert all(path.stat().st_mtime_ns >= stamp for path in out.glob("runs/*/seed*/summary.json"))
    assert "audit 1 of" not in words


@pytest.mark.slow
def test_an_audit_can_be_repeated(reproduced: Path, tmp_path: Path, capsys: Capture) -> None:
    out = shutil.copytree(reproduced, tmp_path / "out")
    (run,) = [path.parents[1] for path in out.glob("runs/*/seed0/audit/audit.json")]
    options = ["--scale", "smoke", "--jobs", "1", "--shadows-dir", str(out / "audit")]

    def audit() -> Any:
        assert main(["audit", str(run), *options]) == 0
        return json.loads((run / "audit" / "audit.json").read_text())

    before = audit()
    assert main(["results", "pack", str(out), "--remove"]) == 0
    assert not run.exists()
    capsys.readouterr()
    assert audit() == before
    assert "are to be trained" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_packed_run_can_be_continued(reproduced: Path, tmp_path: Path) -> None:
    expected, out = (shutil.copytree(reproduced, tmp_path / name) for name in ("expected", "out"))
    run = next(path.relative_to(out) for path in out.glob("runs/fedavg-*/seed0"))
    rounds = 2 + len((out / run / "rounds.jsonl").read_text().splitlines())
    assert main(["results", "pack", str(out), "--remove", "--checkpoints", "fedavg-*"]) == 0
    for folder in (expected, out):
        assert main(["resume", str(folder / run), "--rounds", str(rounds)]) == 0
    weights = [json.loads((folder / run / "summary.json").read_text())["weights_sha256"] for folder in (expected, out)]
    assert weights[0] == weights[1]


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for info, content in members:
            info.size = info.size or len(content)
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info, b"" if link else b"seed = 1\n"


HOSTILE = {
    "above": [member("../seed0/plan.toml")],
    "far above": [member(f"{CELL}/seed0/../../../plan.toml")],
    "absolute": [member("/tmp/seed0/plan.toml")],
    "another file": [member(f"{CELL}/seed0/.bashrc")],
    "code": [member(f"{CELL}/seed0/weights.pkl")],
    "link": [member(f"{CELL}/seed0/plan.toml", tarfile.SYMTYPE, "/etc/passwd")],
    "hard link": [member(f"{CELL}/seed0/plan.toml", tarfile.LNKTYPE, "../../x")],
    "folder": [member(f"{CELL}/seed0", tarfile.DIRTYPE)],
    "device": [member(f"{CELL}/seed0/plan.toml", tarfile.CHRTYPE)],
    "twice": [member(f"{CELL}/seed0/plan.toml"), member(f"{CELL}/seed0/plan.toml")],
    "both rounds": [member(f"{CELL}/seed0/rounds.jsonl"), member(f"{CELL}/seed0/rounds.short.jsonl")],
    "long name": [member(f"{CELL}/seed0/{'x' * 300}")],
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("command", ["unpack", "pack", "report", "audit"])
def test_hostile_archives_are_refused(name: str, command: str, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "deep" / "out"
    (out / "runs").mkdir(parents=True)
    path = out / "runs" / "fedavg-digits.tar.bz2"
    path.write_bytes(bz2.compress(tar_of(member(f"{CELL}/seed1/plan.toml"), *HOSTILE[name])))
    before = contents(tmp_path)
    commands = {
        "unpack": ["results", "unpack", str(out)],
        "pack": ["results", "pack", str(out)],
        "report": ["report", str(out), "-o", str(tmp_path / "report.html")],
        "audit": ["audit", str(out / "runs" / CELL / "seed0")],
    }
    assert main(commands[command]) == 2
    said, words = capsys.readouterr()
    assert said == ""
    assert words.startswith(f"fedptr: {path} is not an archive of runs: ")
    assert words.count("\n") == 1
    assert contents(tmp_path) == before


def test_an_archive_may_not_be_larger_than_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info, content = member(f"{CELL}/seed0/plan.toml")
    info.size = 1 << 40  # told, and not there
    header = info.tobuf(tarfile.GNU_FORMAT)
    path = tmp_path / "fedavg-digits.tar.bz2"
    path.write_bytes(bz2.compress(header + content))
    with pytest.raises(UserError, match="larger than 4 GB"):
        unpack_runs(tmp_path)
    monkeypatch.setattr(archive, "LARGEST", 1000)
    path.write_bytes(bz2.compress(tar_of(*((member(f"{CELL}/seed{i}/plan.toml")[0], bytes(400)) for i in range(3)))))
    with pytest.raises(UserError, match="larger than"):
        unpack_runs(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_damaged_archive_is_refused_or_whole(out: Path, tmp_path: Path) -> None:
    before = known_by(out)
    pack_runs(out / "runs", remove=True)
    path = out / "runs" / "fedavg-digits.tar.bz2"
    content, rng = path.read_bytes(), random.Random(0)
    refused = 0
    for number in range(60):
        path.write_bytes(damage(content, rng))
        into = tmp_path / str(number)
        try:
            extract_runs(path, into)
        except UserError:
            refused += 1
            continue
        found = known_by(into)
        assert found
        assert all(before[f"runs/{name}"] == value for name, value in found.items())
    assert refused > 30


KILLED = """
import os, random, signal, sys
from pathlib import Path
from shutil import copytree, rmtree
from fedptr.runs.archive import pack_runs

made, scratch = map(Path, sys.argv[1:])
last = 0
while True:  # some file operations further each time
    last += random.randint(1, 8)
    base = copytree(made, scratch / str(last)) / "runs"
    child = os.fork()
    if not child:
        left = last

        def count(event, args):
            global left
            if event.partition(".")[0] in ("open", "os", "shutil") and any(str(base) in str(one) for one in args):
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        pack_runs(base, ["*"], remove=True)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
print(last)
"""


@pytest.mark.slow
def test_a_kill_at_any_file_operation_loses_nothing(made: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    for seed in range(2):
        shutil.copytree(made / "runs" / CELL / f"seed{seed}", small / "runs" / CELL / f"seed{seed}")
    (tmp_path / "killed").mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLED, str(small), str(tmp_path / "killed")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50
    expected = {
        name: content for name, content in contents(small).items() if name.endswith(KEPT) or "/checkpoint/" in name
    }
    for left in (tmp_path / "killed").iterdir():
        unpack_runs(left / "runs")
        found = contents(left)
        assert {name: found.get(name) for name in expected} == expected, left.name
        pack_runs(left / "runs", ["*"], remove=True)
        names = {path.name for path in (left / "runs").iterdir()}
        assert names == {"fedavg-digits.tar.bz2", "plans.toml", "lock"}, left.name


def test_a_folder_without_runs(tmp_path: Path, capsys: Capture) -> None:
    assert main(["results", "pack", str(tmp_path)]) == 2
    assert "holds no folder runs" in capsys.readouterr().err
