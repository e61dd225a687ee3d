"""Nothing lost: kills, damaged folders, locks, and faults of clients."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from damaged_files import damage
from same_bits import outcome
from small_world import World, quick
from wait_until import PATIENCE, catches, until

from fedptr.cli.main import main
from fedptr.core.faults import Faults
from fedptr.core.federation import Rounds, federate
from fedptr.data import cache
from fedptr.data.dataset import PARTS, Dataset
from fedptr.data.split import Split
from fedptr.errors import ClientError, UserError
from fedptr.jobs.run_queue import run_plans
from fedptr.methods import FedAvg, all_methods
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.lock import locked
from fedptr.runs.plan import Plan, load_plan
from fedptr.runs.rounds_file import read_records
from fedptr.runs.runner import checkpoint_header, load_newest_checkpoint
from fedptr.runs.same_run import identity_text

TINY = ["--preset", "paper", "--model", "mlp", "--width", "8", "--batch", "32", "--set", "machine.threads=1"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple]:
    """A SCAFFOLD run of six rounds that was stopped after four, and what it would have come to."""
    base = tmp_path_factory.mktemp("stopped")
    argv = ["run", *TINY, "--method", "scaffold", "--participation", "0.5", "--rounds", "6"]
    assert main([*argv, "--out", str(base / "whole")]) == 0
    script = (
        "import os, signal, sys\n"
        "from fedptr.cli import main as cli\n"
        "from fedptr.runs import rounds_file as history\n"
        "append = history.RoundsFile.append\n"
        "def stop(self, record):\n"
        "    append(self, record)\n"
        "    if record['round'] == 4: os.kill(os.getpid(), signal.SIGTERM)\n"
        "history.RoundsFile.append = stop\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *argv, "--out", str(base / "part")], capture_output=True, text=True
    )
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert "stopped after round 4; continue with `fedptr resume" in done.stderr
    return base / "part", outcome(base / "whole")


@pytest.fixture
def part(stopped, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped[0], tmp_path / "run"))


def resume(folder: Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    capsys.readouterr()
    assert main(["resume", str(folder)]) == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err


def test_resume_is_exact(part: Path, stopped, capsys) -> None:
    assert "resuming after round 4 of 6" in resume(part, capsys)
    assert outcome(part) == stopped[1]
    assert "nothing to do" in resume(part, capsys)


def test_the_older_checkpoint_serves_when_the_newer_is_damaged(part: Path, stopped, capsys) -> None:
    (part / "checkpoint" / "server-4.safetensors").write_bytes(b"")
    err = resume(part, capsys)
    assert "using the checkpoint of round 3, as a newer one is damaged (round 4: server-4.safetensors" in err
    assert outcome(part) == stopped[1]


def test_a_clients_file_in_the_servers_place(part: Path, stopped, capsys) -> None:
    folder = part / "checkpoint"
    client = next(iter(folder.glob("client-*"))).read_bytes()
    for name in ("server-²", "server-1", "server-4", "server-5"):
        (folder / f"{name}.safetensors").write_bytes(client)
    assert "using the checkpoint of round 3, as a newer one is damaged (round 5: it has format" in resume(part, capsys)
    assert outcome(part) == stopped[1]


def test_a_kill_after_the_last_round_only_lacks_the_summary(part: Path, stopped, capsys) -> None:
    resume(part, capsys)
    for name in ("summary.json", "weights.safetensors"):
        (part / name).unlink()
    resume(part, capsys)
    assert outcome(part) == stopped[1]


def test_without_a_sound_checkpoint_it_says_so_and_deletes_nothing(part: Path, capsys) -> None:
    for path in (part / "checkpoint").glob("server-*"):
        path.write_bytes(path.read_bytes()[:-1])
    before = {path: path.read_bytes() for path in part.rglob("*") if path.is_file() and path.name != "lock"}
    assert "has no sound checkpoint" in resume(part, capsys, 2)
    assert before == {path: path.read_bytes() for path in before}


def test_checkpoints_that_are_gone_are_not_taken_for_a_fresh_start(part: Path, capsys) -> None:
    shutil.rmtree(part / "checkpoint")
    lines = (part / "rounds.jsonl").read_bytes()
    assert "the checkpoints of" in resume(part, capsys, 2)
    assert (part / "rounds.jsonl").read_bytes() == lines


def test_a_kill_in_the_first_line_is_a_fresh_start(part: Path, stopped, capsys) -> None:
    """Nothing was saved yet: the round comes again, whole, and is not taken for the second."""
    shutil.rmtree(part / "checkpoint")
    first = (part / "rounds.jsonl").read_bytes().splitlines(keepends=True)[0]
    (part / "rounds.jsonl").write_bytes(first[:-1])
    assert "resuming" not in resume(part, capsys)
    assert outcome(part) == stopped[1]
    assert [record["round"] for record in read_records(part)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("saved", ["checkpoint", "summary.json"])
def test_a_cut_off_line_beside_what_was_saved_is_no_fresh_start(saved: str, part: Path, stopped, capsys) -> None:
    if saved == "summary.json":
        resume(part, capsys)
        shutil.rmtree(part / "checkpoint")
    (part / "rounds.jsonl").write_bytes((part / "rounds.jsonl").read_bytes()[:20])
    before = {path: path.read_bytes() for path in part.rglob("*") if path.is_file() and path.name != "lock"}
    assert "start it again" in resume(part, capsys, 2)
    assert before == {path: path.read_bytes() for path in before}
    board = run_plans({part: load_plan(part)}, 1, lambda board: None)  # which puts it aside
    assert (list(board.done), board.failed) == ([part], {})
    assert outcome(part) == stopped[1]
    aside = part.with_name(f"{part.name}.damaged")
    assert before == {path: (aside / path.relative_to(part)).read_bytes() for path in before}


def test_a_damaged_split_is_drawn_again(part: Path, stopped, capsys) -> None:
    (part / "split.json").write_text("{}")
    assert "drawn again from the plan" in resume(part, capsys)
    assert (part / "split.json.damaged").read_text() == "{}"
    assert outcome(part) == stopped[1]


@pytest.mark.parametrize(("name", "old", "new", "words"), [
    ("plan.toml", "lr = 0.01", "lr = 0.02", "changed since the run was started: local.lr was 0.01 and is 0.02; undo"),
    ("plan.toml", "alpha = 0.04", "alpha = 0.5", "changed since the run was started: split.alpha was 0.04 and is 0.5"),
    ("plan.toml", 'compile = "auto"', 'compile = "off"', "machine.compile was auto and is off"),
    ("rounds.jsonl", '"round": 2', '"round": 3', "has no sound checkpoint"),
])  # fmt: skip
def test_what_was_changed_is_refused(part: Path, capsys, name: str, old: str, new: str, words: str) -> None:
    text = (part / name).read_text()
    assert old in text
    (part / name).write_text(text.replace(old, new, 1))
    assert words in resume(part, capsys, 2)


@pytest.mark.parametrize("name", ["plan.toml", pytest.param("rounds.jsonl", marks=pytest.mark.slow)])
def test_fuzzed_folders_resume_exactly_or_are_refused(part: Path, stopped, name: str, capsys) -> None:
    """A thousand mutations each, up to the point where training would continue, from what the seals vouch for."""
    rng, whole = random.Random(name), (part / name).read_bytes()
    plan = load_plan(part)
    experiment = prepare_experiment(plan)
    same = checkpoint_header(plan, experiment)
    for _ in range(1000):
        (part / name).write_bytes(damage(whole, rng))
        try:
            found = load_plan(part)
            changed = identity_text(found) != identity_text(plan)
            run, history = load_newest_checkpoint(part, found, same, "cpu")
        except UserError:
            continue
        assert isinstance(found, Plan)
        assert not changed
        assert run is not None
        assert history is not None
        history.close()
        kept = (part / name).read_bytes()
        assert name == "plan.toml" or kept == b"".join(whole.splitlines(True)[: run.round])


def test_fuzzed_splits_are_whole_or_refused(part: Path) -> None:
    rng, path = random.Random(0), part / "split.json"
    whole = path.read_bytes()
    expected = Split.load(path).sha256
    for _ in range(1000):
        path.write_bytes(damage(whole, rng))
        try:
            assert Split.load(path).sha256 == expected
        except UserError:
            continue


def test_fuzzed_caches_are_whole_or_refused(tmp_path: Path) -> None:
    x, y = np.arange(4 * 36, dtype=np.uint8).reshape(4, 1, 6, 6), np.arange(4)
    data = Dataset("mine", x, y, x[:2], y[:2], (1.5,), (2.5,), ("a", "b", "c", "d"), "made here")
    made = cache.load_or_build(tmp_path / "cache", lambda: data)
    assert isinstance(made.train_x, np.memmap)
    whole = {path: path.read_bytes() for path in (tmp_path / "cache").iterdir()}
    rng, refused = random.Random(0), 0
    for _ in range(1000):
        path = rng.choice(sorted(whole))
        path.write_bytes(damage(whole[path], rng))
        found = cache.open_cache(tmp_path / "cache")
        if isinstance(found, Dataset):
            assert all((getattr(found, name) == getattr(data, name)).all() for name in PARTS)
            assert (found.mean, found.std, found.classes) == (data.mean, data.std, data.classes)
        refused += not isinstance(found, Dataset)
        path.write_bytes(whole[path])
    assert refused > 900


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc here")
def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    """In a round that takes minutes, nobody has to wait for its end."""
    slow = ["--set", "local.epochs=100000", "--method", "fedavg", "--rounds", "3", "--out", str(tmp_path / "out")]
    process = subprocess.Popen([sys.executable, "-m", "fedptr", "run", *TINY, *slow], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        until(lambda: catches(process.pid, signal.SIGTERM) or process.poll() is not None, "the first round")
        assert "this run will take" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert "again to stop at once" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err.splitlines()[-1] == (
        f"fedptr: stopped at once; continue from the last checkpoint with `fedptr resume {tmp_path / 'out'}`"
    )
    assert "Traceback" not in err


@pytest.fixture
def small_disk(tmp_path: Path):
    """A real file system of 400 KB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root to mount a small file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_disk_that_really_is_full(small_disk: Path, tmp_path: Path, capsys) -> None:
    argv = ["run", "--model", "mlp", "--width", "64", "--batch", "32", "--set", "machine.threads=1"]
    argv += ["--method", "scaffold", "--participation", "0.3", "--rounds", "5"]
    assert main([*argv, "--out", str(tmp_path / "whole")]) == 0
    capsys.readouterr()
    assert main([*argv, "--out", str(small_disk / "out")]) == 2
    assert "No space left on device" in capsys.readouterr().err
    subprocess.run(["mount", "-o", "remount,size=20m", small_disk], check=True)
    resume(small_disk / "out", capsys)
    assert outcome(small_disk / "out") == outcome(tmp_path / "whole")


