"""Over TLS, a registered node can neither pass for another nor fill the server's memory: the run ends as without it."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedptr[flower]'")

from deployed_federation import Federation3, federation
from hostile_node import HostileNode, make_reply, memory_of, parts_of, session_of
from small_plans import TABLES, in_process, moving
from wait_until import PATIENCE, until

from fedptr.engines.flower.patches.superlink_sizes import TREE
from fedptr.engines.flower.setup import launch_run
from fedptr.engines.flower.setup.init_federation import add_node, read_federation, read_register
from fedptr.engines.flower.wire.reply_limit import SLACK
from fedptr.runs import plan as planning
from fedptr.runs.experiment import prepare_experiment

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.xdist_group("faults")]

if not sys.platform.startswith("linux"):
    pytest.skip("memory is read from /proc", allow_module_level=True)

LARGE = 300 << 20  # bytes
GROWTH = 150 << 20  # far more than one reply takes; without a limit it was more than 1 GB


def question_to(lab: Federation3, name: str) -> Any:
    """The metadata of a question that this node has not answered: more than an attacker can know."""
    number = int(read_register(lab.server)[name]["node"])
    signed = number - (1 << 64) if number >= 1 << 63 else number

    def find() -> Any:
        name = f"file:{lab.server / 'superlink.db'}?mode=ro"
        with contextlib.closing(sqlite3.connect(name, uri=True)) as database:
            database.row_factory = sqlite3.Row
            return database.execute("SELECT * FROM message_ins WHERE dst_node_id = ?", (signed,)).fetchone()

    row = until(find, f"a question to node {name}", every=0.2)
    asked = {key: row[key] for key in ("message_id", "group_id", "message_type", "ttl", "created_at")}
    return SimpleNamespace(
        **asked, run_id=row["run_id"] % (1 << 64), src_node_id=row["src_node_id"] % (1 << 64)
    ), number


def endless() -> Iterator[bytes]:
    for _ in range(LARGE >> 20):
        yield bytes(1 << 20)


def send_too_much(evil: HostileNode, pid: int) -> tuple[int, int]:
    """Memory of the SuperLink before and after."""
    asked = evil.wait_for_question().metadata
    before = memory_of(pid)
    reply = make_reply(asked, evil.number, parts=12, size=3 << 20)
    parts, session = parts_of(reply), session_of(evil.announce(reply))
    name = next(iter(parts))
    assert evil.push_part(reply, session, name, bytes(LARGE)).status_code == 413  # it says how much it is
    assert evil.call("push-object", None, endless()).status_code == 413  # it does not say
    assert evil.call("push-messages", None, endless()).status_code == 413
    stored = {name for name in parts if evil.push_part(reply, session, name, parts[name]).status_code == 200}
    session = session_of(evil.announce(reply))  # a reply that is announced again may not hold more
    rest = parts.keys() - stored
    stored |= {name for name in rest if evil.push_part(reply, session, name, parts[name]).status_code == 200}
    assert sum(len(parts[name]) for name in stored) <= SLACK + TREE
    evil.leave()
    return before, memory_of(pid)


def test_a_registered_node_passes_for_nobody_and_sends_no_more_than_agreed(tmp_path: Path) -> None:
    plan = planning.check_plan({**TABLES, "model": {"name": "mlp", "width": 2000}, "method": {"name": "fedavg"}})
    runs = in_process(plan)
    assert 4 * runs[-1].w.numel() > SLACK, "an honest reply must be larger than what is allowed anyway"
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(federation(tmp_path / "f", plan, prepare_experiment(plan).split))
        folder = add_node(lab.server, "evil", "digits", read_federation(lab.server))
        launch_run.register_keys(lab.server)
        evil = stack.enter_context(contextlib.closing(HostileNode(folder, lab.port)))
        evil.activate()
        command = lab.begin()
        before, after = send_too_much(evil, lab.processes["superlink"].pid)
        print(f"SuperLink: {before / 2**20:.0f} MiB before, {after / 2**20:.0f} MiB after {3 * LARGE / 2**20:.0f} MiB")
        assert after - before < GROWTH
        assert lab.log("superlink").count("was refused") >= 4
        lab.reach(1)
        with lab.frozen("a"):
            asked, number = question_to(lab, "a")
            answer = evil.announce(make_reply(asked, number))
            assert answer.status_code == 403, answer.text
            assert f"node {evil.number} pushed a reply of node {number}; it was refused" in lab.log("superlink")
        assert command.wait(PATIENCE) == 0, lab.log("command")
        assert lab.summary()["weights_sha256"] == moving(runs)
        assert lab.summary()["dropped"] == 0
