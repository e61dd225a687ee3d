"""Ray gives the bits of a run in-process, whatever happens to its workers. One Ray serves all tests but the last."""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from same_bits import equal, outcome, same, untimed
from small_plans import may_stay
from small_world import BRIEF, part_for
from tiny_runs import HALF, rounds_written
from wait_until import PATIENCE, until

from fedptr.atomic_files import read_tensors, write_tensors
from fedptr.cli.main import main
from fedptr.compute.workload import MachinePlan
from fedptr.core import long_work
from fedptr.core.federation import Run, federate, last_run
from fedptr.core.method import Site
from fedptr.core.randomness import Key
from fedptr.core.visit import visit_in_process
from fedptr.engines.ray import pool as pools
from fedptr.engines.ray.pool import Pool
from fedptr.engines.ray.visits import DEATHS, Round, Workers
from fedptr.errors import ClientError, UserError
from fedptr.methods import all_methods
from fedptr.runs import rounds_file
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.leftovers import UNFINISHED
from fedptr.runs.plan import Plan, check_plan
from fedptr.runs.same_run import identity_text
from fedptr.runs.unfinished_work import UnfinishedWork

pytestmark = [
    pytest.mark.real,
    pytest.mark.xdist_group("ray"),  # so that one Ray serves them
    pytest.mark.filterwarnings("ignore:the model has BatchNorm"),
    # Ray leaves the processes it starts to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
BAD = 3  # the client that the models in own.py fail on
OWN = """
import os, pathlib, time, torch

class Net(torch.nn.Module):
    def __init__(self, shape, classes, fail=lambda: None):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, classes))
        self.fail = fail

    def forward(self, x):
        if self.training and len(x) == {size}:  # BatchNorm: a batch is computed whole
            self.fail()
        return self.inner(x)

def unplug():
    raise ValueError("sensor unplugged")

def wait():
    place = pathlib.Path(__file__).with_name("waits")
    while not place.exists() or place.read_text() == str(os.getpid()):
        place.write_text(str(os.getpid()))
        time.sleep(0.1)

def sound(shape, classes):
    return Net(shape, classes)

def raising(shape, classes):
    return Net(shape, classes, unplug)

def waiting(shape, classes):
    return Net(shape, classes, wait)

def dying(shape, classes):
    return Net(shape, classes, lambda: os.kill(os.getpid(), 9))
"""


def plan(name: str = "fedavg", **sections: dict[str, Any]) -> Plan:
    """Ten clients, five a round, on one thread."""
    known = all_methods()[name].__dataclass_fields__
    method = {key: value for key, value in {**BRIEF, "m": 1}.items() if key in known}
    tables = {
        "run": {"rounds": 5, "participation": 0.5},
        "model": {"name": "linear" if all_methods()[name].needs_linear else "mlp", "width": 8},
        "local": {"batch": 32},
        "method": {"name": name, **method},
    }
    tables |= {section: {**tables.get(section, {}), **values} for section, values in sections.items()}
    return check_plan({**tables, "machine": {"threads": 1, "engine": "ray", **sections.get("machine", {})}})


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Two workers, on a Ray that has room for more. It finds own.py as a run in that folder would."""
    ray = pytest.importorskip("ray", reason="fedptr[ray] is not installed")
    folder = tmp_path_factory.mktemp("own")
    size = prepare_experiment(plan()).split.sizes[BAD]
    (folder / "own.py").write_text(OWN.format(size=size), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("FEDPTR_CACHE", str(folder / "cache"))
        patch.setenv("RAY_prestart_worker_first_driver", "0")  # processes that would only wait
        with contextlib.ExitStack() as stack:
            while not ray.is_initialized():
                try:
                    stack.enter_context(pools.connect_ray(MachinePlan(workers=4)))
                except UserError as error:  # half a minute is what Ray gives itself, however busy the machine is
                    if "timed out during startup" not in str(error):
                        raise
                    ray.shutdown()
            with Pool(MachinePlan(workers=2)) as pool:
                yield pool


def runs(plan: Plan, visits: Any) -> list[Run]:
    e, p = prepare_experiment(plan), plan
    how = {"visits": visits, "client_tests": e.client_tests}
    return list(federate(p.method, e.task, e.clients, e.test, p.run, p.local, p.faults, **how))


def on_ray(plan: Plan, pool: Pool) -> list[Run]:
    with Workers(plan, prepare_experiment(plan), pool) as workers:
        return runs(plan, workers)


def assert_same(here: list[Run], there: list[Run], still: bool = False) -> None:
    assert same([run.w for run in here], [run.w for run in there], still)
    for a, b in zip(here, there, strict=True):
        assert equal(a.server, b.server)
        assert equal(dict(a.clients), dict(b.clients))
        assert untimed(a.record) == untimed(b.record)


@pytest.mark.parametrize("name", all_methods())
def test_every_method_gives_the_same_bits(name: str, pool: Pool) -> None:
    """Weights, server, clients and records, with simulated dropouts and stragglers; personal models' scores too."""
    tables = plan(name, faults={"drop": 0.2, "straggle": 0.5}, run={"participation": part_for(name, 0.5)})
    here = runs(tables, visit_in_process)
    assert ("personal_accuracy" in here[-1].record) == all_methods()[name].personalised
    assert all_methods()[name].one_shot or any("dropped" in run.record for run in here)
    assert_same(here, on_ray(tables, pool), still=may_stay(name))


@pytest.mark.parametrize("tables", [
    plan("scaffold", model={"name": "own:sound"}),
    plan("fedptr", model={"name": "convnet"}, machine={"compile": "on"}, run={"rounds": 3}),
])  # fmt: skip
def test_so_do_buffers_and_our_own_code(tables: Plan, pool: Pool) -> None:
    """BatchNorm's statistics; and the ConvNet in C++, or whatever takes its place here."""
    assert_same(runs(tables, visit_in_process), on_ray(tables, pool))


def test_unfinished_work_of_clients_is_found_by_workers(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 0's images as they were kept, but for a change by which they are known."""
    monkeypatch.setattr(long_work, "OFTEN", 0.0)
    monkeypatch.setattr(long_work, "PART", 1e9)
    tables = plan("fedd3", run={"participation": 1.0}, method={"k": 4, "H": 3})
    e, bench = prepare_experiment(tables), UnfinishedWork(tmp_path, {})

    def run(visits: Any) -> Run:
        p = tables
        return last_run(federate(p.method, e.task, e.clients, None, p.run, p.local, visits=visits, bench=bench))

    whole = run(visit_in_process)
    (kept,) = (tmp_path / UNFINISHED).glob("round-0-client-0-*")
    state, header = read_tensors(kept)
    write_tensors(kept, {**state, "learned/X": torch.full_like(state["learned/X"], 0.5)}, header)
    with Workers(tables, e, pool) as workers:
        found = run(workers)
    own = found.server["owner"] == 0
    assert bool((found.server["X"][own] == 0.5).all())
    assert torch.equal(found.server["X"][~own], whole.server["X"][~own])


class Killer(Workers):
    """Kills a worker with SIGKILL in the middle of its work: the one that waits for it."""

    victim = ""

    def assign_clients(self, now: Round) -> None:
        super().assign_clients(now)
        if not self.victim and any(BAD in clients for _, clients in now.visiting.values()):
            waits = Path("waits")
            self.victim = until(lambda: waits.exists() and waits.read_text(), "a worker that waits")
            os.kill(int(self.victim), signal.SIGKILL)


def test_the_clients_of_a_killed_worker_are_run_again(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {"local": {"batch": 1000}, "run": {"participation": 1.0, "rounds": 3}}
    tables = plan("scaffold", model={"name": "own:waiting"}, **whole)
    lost: list[list[int]] = []
    note = Round.return_clients
    monkeypatch.setattr(
        Round, "return_clients", lambda self, group, reason: (lost.append(group), note(self, group, reason))
    )
    with Killer(tables, prepare_experiment(tables), pool) as workers:
        there = runs(tables, workers)
        assert workers.count == 2
    (group,) = lost
    assert BAD in group
    assert_same(runs(tables, visit_in_process), there)


def test_a_failing_client_stops_the_run_or_is_dropped(pool: Pool) -> None:
    tables = plan(model={"name": "own:raising"}, local={"batch": 1000}, run={"participation": 1.0, "rounds": 2})
    words = f"fedavg, round 1, client {BAD}: ValueError: sensor unplugged"
    with pytest.raises(ClientError, match=words) as caught:
        on_ray(tables, pool)
    assert "in unplug" in caught.value.__notes__[0], "where it was raised"
    dropping = replace(tables, run=replace(tables.run, on_failure="drop"))
    there = on_ray(dropping, pool)
    assert [run.record["dropped"] for run in there] == [{BAD: words}, {BAD: words.replace("round 1", "round 2")}]
    assert_same(runs(dropping, visit_in_process), there)


def test_a_client_that_kills_its_workers_has_failed(pool: Pool) -> None:
    """It is not run again for ever; the others are not harmed."""
    run = {"participation": 1.0, "rounds": 1, "on_failure": "drop"}
    (there,) = on_ray(plan(model={"name": "own:dying"}, local={"batch": 1000}, run=run), pool)
    assert list(there.record["dropped"]) == [BAD]
    assert there.record["dropped"][BAD].startswith(f"fedavg, round 1, client {BAD}: {DEATHS} workers died (")
    assert [part["id"] for part in there.record["clients"]] == [i for i in range(10) if i != BAD]


def test_light_clients_go_in_groups_until_a_worker_dies_of_one() -> None:
    tables = plan()
    sites = dict.fromkeys(range(8), Site(prepare_experiment(tables).task, tables.local, Key(0), 0, 8))
    now = Round(tables.method, {}, None, {}, sites, collections.deque(sites))
    group = now.next_group(3)
    assert group == [0, 1, 2]
    now.return_clients(group, "killed")
    assert not now.failures
    alone = [now.next_group(3) for _ in range(4)]
    assert alone == [[0], [1], [2], [3, 4, 5]]
    for _ in range(DEATHS):
        assert not now.failures
        now.return_clients([1], "killed")
    assert list(now.failures) == [1]
    assert "3 workers died (killed)" in now.failures[1].words
    assert list(now.waiting) == [1, 1, 6, 7]


def test_the_first_of_several_failures_is_the_one_that_is_named(pool: Pool) -> None:
    """All clients fail; whichever is back first."""
    tables = plan(local={"lr": 1e30, "clip": 0.0}, run={"participation": 1.0})
    errors = []
    for way in (lambda: runs(tables, visit_in_process), lambda: on_ray(tables, pool)):
        with pytest.raises(ClientError, match="is not finite") as caught:
            way()
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_what_a_worker_lacks_is_the_users_to_put_right(pool: Pool, tmp_path: Path) -> None:
    source = tmp_path / "here.npz"
    x, y = np.zeros((30, 4, 4), dtype=np.uint8), np.arange(30) % 3
    np.savez(source, train_x=x + y[:, None, None].astype(np.uint8), train_y=y, test_x=x, test_y=y)
    tables = plan(data={"name": str(source)}, split={"clients": 2, "kind": "iid"})
    experiment = prepare_experiment(tables)
    source.unlink()  # as on a machine that does not have it
    with pytest.raises(UserError, match=r"^data: .*here.npz does not exist"), Workers(tables, experiment, pool):
        pass
    other = replace(experiment, dataset=replace(experiment.dataset, train_y=1 - experiment.dataset.train_y))
    np.savez(source, train_x=x, train_y=y, test_x=x, test_y=y)
    with pytest.raises(UserError, match="a Ray worker has another data than"), Workers(tables, other, pool):
        pass


def test_thousands_of_clients(pool: Pool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(4000) % 4
    x = (rng.integers(0, 40, (4000, 4, 4)) + 50 * y[:, None, None]).astype(np.uint8)
    np.savez(tmp_path / "many.npz", train_x=x, train_y=y, test_x=x[:40], test_y=y[:40])
    tables = plan(
        "scaffold",
        data={"name": str(tmp_path / "many.npz")},
        split={"clients": 2000, "kind": "iid", "min_size": 1},
        run={"participation": 0.005},
        local={"batch": 2, "lr": 0.1},
    )
    here = runs(tables, visit_in_process)
    assert len(here[-1].record["cohort"]) == 10
    assert_same(here, on_ray(tables, pool))


def test_a_run_may_move_between_engines(pool: Pool, tmp_path: Path, monkeypatch, capsys) -> None:
    """Stopped on one engine, resumed on the other, and back: the same result."""
    argv = ["run", *HALF, "--method", "fedptr", "--set", "method.m=1", "--set", "method.H=2", "--rounds", "6"]
    assert main([*argv, "--out", str(tmp_path / "whole")]) == 0
    append, out = rounds_file.RoundsFile.append, str(tmp_path / "part")

    def stop(self: rounds_file.RoundsFile, record: dict[str, Any]) -> None:
        append(self, record)
        if record["round"] in (2, 4):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(rounds_file.RoundsFile, "append", stop)
    ray = ["--engine", "ray"]
    assert main([*argv, *ray, "--out", out]) == 128 + signal.SIGTERM
    assert main(["resume", out, "--engine", "local"]) == 128 + signal.SIGTERM
    assert main(["resume", out, *ray]) == 0
    assert outcome(tmp_path / "part") == outcome(tmp_path / "whole")
    err = capsys.readouterr().err
    assert "stopped after round 2; continue" in err
    assert "resuming after round 4 of 6" in err


def test_a_comparison_shares_its_workers(pool: Pool, tmp_path: Path, monkeypatch) -> None:
    taken: list[bool] = []
    take = Pool.take_worker
    monkeypatch.setattr(Pool, "take_worker", lambda self: (taken.append(bool(self.workers)), take(self))[1])
    argv = ["compare", *HALF, "--methods", "fedavg,scaffold", "--rounds", "2", "--set", "machine.workers=2"]
    assert main([*argv, "--engine", "ray", "--out", str(tmp_path / "ray")]) == 0
    assert taken == [False, False, True, True]
    assert main([*argv, "--out", str(tmp_path / "local")]) == 0
    for run in ("fedavg/seed0", "scaffold/seed0"):
        assert outcome(tmp_path / "ray" / run) == outcome(tmp_path / "local" / run)
    assert main(["resume", str(tmp_path / "ray"), "--engine", "local"]) == 0, "it is finished, on any engine"


def test_the_engine_decides_nothing() -> None:
    """A run may be resumed on another."""
    tables = plan(machine={"ray_address": "auto", "workers": 3})
    assert identity_text(tables) == identity_text(replace(tables, machine=MachinePlan(threads=1)))


@pytest.mark.parametrize(("argv", "words"), [
    (["--engine", "ray", "--ray-address", "127.0.0.1:1"], "there is no Ray cluster at 127.0.0.1:1 ("),
    (["--engine", "ray", "--ray-address", "somewhere"], "machine.ray_address must be host:port or auto, not 'somewhe"),
    (["--engine", "ray", "--ray-address", "127.0.0.1:99999"], "there is no Ray cluster at 127.0.0.1:99999 ("),
    (["--engine", "ray", "--ray-address", "HTTP"], "what listens at 127.0.0.1:"),
    (["--ray-address", "127.0.0.1:1"], "--ray-address is for --engine ray"),
    (["--engine", "rya"], "machine.engine must be one of: local, ray, not 'rya'"),
])  # fmt: skip
def test_bad_addresses_are_told_in_one_sentence(argv: list[str], words: str, tmp_path: Path, capsys) -> None:
    pytest.importorskip("ray", reason="fedptr[ray] is not installed")
    import http.server
    import threading

    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        argv = [f"127.0.0.1:{server.server_port}" if part == "HTTP" else part for part in argv]
        assert main(["run", *HALF, *argv, "--out", str(tmp_path / "out")]) == 2
        server.shutdown()
    err = capsys.readouterr().err.splitlines()[-1]
    assert err.startswith(f"fedptr: {words}")
    assert not (tmp_path / "out").exists()


def test_without_ray_it_says_what_to_install(monkeypatch, capsys) -> None:
    monkeypatch.setattr(pools.importlib.util, "find_spec", lambda name: None)
    assert main(["run", *HALF, "--engine", "ray"]) == 2
    assert capsys.readouterr().err.endswith("pip install 'fedptr[ray]'\n")


def marked(mark: str) -> list[int]:
    """Processes whose environment has this; without Ray's two agents, which take a minute to see that all is over."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found += [int(folder.name)] if b"agent" not in (folder / "cmdline").read_bytes().lower() else []
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="there is no /proc here")
def test_ctrl_c_saves_and_a_kill_leaves_no_process(tmp_path: Path) -> None:
    """A Ray of its own, as a user starts it. Ctrl-C goes to all processes of the terminal; the round is finished."""
    pytest.importorskip("ray", reason="fedptr[ray] is not installed")
    argv = ["run", *HALF, "--method", "scaffold", "--rounds", "2000", "--set", "run.eval_every=2000"]
    out, mark = tmp_path / "run", f"FEDPTR_TEST={tmp_path}"
    command = [sys.executable, "-m", "fedptr", *argv, "--engine", "ray", "--out", str(out)]
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        before = rounds_written(out)
        process = subprocess.Popen(
            command, env={**os.environ, "FEDPTR_TEST": str(tmp_path)}, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            until(lambda b=before, p=process: rounds_written(out) > b + 3 or p.poll() is not None, "the next rounds")
            assert process.poll() is None, process.communicate()[1].decode()
            assert len(marked(mark)) > 3
            (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
            err = process.communicate(timeout=PATIENCE)[1].decode()
        finally:
            process.kill()
        assert process.returncode == code, err
        assert "Traceback" not in err
        until(lambda: not marked(mark), "the end of all processes")
        command = [sys.executable, "-m", "fedptr", "resume", str(out)]
    shutil.rmtree(out)


def test_adam_schedules_and_early_stopping_agree_too(pool: Pool) -> None:
    local = {"optimiser": "adam", "lr": 0.01, "schedule": "cosine", "warmup": 1}
    tables = plan("ditto", local=local, run={"rounds": 8, "patience": 1})
    here = runs(tables, visit_in_process)
    assert_same(here, on_ray(tables, pool))