def test_a_read_only_folder(small_disk: Path, part: Path, capsys) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert main(["run", *TINY, "--out", str(small_disk / "out")]) == 2
    assert "cannot be used for results (Read-only file system)" in capsys.readouterr().err


def test_two_processes_in_one_folder(part: Path, capsys) -> None:
    with locked(part):
        err = resume(part, capsys, 2)
        assert "is in use by process" in err
        assert main(["run", *TINY, "--out", str(part), "--force"]) == 2
        assert "is in use by process" in capsys.readouterr().err
    assert (part / "plan.toml").exists()


def test_a_comparison_goes_on_where_it_was(tmp_path: Path, capsys) -> None:
    argv = ["compare", *TINY, "--methods", "fedavg,scaffold", "--seeds", "2", "--rounds", "3"]
    assert main([*argv, "--out", str(tmp_path / "whole")]) == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    for name in ("compare.json", "table.md", "curves.png"):
        (tmp_path / "part" / name).unlink()
    (tmp_path / "part" / "scaffold" / "seed1" / "summary.json").unlink()
    shutil.rmtree(tmp_path / "part" / "scaffold" / "seed1" / "checkpoint")
    (tmp_path / "part" / "scaffold" / "seed1" / "rounds.jsonl").write_bytes(b"")
    shutil.rmtree(tmp_path / "part" / "fedavg" / "seed1")
    kept = tmp_path / "part" / "fedavg" / "seed0" / "weights.safetensors"
    stamp = kept.stat().st_mtime_ns
    resume(tmp_path / "part", capsys)
    assert kept.stat().st_mtime_ns == stamp, "a finished run was run again"
    for method in ("fedavg", "scaffold"):
        for seed in ("seed0", "seed1"):
            assert outcome(tmp_path / "part" / method / seed) == outcome(tmp_path / "whole" / method / seed)
    assert (tmp_path / "part" / "curves.png").exists()
    order = tmp_path / "part" / "compare.toml"
    whole = order.read_text()
    for bad in ("seeds = 0", "seeds = -3", 'seeds = "2"', "seeds = 2.0"):
        order.write_text(whole.replace("seeds = 2", bad))
        assert "has no sound [compare] section" in resume(tmp_path / "part", capsys, 2)
    for bad in ("methods = []", 'methods = "fedavg"', "methods = 3"):
        order.write_text(re.sub(r"methods = \[[^]]*\]", bad, whole))
        assert "has no sound [compare] section" in resume(tmp_path / "part", capsys, 2)
    order.write_text(whole)
    order.write_text(order.read_text().replace("width = 8", "width = 9"))
    assert "was run by another plan" in resume(tmp_path / "part", capsys, 2)


