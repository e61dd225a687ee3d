"""One node sends what it should not: it is named, what it sent is dropped, and the run goes on for everyone else."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedptr[flower]'")

from flwr.app import ConfigRecord
from simulated_nodes import Change, Lab
from small_plans import TABLES, plan_for

from fedptr.engines.flower.patches.secagg_node import RECORD
from fedptr.engines.flower.wire.parcel import Parcel
from fedptr.engines.flower.wire.records import from_records, to_records
from fedptr.errors import UserError
from fedptr.runs import plan as planning

pytestmark = pytest.mark.real

NODES = '[deploy]\nmin_nodes = 2\npoll = 0.01\npatience = 5.0\nevaluate = "nodes"\n'


def altered(kind: str, change: Callable[[dict[str, Any]], object], hostile: int = 102) -> Change:
    """A node's messages of this kind, with other words."""

    def apply(node: int, message: Any) -> Any:
        if node == hostile and message.metadata.message_type == kind:
            parcel = from_records(message.content)
            words = dict(parcel.words)
            change(words)
            message.content = to_records(Parcel(words, parcel.blocks))
        return message

    return apply


ENTRIES: dict[str, Any] = {
    "train_loss": [1.0, 2.0],
    "match_after": [1, 2],
    "cos_aux": [0.5, 0.5],
    "reach": [1.0],
    "seconds_matching": [1.0],
    "seconds_projection": ["long"],
    "target": [0.0] * 10,
    "id": 7,
    "cos_local": 1e3,
    "gamma": 10**400,
    "beta": True,
    "own": [[1.0]],
    "with space": 1.0,
}


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_of_a_log_that_does_not_fit_is_left_out_and_named(name: str, tmp_path: Path) -> None:
    lab = Lab(tmp_path, plan_for(rounds=1))
    summary = lab.serve(lab.grid(altered("train", lambda words: words["log"].update({name: ENTRIES[name]}))))
    (record,) = lab.records()
    assert [entry["id"] for entry in record["clients"]] == [0, 1, 2]
    assert "dropped" not in record
    assert record["clients"][1].get(name) != ENTRIES[name]
    (note,) = record["entries_left_out"]["1"]
    assert note.startswith("client 1 sent a")
    assert repr(name) in note
    assert (summary["entries_left_out"], summary["dropped"]) == (1, 0)


def test_a_list_for_a_matching_loss_does_not_stop_a_resume(tmp_path: Path) -> None:
    lab = Lab(tmp_path, plan_for(rounds=3))
    hostile = altered("train", lambda words: words["log"].update(match_after=[1, 2]))

    def die(node: int, message: Any) -> Any:
        if message.metadata.message_type == "train" and message.metadata.group_id == "2":
            raise MemoryError
        return hostile(node, message)

    with pytest.raises(MemoryError):
        lab.serve(lab.grid(die))
    assert lab.serve(lab.grid(hostile))["rounds"] == 3


def test_a_run_that_recorded_a_list_for_a_matching_loss_is_summarised() -> None:
    from fedptr.runs.summary import describe_matching

    clients = [{"id": 0, "match_after": [1, 2], "projection_skipped": [1]}, {"id": 1, "match_after": 0.5}]
    assert describe_matching([{"clients": clients}])["matching"] == {"times": 1, "loss": 0.5, "skipped": 0}


HELLOS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a class of 5,000 digits": lambda words: words.update(classes=["9" * 5000, "1"]),
    "100,000 classes": lambda words: words.update(classes=[f"c{k}" for k in range(100_000)]),
    "1,500 classes": lambda words: words.update(classes=words["classes"] + [f"c{k}" for k in range(1500)]),
    "two classes of one name": lambda words: words.update(classes=["a", "a"]),
    "half a character": lambda words: words.update(classes=["a", "\ud800"]),
    "std 1e300": lambda words: words.update(std=[1e300]),
    "std 1e8": lambda words: words.update(std=[1e8]),
    "std 1e-8": lambda words: words.update(std=[1e-8]),
    "mean 1e200": lambda words: words.update(mean=[1e200]),
    "mean 1e6": lambda words: words.update(mean=[1e6]),
    "mean 10**400": lambda words: words.update(mean=[10**400]),
    "another shape": lambda words: words.update(shape=[1, 9, 9]),
    "a huge shape": lambda words: words.update(shape=[1, 60_000, 60_000]),
    "a list for a name": lambda words: words.update(name=["client 1"]),
    "escapes in a name": lambda words: words.update(name="\x1b[2Jclient 1"),
    "true for a number": lambda words: words.update(number=True),
    "2**70 samples": lambda words: words.update(size=2**70),
}


