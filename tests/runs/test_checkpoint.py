"""Checkpoints: what is kept, what a damaged one does, and what a client that stayed away costs."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from damaged_files import damage
from small_world import LOCAL, World, quick

import fedptr
from fedptr import Rounds, Run, atomic_files
from fedptr.atomic_files import DamagedFileError
from fedptr.runs.checkpoint import CheckpointStore


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def saved(world: World, tmp_path: Path):
    runs = world.runs(quick("scaffold"), rounds=6, participation=0.5)
    store = CheckpointStore(tmp_path)
    for run in runs:
        store.save(run, {"plan": "p"})
    return tmp_path, runs


def test_only_the_cohort_is_written(world: World, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for run in world.runs(quick("scaffold"), rounds=5, participation=0.5):
        store.save(run, {})
        written = {
            name for name in files(tmp_path) if name.startswith("client") and name.endswith(f"-{run.round}.safetensors")
        }
        assert written == {f"client-{i}-{run.round}.safetensors" for i in run.record["cohort"]}


def test_saving_in_the_library_works_as_documented(world: World, tmp_path: Path, monkeypatch) -> None:
    """The lines of docs/own.md, run twice: the second time they continue."""
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "own.md").read_text(encoding="utf-8")
    (lines,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "CheckpointStore" in code]
    whole, starts = world.runs(quick("scaffold"), rounds=5), []

    def federate(*arguments: Any, start: Run | None) -> Iterator[Run]:
        starts.append(start.round if start else 0)
        return fedptr.federate(*arguments, start=start)

    names: dict[str, Any] = {"fedptr": fedptr, "federate": federate, "method": quick("scaffold"), "task": world.task}
    names |= {"clients": world.clients, "test": world.test, "local": LOCAL}
    for rounds in (3, 5):
        exec(lines, names | {"rounds": Rounds(rounds=rounds)}, found := {})
    assert starts == [0, 3]
    assert torch.equal(found["run"].w, whole[-1].w)
    store = CheckpointStore("checkpoints/mine")
    assert store.rounds() == [5, 4], "what was saved by the first is pruned too"
    (store.folder / "server-5.safetensors").write_bytes(b"")
    newest = CheckpointStore(str(store.folder)).load_newest()
    assert newest is not None
    assert newest.round == 4
    (store.folder / "server-4.safetensors").write_bytes(b"")
    with pytest.raises(DamagedFileError, match=r"server-5\.safetensors"):
        CheckpointStore(store.folder).load_newest()
    assert CheckpointStore("nowhere").load_newest() is None


def test_the_last_two_are_kept_and_nothing_else(saved) -> None:
    folder, runs = saved
    store = CheckpointStore(folder)
    assert store.rounds() == [6, 5]
    needed = {f"client-{i}-{max(r.round for r in runs[:stop] if i in r.record['cohort'])}.safetensors"
              for stop in (5, 6) for i in runs[stop - 1].clients}  # fmt: skip
    assert files(folder) == needed | {"server-5.safetensors", "server-6.safetensors"}
    for stop in (5, 6):
        run, header = store.load(stop)
        assert torch.equal(run.w, runs[stop - 1].w)
        assert all(torch.equal(run.clients[i]["c_i"], runs[stop - 1].clients[i]["c_i"]) for i in runs[stop - 1].clients)
        assert header["plan"] == "p"


def test_pruning_goes_on_after_a_resume(saved, world: World) -> None:
    folder, _runs = saved
    store = CheckpointStore(folder)
    run, _ = store.load(6)
    store.adopt(run)
    for later in world.runs(quick("scaffold"), rounds=9, participation=0.5, start=run):
        store.save(later, {})
    assert store.rounds() == [9, 8]
    store.load(8), store.load(9)
    assert len(files(folder)) <= 2 + 2 * 4


def test_a_missing_client_file_is_noticed(saved) -> None:
    """A client without a file would silently start again."""
    folder, _ = saved
    next(folder.glob("client-*-6.safetensors")).unlink()
    with pytest.raises(DamagedFileError, match="cannot be read"):
        CheckpointStore(folder).load(6)


def test_a_client_file_under_another_name_is_noticed(saved) -> None:
    folder, runs = saved
    a, b = (folder / f"client-{i}-6.safetensors" for i in runs[-1].record["cohort"])
    b.write_bytes(a.read_bytes())
    with pytest.raises(DamagedFileError, match="is of client"):
        CheckpointStore(folder).load(6)


def test_another_format_is_refused(saved) -> None:
    folder, _ = saved
    tensors, header = atomic_files.read_tensors(folder / "server-6.safetensors")
    atomic_files.write_tensors(folder / "server-6.safetensors", tensors, {**header, "format": "99"})
    with pytest.raises(DamagedFileError, match="format '99'"):
        CheckpointStore(folder).load(6)


def test_a_thousand_mutations_are_all_noticed(saved) -> None:
    """Never another exception, and never a state that differs from what was saved."""
    folder, runs = saved
    rng = random.Random(0)
    whole = {path: path.read_bytes() for path in folder.iterdir()}
    noticed = 0
    for _ in range(1000):
        path = rng.choice(sorted(whole))
        changed = damage(whole[path], rng)
        path.write_bytes(changed)
        for stop in (5, 6):
            try:
                run, _ = CheckpointStore(folder).load(stop)
            except DamagedFileError:
                noticed += 1
                continue
            assert torch.equal(run.w, runs[stop - 1].w)
            assert all(torch.equal(run.clients[i]["c_i"], s["c_i"]) for i, s in runs[stop - 1].clients.items())
        path.write_bytes(whole[path])
    assert noticed > 900  # the rest hit a file that one of the two does not need, or undid itself


def test_other_files_under_a_checkpoints_name(saved, capsys) -> None:
    """A client's file in the place of the server's, and digits that are none."""
    folder, runs = saved
    client = next(iter(folder.glob("client-*"))).read_bytes()
    for name in ("server-²", "server-007", "server-x", "server-", "server--1"):
        (folder / f"{name}.safetensors").write_bytes(client)
    (folder / "server-9").write_bytes(client)
    assert CheckpointStore(folder).rounds() == [6, 5]
    (folder / "server-7.safetensors").write_bytes(client)
    (folder / "server-4.safetensors").write_bytes(client)
    store = CheckpointStore(folder)
    run = store.load_newest()
    assert run is not None
    assert run.round == 6
    assert torch.equal(run.w, runs[-1].w)
    with pytest.raises(DamagedFileError, match="format 'unknown'"):
        store.load(7)
    atomic_files.write_tensors(folder / "server-7.safetensors", {}, {"format": "1", "round": "7"})
    with pytest.raises(DamagedFileError, match="does not say which clients"):
        store.load(7)


def test_the_same_content_is_the_same_file() -> None:
    """safetensors writes its metadata in any order."""
    header = {f"name {k}": "é" * k for k in range(9)}
    files = {atomic_files.pack_tensors({"w": torch.arange(3), "é": torch.ones(2, 2)}, header) for _ in range(20)}
    assert len(files) == 1
    tensors, told = atomic_files.unpack_tensors(files.pop())
    assert told == header
    assert tensors["w"].tolist() == [0, 1, 2]