def test_a_full_disk_loses_nothing(part: Path, stopped, capsys, monkeypatch) -> None:
    """The write fails in the middle of a checkpoint; with room again the run continues to the same end."""
    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 4:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in resume(part, capsys, 2)
    monkeypatch.setattr(os, "fsync", real)
    assert not list(part.rglob("*.tmp"))
    resume(part, capsys)
    assert outcome(part) == stopped[1]


# Clients that fail ----------------------------------------------------------------------------------------------------

ALL = list(all_methods())


def run(world: World, method: FedAvg, faults: Faults | None = None, rounds: int = 8, **how):
    task = world.task_for(method)
    return list(federate(method, task, world.clients, world.test, Rounds(rounds=rounds, **how), None, faults))


@pytest.mark.parametrize("name", ALL)
def test_dropped_clients_are_as_if_not_asked(name: str, world: World) -> None:
    """Aggregation is over who replied, states of the dropped stay, and the faults are the same for every method."""
    runs = run(world, quick(name), Faults(drop=0.4))
    expected = run(world, FedAvg(), Faults(drop=0.4))
    assert [r.record.get("dropped") for r in runs] == [r.record.get("dropped") for r in expected]
    gone = [set(r.record.get("dropped", ())) for r in runs]
    assert 4 < sum(map(len, gone)) < 24
    for before, after, dropped in zip(runs, runs[1:], gone[1:], strict=False):
        assert [entry["id"] for entry in after.record["clients"]] == [i for i in range(4) if i not in dropped]
        for i in dropped & before.clients.keys():
            assert after.clients[i] is before.clients[i]
    assert bool(runs[-1].w.isfinite().all())