@pytest.mark.parametrize("what", HELLOS)
def test_a_hello_that_does_not_fit_is_refused_and_the_others_begin(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where it is the first of them."""
    lab = Lab(tmp_path, plan_for(rounds=1))
    (tmp_path / "deploy.toml").write_text(NODES)
    lab.serve(lab.grid(altered("query", HELLOS[what], hostile=101)))
    assert lab.records()[0]["cohort"] == [1, 2]
    (reason,) = json.loads((tmp_path / "status.json").read_text())["refused"]
    assert "client 0" in reason or "number 101" in reason
    assert reason.isprintable()
    assert reason in capsys.readouterr().err
    card = json.loads((tmp_path / "model.json").read_text())
    assert len(card["classes"]) == 10


def test_nodes_of_which_none_are_alike_do_not_begin(tmp_path: Path) -> None:
    lab = Lab(tmp_path, plan_for(rounds=1))
    (tmp_path / "deploy.toml").write_text(NODES.replace("5.0", "0.3"))
    words = r"not more than half of the 2 nodes have images alike \(client 0 has 1×8×8 .*state deploy\.shape"
    with pytest.raises(UserError, match=words):
        lab.serve(lab.grid(altered("query", lambda words: words.update(shape=[1, 9, 9])), count=2))
    (tmp_path / "deploy.toml").write_text(NODES.replace("5.0", "0.3").replace("2", "1") + 'shape = "1x8x8"\n')
    lab.serve(lab.grid(altered("query", lambda words: words.update(shape=[1, 9, 9])), count=2))
    assert lab.records()[0]["cohort"] == [0]


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("\x1b]0;title\x07\nfailed [red]", "client 1 \\x1b]0;title\\x07 failed [red]"),
        (["a", "list"], "client 1 refuses without a reason"),
        ("half of \ud83d", "client 1 its words are not a JSON object"),
    ],
)
def test_the_reason_of_a_refusal_is_plain_text(reason: Any, shown: str, tmp_path: Path) -> None:
    lab = Lab(tmp_path, plan_for(rounds=1))
    lab.serve(lab.grid(altered("train", lambda words: words.update(kind="refused", reason=reason))))
    assert lab.records()[0]["dropped"] == {"1": shown}


def secure_lab(folder: Path) -> Lab:
    tables = {
        **TABLES,
        "run": {"rounds": 1, "on_failure": "drop"},
        "method": {"name": "fedavg", "weighting": "uniform"},
    }
    plan = planning.check_plan({**tables, "privacy": {"secure": True, "range": 1.0}})
    lab = Lab(folder, planning.check_plan(tables), "patience = 20.0\nmin_replies = 2\n")
    (folder / "plan.toml").write_text(plan.toml())
    return lab


def test_a_huge_header_under_secure_aggregation_takes_no_memory(tmp_path: Path) -> None:
    def change(node: int, message: Any) -> Any:
        record = message.content.config_records.get(RECORD) if message.has_content() else None
        if node == 102 and record is not None and "masked_params" in record:
            out = io.BytesIO()
            np.lib.format.write_array_header_1_0(out, {"descr": "<i8", "fortran_order": False, "shape": (10**14,)})
            record["masked_params"] = [out.getvalue(), *record["masked_params"][1:]]
        return message

    lab = secure_lab(tmp_path)
    lab.serve(lab.grid(change))
    (record,) = lab.records()
    assert record["dropped"] == {"1": "client 1 sent masked numbers of another shape"}


@pytest.mark.parametrize("words", ['{"kind": "visited", "log": 3}', "[" * 100_000, "null", '{"round": 1e999}'])
def test_words_under_secure_aggregation_leave_out_their_node_alone(words: str, tmp_path: Path) -> None:
    def change(node: int, message: Any) -> Any:
        if node == 102 and message.has_content() and "words" in message.content.config_records:
            message.content["words"] = ConfigRecord({"json": words})
        return message

    lab = secure_lab(tmp_path)
    lab.serve(lab.grid(change))
    (record,) = lab.records()
    assert [entry["id"] for entry in record["clients"]] == [0, 2]
    assert list(record["dropped"]) == ["1"]
