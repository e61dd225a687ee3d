"""Clients' states in memory and on disk: the same results, every run still what it was, and nothing left behind."""

from __future__ import annotations

import copy
import gc
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from same_bits import outcome
from small_world import LOCAL, World, part_for, quick

from fedptr.cli.main import main
from fedptr.core.client_states import LEAF, PREFIX, ClientStates, StateStore
from fedptr.core.federation import Rounds, Run, federate
from fedptr.core.round_record import count_bytes
from fedptr.errors import UserError
from fedptr.methods import all_methods
from fedptr.runs.checkpoint import CheckpointStore
from fedptr.types import State

ALL = list(all_methods())
STATEFUL = ["scaffold", "fedptr"]


def runs(
    world: World, name: str, state_store: StateStore | None = None, store: CheckpointStore | None = None, **how: object
) -> list[Run]:
    rounds = Rounds(**{"rounds": 8, "participation": part_for(name, 0.5), **how})
    kept, method = [], quick(name)
    asked = (method, world.task_for(method), world.clients, world.test, rounds, LOCAL)
    for run in federate(*asked, state_store=state_store):
        kept.append(run)
        if store is not None:
            store.save(run, {})
    return kept


def equal(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


def alike(a: list[Run], b: list[Run]) -> bool:
    """Every round, to the last bit of the last client."""
    assert len(a) == len(b) > 0
    return all(
        torch.equal(x.w, y.w) and list(x.clients) == list(y.clients) and
        all(equal(x.clients[i], y.clients[i]) for i in x.clients)
        for x, y in zip(a, b, strict=True)
    )  # fmt: skip


def state(value: float, size: int = 100) -> State:
    return {"v": torch.full((size,), float(value))}


def inside(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


# Results do not depend on the budget


@pytest.mark.parametrize("name", ALL)
def test_with_everything_on_disk_all_is_the_same(name: str, world: World, tmp_path: Path) -> None:
    """And every run that was yielded is still what it was."""
    state_store = StateStore(0, tmp_path)
    assert alike(runs(world, name, state_store), runs(world, name))


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("budget", [0, 5000, math.inf])
@pytest.mark.parametrize("name", STATEFUL)
def test_checkpoints_take_nothing_from_the_runs_before(
    name: str, budget: float, every: int, world: World, tmp_path: Path
) -> None:
    """The store removes what its last two checkpoints do not need; old runs are whole, and can be resumed."""
    whole, store, kept = runs(world, name), CheckpointStore(tmp_path / "store"), []
    rounds = Rounds(rounds=8, participation=0.5)
    state_store = StateStore(budget, tmp_path)
    for run in federate(quick(name), world.task, world.clients, world.test, rounds, LOCAL, state_store=state_store):
        kept.append(run)
        if run.round % every == 0:
            store.save(run, {})
    assert alike(whole, kept)
    for run in kept[1::3]:
        rest = federate(quick(name), world.task, world.clients, world.test, rounds, LOCAL, start=run)
        assert run.round == 8 or alike(whole[run.round :], list(rest))
    assert alike(whole, kept)


def test_a_loaded_run_outlives_its_checkpoint(world: World, tmp_path: Path) -> None:
    whole, state_store = (
        runs(world, "scaffold", store=CheckpointStore(tmp_path / "store"), rounds=4),
        StateStore(0, tmp_path),
    )
    store = CheckpointStore(tmp_path / "store", state_store)
    loaded, _ = store.load(4)
    assert state_store.used <= count_bytes(next(iter(whole[0].clients.values())))  # the last one that was read
    store.adopt(loaded)
    later = []
    for run in world.runs(quick("scaffold"), rounds=9, participation=0.5, start=loaded):
        assert run.clients.store is state_store
        store.save(run, {})
        later.append(run)
    assert store.rounds() == [9, 8]
    assert alike([loaded], whole[-1:])
    assert alike(later, runs(world, "scaffold", rounds=9)[4:])


# What is where


def test_only_the_budget_and_a_cohort_are_in_memory(world: World, tmp_path: Path) -> None:
    one = count_bytes(next(iter(runs(world, "scaffold", rounds=1)[0].clients.values())))
    for budget in (0, one, 3 * one):
        state_store = StateStore(budget, tmp_path)
        rounds = Rounds(rounds=8, participation=0.5)
        for run in federate(quick("scaffold"), world.task, world.clients, None, rounds, LOCAL, state_store=state_store):
            assert state_store.used == sum(map(count_bytes, state_store.states.values())) <= budget + 2 * one
            assert all(i in run.clients for i in run.record["cohort"])
        assert len(run.clients) == 4


def test_the_least_recently_used_leaves_first(tmp_path: Path) -> None:
    state_store = StateStore(3 * 400, tmp_path)
    states = ClientStates({i: state(i) for i in range(3)}, state_store)
    states[0]
    states = states.updated({3: state(3)})
    states = states.updated({4: state(4)})
    assert [float(kept["v"][0]) for kept in state_store.states.values()] == [2, 0, 3, 4]  # the last exceeds the budget
    assert [float(states[i]["v"][0]) for i in states] == [0, 1, 2, 3, 4]
    assert state_store.used == 1200


def test_what_a_checkpoint_wrote_is_not_written_again(world: World, tmp_path: Path, monkeypatch) -> None:
    state_store, store = StateStore(0, tmp_path / "state_store"), CheckpointStore(tmp_path / "store")
    monkeypatch.setattr(Path, "write_bytes", lambda *_: pytest.fail("a state was written twice"))
    kept = runs(world, "scaffold", state_store, store)
    assert all(path.stat().st_nlink == 2 for path in (tmp_path / "store").glob("client-*"))
    assert len(inside(tmp_path / "state_store")) == sum(len(run.record["cohort"]) for run in kept)


def test_where_there_are_no_links_it_is_written(world: World, tmp_path: Path, monkeypatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    state_store = StateStore(0, tmp_path / "state_store")
    kept = runs(world, "scaffold", state_store, CheckpointStore(tmp_path / "store"))
    assert alike(kept, runs(world, "scaffold"))
    assert inside(tmp_path / "state_store")


def test_an_unlimited_store_touches_no_disk(world: World, tmp_path: Path) -> None:
    state_store = StateStore(place=tmp_path / "state_store")
    runs(world, "scaffold", state_store, CheckpointStore(tmp_path / "store"))
    assert state_store.folder is None
    assert not (tmp_path / "state_store").exists()


def test_files_go_with_the_last_run_that_needs_them(tmp_path: Path) -> None:
    state_store = StateStore(0, tmp_path)
    old = ClientStates({i: state(i) for i in range(5)}, state_store)
    new = old.updated({0: state(10), 5: state(5)}).updated({1: state(11)})
    assert len(inside(tmp_path)) == 7  # all but the newest, which has to be saved first
    assert [float(old[i]["v"][0]) for i in old] == [0, 1, 2, 3, 4]
    del old
    assert [float(new[i]["v"][0]) for i in new] == [10, 11, 2, 3, 4, 5]
    assert len(inside(tmp_path)) == 6
    del new
    assert inside(tmp_path) == []
    assert state_store.used == 0
    state_store.close()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_goes_with_the_shelf_or_the_process(tmp_path: Path) -> None:
    states = ClientStates({0: state(0)}, StateStore(0, tmp_path)).updated({1: state(1)})
    assert len(list(tmp_path.glob(f"{PREFIX}*"))) == 1
    del states
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    script = (
        "import sys, torch; from pathlib import Path; from fedptr.core.client_states import ClientStates, StateStore\n"
        "store = StateStore(0, Path(sys.argv[1]))\n"
        "states = ClientStates({i: {'v': torch.ones(9)} for i in range(9)}, store).updated({})\n"
        "assert len(list(Path(sys.argv[1]).rglob('*.safetensors'))) == 9\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_state_stops_the_run_in_one_sentence(world: World, tmp_path: Path) -> None:
    """Also where failing clients are dropped: it is not the client that failed."""
    rounds, state_store = Rounds(rounds=8, on_failure="drop"), StateStore(0, tmp_path)
    rest = federate(quick("scaffold"), world.task, world.clients, None, rounds, LOCAL, state_store=state_store)
    next(rest).clients.updated({})  # which makes room
    for path in tmp_path.rglob("*.safetensors"):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=r"does not give back a client's state .*checksum.*; check the disk, and "):
        next(rest)


# The mapping


def test_it_is_a_mapping_in_client_order() -> None:
    states = ClientStates({700: state(7), 3: state(3)}).updated({5: state(5), LEAF: state(1)})
    assert list(states) == [3, 5, LEAF, 700]
    assert len(states) == 4
    assert 5 in states
    assert 4 not in states
    assert "5" not in states
    assert states.get(4) is None
    with pytest.raises(KeyError):
        states[10**6]
    assert not ClientStates()
    assert states.keys() & {3, 4} == {3}


def test_a_question_about_who_has_a_state_reads_none(tmp_path: Path, monkeypatch) -> None:
    state_store = StateStore(0, tmp_path)
    states = ClientStates({i: state(i) for i in range(9)}, state_store).updated({})
    monkeypatch.setattr(state_store, "read", lambda number: pytest.fail("a state was read"))
    assert 3 in states
    assert len(states) == len(list(states)) == len(states.keys() & set(range(9))) == 9


def test_a_round_costs_what_its_cohort_does() -> None:
    """All leaves but the cohort's are shared, and only in those that are not is looked for changes."""
    before = ClientStates({i: state(i, 1) for i in range(10_000)})
    after = before.updated({i: state(-1, 1) for i in (7, 8, 5000)})
    assert sum(after.leaves[k] is not before.leaves[k] for k in before.leaves) == 2
    assert after.changed(before) == [7, 8, 5000]
    assert before.changed(before) == []
    assert before.changed(ClientStates()) == list(range(10_000))
    assert float(before[7]["v"]) == 7
    assert float(after[7]["v"]) == -1
    assert after[9] is before[9]


def test_copies_stand_alone(tmp_path: Path) -> None:
    states = ClientStates({i: state(i) for i in range(5)}, StateStore(0, tmp_path)).updated({})
    copies = [pickle.loads(pickle.dumps(states)), copy.deepcopy(states)]  # noqa: S301
    states.store.close()
    for other in copies:
        assert [float(other[i]["v"][0]) for i in other] == [0, 1, 2, 3, 4]
        assert other.store.budget == math.inf


def test_clients_may_visit_in_threads(tmp_path: Path) -> None:
    states = ClientStates({i: state(i) for i in range(40)}, StateStore(3 * 400, tmp_path)).updated({})
    wrong: list[int] = []

    def visit(seed: int) -> None:
        for i in torch.randint(40, (300,), generator=torch.Generator().manual_seed(seed)).tolist():
            if float(states[i]["v"][0]) != i:
                wrong.append(i)

    threads = [threading.Thread(target=visit, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert states.store.used == sum(map(count_bytes, states.store.states.values())) <= 1200


# From the command line

STOP = """
import os, signal, sys
from fedptr.cli import main as cli
from fedptr.runs import checkpoint
save, number = checkpoint.CheckpointStore.save, signal.Signals[sys.argv[1]]
def stop(self, run, header):
    save(self, run, header)
    if run.round == 4: os.kill(os.getpid(), number)
checkpoint.CheckpointStore.save = stop
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "every", "method"), [
    ("SIGKILL", 1, "fedptr"), ("SIGKILL", 2, "scaffold"), ("SIGTERM", 1, "scaffold"),
])  # fmt: skip
def test_a_run_from_disk_that_was_killed_ends_as_one_from_memory(
    how: str, every: int, method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matching = [f"method.{key}={value}" for key, value in {"H": 1, "R": 2, "ipc": 1, "m": 1}.items()]
    fixed = ["machine.threads=1", f"run.checkpoint_every={every}", *(matching if method == "fedptr" else ())]
    argv = ["run", "--model", "mlp", "--width", "8", "--batch", "32", "--method", method, "--participation", "0.5"]
    argv += ["--rounds", "6", *(part for item in fixed for part in ("--set", item))]
    assert main([*argv, "--out", str(tmp_path / "whole")]) == 0
    part = tmp_path / "part"
    command = [sys.executable, "-c", STOP, how, *argv, "--set", "machine.client_memory=0", "--out", str(part)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGTERM), done.stderr
    assert bool(list((part / "checkpoint").glob(f"{PREFIX}*/*"))) == (how == "SIGKILL")  # what a kill leaves behind
    newest = sorted((part / "checkpoint").glob("client-*-4.safetensors"))[0]
    newest.write_bytes(newest.read_bytes()[:-1])
    assert main(["resume", str(part)]) == 0
    assert f"using the checkpoint of round {4 - every}, as a newer one is damaged" in capsys.readouterr().err
    assert outcome(part) == outcome(tmp_path / "whole")
    assert not list((part / "checkpoint").glob(f"{PREFIX}*"))


def test_what_a_kill_left_can_be_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        "run",
        "--model",
        "mlp",
        "--width",
        "8",
        "--rounds",
        "1",
        "--method",
        "fedavg",
        "--set",
        "machine.threads=1",
    ]
    assert main([*argv, "--out", str(tmp_path / "out")]) == 0
    (tmp_path / "out" / "checkpoint" / f"{PREFIX}x").mkdir()
    (tmp_path / "out" / "checkpoint" / f"{PREFIX}x" / "3.safetensors").write_bytes(b"")
    assert main([*argv, "--out", str(tmp_path / "out"), "--force"]) == 0