def test_invariants_hold_under_dropouts(world: World) -> None:
    for r in run(world, quick("scaffold"), Faults(drop=0.4, straggle=0.5)):
        mean = sum(s["c_i"] for s in r.clients.values()) / 4 if r.clients else torch.zeros_like(r.w)
        torch.testing.assert_close(r.server["c"], mean, rtol=1e-4, atol=1e-6)


def test_when_everybody_drops_out_the_model_stays(world: World) -> None:
    runs = run(world, quick("feddyn"), Faults(drop=1.0), rounds=3)
    assert all(torch.equal(r.w, world.task.init()) for r in runs)
    json.dumps(runs[-1].record["dropped"])


def test_stragglers_take_fewer_steps(world: World) -> None:
    slow = run(world, FedAvg(), Faults(straggle=1.0), rounds=4)
    full = run(world, FedAvg(), rounds=4)
    pairs = [
        (a["steps"], b["steps"])
        for r, s in zip(slow, full, strict=True)
        for a, b in zip(r.record["clients"], s.record["clients"], strict=True)
    ]
    assert all(1 <= a <= b for a, b in pairs)
    some = run(world, FedAvg(), Faults(straggle=0.5), rounds=10)
    assert not torch.equal(some[-1].w, full[-1].w)


@pytest.mark.parametrize("what", ["raise", "nan", "shape", "dtype"])
def test_a_failing_client_stops_the_run_or_is_dropped(what: str, world: World) -> None:
    class Broken(FedAvg):
        def reply(self, w, msg, client, steps, site):
            reply, client = super().reply(w, msg, client, steps, site)
            if len(site.samples) == 9 and site.round == 2:  # client 2
                if what == "raise":
                    raise OSError("sensor unplugged")
                bad = {"nan": w * float("nan"), "shape": w[:-1], "dtype": w.double()}[what]
                return {"w": bad}, client
            return reply, client

    with pytest.raises(ClientError, match=r"fedavg, round 3, client 2: "):
        run(world, Broken())
    runs = run(world, Broken(), on_failure="drop")
    assert [list(r.record.get("dropped", ())) for r in runs] == [[], [], [2], [], [], [], [], []]
    assert "client 2" in runs[2].record["dropped"][2]
    assert len(runs[2].record["clients"]) == 3


def test_dropped_clients_are_counted_in_the_summary(tmp_path: Path, capsys) -> None:
    assert (
        main(
            [
                "run",
                *TINY,
                "--method",
                "fedavg",
                "--rounds",
                "4",
                "--set",
                "faults.drop=0.5",
                "--out",
                str(tmp_path / "o"),
            ]
        )
        == 0
    )
    summary = json.loads((tmp_path / "o" / "summary.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "o" / "rounds.jsonl").read_text().splitlines()]
    assert summary["dropped"] == sum(len(line.get("dropped", ())) for line in lines) > 0


def test_what_a_kill_left_behind_can_be_replaced(tmp_path: Path, capsys) -> None:
    """Killed while the plan was written: only the lock and half a file are there."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "lock").write_text("{}")
    (out / ".plan.toml.4711.tmp").write_text("[ru")
    assert "holds no plan.toml" in resume(out, capsys, 2)
    assert main(["run", *TINY, "--method", "fedavg", "--rounds", "1", "--out", str(out), "--force"]) == 0
    assert not list(out.glob(".*"))
    (out / "notes.txt").write_text("mine")
    assert main(["run", *TINY, "--method", "fedavg", "--rounds", "1", "--out", str(out), "--force"]) == 2
    assert "notes.txt was not made by fedptr" in capsys.readouterr().err


def test_a_comparison_that_was_killed_within_its_first_write_can_be_replaced(tmp_path: Path, capsys) -> None:
    """Found by `make soak`: there is no lock yet, only half of compare.toml."""
    out = tmp_path / "out"
    out.mkdir()
    (out / ".compare.toml.4711.tmp").write_text("[ru")
    argv = ["compare", *TINY, "--methods", "fedavg", "--rounds", "1", "--out", str(out), "--force"]
    assert main(argv) == 0, capsys.readouterr().err
    assert not list(out.glob(".*"))
