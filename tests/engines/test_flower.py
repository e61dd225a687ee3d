"""The Flower app in one process: the same weights as the in-process engine, and the rules when things go wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedptr[flower]'")

from same_bits import same
from simulated_nodes import Change, Lab
from small_plans import TABLES, in_process, may_stay, plan_for
from small_texts import write_texts

from fedptr.core import long_work
from fedptr.engines.flower.node.simulated_node import make_simulated_node
from fedptr.engines.flower.wire.parcel import PROTOCOL, Block, Parcel, read_parcel, write_parcel
from fedptr.engines.flower.wire.records import from_records, to_records
from fedptr.engines.flower.wire.tensors import blocks_to_state, state_to_blocks
from fedptr.errors import ReplyError, UserError
from fedptr.methods import all_methods, fedd3
from fedptr.runs import plan as planning
from fedptr.runs.summary import weights_sha256

pytestmark = pytest.mark.real


@pytest.mark.parametrize("name", all_methods())
def test_every_method_gives_the_weights_of_the_in_process_engine(
    name: str, tmp_path: Path, models: list[torch.Tensor]
) -> None:
    plan = plan_for(name)
    lab = Lab(tmp_path, plan)
    summary = lab.serve()
    runs = in_process(plan)
    assert same(models, [run.w for run in runs], still=may_stay(name))
    assert [r["test_accuracy"] for r in lab.records()] == [run.record["test_accuracy"] for run in runs]
    assert summary["evaluated"] == "server"
    assert "entries_left_out" not in summary, "nothing that an honest node records"


def test_a_round_without_training_is_no_fault(tmp_path: Path, models: list[torch.Tensor]) -> None:
    """Most rounds of this L2GD draw models together: no steps, and nothing is sent."""
    plan = planning.check_plan({**TABLES, "method": {"name": "l2gd", "p": 0.9}})
    assert Lab(tmp_path, plan, "patience = 20.0\n").serve()["dropped"] == 0
    assert same(models, [run.w for run in in_process(plan)], still=True)


def test_partial_participation_and_simulated_faults_agree_too(tmp_path: Path, models: list[torch.Tensor]) -> None:
    tables = {**TABLES, "run": {**TABLES["run"], "participation": 0.67}, "faults": {"drop": 0.2, "straggle": 0.5}}
    plan = planning.check_plan({**tables, "method": {"name": "feddc"}})
    Lab(tmp_path, plan).serve()
    assert same(models, [run.w for run in in_process(plan)])


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", ["scaffold", "fedptr"])
def test_a_server_that_is_killed_goes_on_exactly(
    name: str, every: int, tmp_path: Path, models: list[torch.Tensor]
) -> None:
    """In the middle of a round, when some nodes have trained already, and nodes are new processes afterwards."""
    plan = plan_for(name, rounds=6, checkpoint_every=every)
    lab, asked = Lab(tmp_path, plan), []

    def die(node: int, message: Any) -> Any:
        asked.append(message.metadata.message_type)
        if asked.count("train") == 3 * 4 + 2:  # in round 5
            raise MemoryError
        return message

    with pytest.raises(MemoryError):
        lab.serve(lab.grid(die))
    lab.serve()
    back = 4 if every == 1 else 3
    del models[back : len(models) - (6 - back)]  # what was done twice
    assert same(models, [run.w for run in in_process(plan)])
    assert [record["attempt"] for record in lab.records()] == [1] * back + [2] * (6 - back)


class Killed(BaseException):
    """What a kill is here: nothing catches it."""


def test_a_node_that_is_killed_goes_on_in_the_middle_of_its_distillation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server too: it asks again in another attempt. What the first client had finished is kept as well."""
    monkeypatch.setattr(long_work, "OFTEN", 0.0)
    monkeypatch.setattr(long_work, "PART", 1e9)
    plan = planning.check_plan({**TABLES, "method": {"name": "fedd3", "k": 4, "H": 6, "server_epochs": 2}})
    (whole,) = in_process(plan)
    gradient, taken = fedd3.loss_and_gradient, []

    def counted(*args: Any) -> Any:
        if len(taken) == 6 + 4:
            raise Killed
        taken.append(1)
        return gradient(*args)

    lab = Lab(tmp_path, plan)
    with monkeypatch.context() as patch:
        patch.setattr(fedd3, "loss_and_gradient", counted)
        with pytest.raises(Killed):
            lab.serve()
    again: list[int] = []
    monkeypatch.setattr(fedd3, "loss_and_gradient", lambda *args: again.append(1) or gradient(*args))
    summary = lab.serve()
    assert len(again) == 3 * 6 - 6 - 4 + 6, "the first node had answered, and is asked again"
    assert summary["weights_sha256"] == weights_sha256(whole)
    assert not list((tmp_path / "node-states").rglob("unfinished"))


def test_a_node_that_is_lost_is_named_and_taken_back(tmp_path: Path) -> None:
    lab = Lab(tmp_path, plan_for(rounds=4))
    (tmp_path / "deploy.toml").write_text(
        '[deploy]\nmin_nodes = 2\nmin_replies = 2\npoll = 0.01\nevaluate = "server"\n'
    )
    grid = lab.grid()
    rounds: list[int] = []

    def change(node: int, message: Any) -> Any:
        if message.metadata.message_type == "train" and node == 102:
            rounds.append(int(message.metadata.group_id))
            grid.offline = {103} if rounds[-1] in (1, 2) else set()  # client 2 is away in rounds 2 and 3
        return message

    grid.change = change
    lab.serve(grid)
    records = lab.records()
    gone = {"2": "client 2 is offline"}
    assert [record.get("dropped") for record in records] == [None, gone, gone, None]
    assert [len(record["clients"]) for record in records] == [3, 2, 2, 3]


def test_a_node_that_joins_in_the_middle_is_a_client_from_then_on(tmp_path: Path) -> None:
    lab = Lab(tmp_path, plan_for(rounds=3))
    (tmp_path / "deploy.toml").write_text('[deploy]\nmin_nodes = 2\npoll = 0.01\nevaluate = "nodes"\n')
    grid = lab.grid()
    grid.offline = {103}

    def change(node: int, message: Any) -> Any:
        if message.metadata.message_type == "evaluate":
            grid.offline = set()
        return message

    grid.change = change
    summary = lab.serve(grid)
    assert [record["cohort"] for record in lab.records()] == [[0, 1], [0, 1, 2], [0, 1, 2]]
    assert [record["tested"] for record in lab.records()] == [[0, 1], [0, 1, 2], [0, 1, 2]]
    assert summary["evaluated"] == "nodes"
    assert 0 < summary["accuracy"] < 1


def altered(change: Callable[[dict[str, Any], dict[str, Block]], None]) -> Change:
    """Node 102's trained replies, changed."""

    def apply(node: int, message: Any) -> Any:
        if node == 102 and message.metadata.message_type == "train":
            parcel = from_records(message.content)
            words, blocks = dict(parcel.words), dict(parcel.blocks)
            change(words, blocks)
            message.content = to_records(Parcel(words, blocks))
        return message

    return apply


def replace_w(value: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, Any], dict[str, Block]], None]:
    def change(words: dict[str, Any], blocks: dict[str, Block]) -> None:
        blocks |= state_to_blocks({"w": value(blocks_to_state(blocks)["w"])})

    return change


BAD = {
    "shape": (replace_w(lambda w: w[:-1]), "shape"),
    "dtype": (replace_w(lambda w: w.double()), "float64"),
    "nan": (replace_w(lambda w: w * torch.nan), "not finite"),
    "norm": (replace_w(lambda w: w + 1e6), "bound"),
    "missing": (lambda words, blocks: blocks.pop("delta"), "sent w, not delta, w"),
    "extra": (lambda words, blocks: blocks.update(v=blocks["w"]), "sent delta, v, w"),
    "size": (lambda words, blocks: words.update(size=10**6), "size"),
    "size type": (lambda words, blocks: words.update(size=True), "size"),
    "round": (lambda words, blocks: words.update(round=7), "round"),
    "attempt": (lambda words, blocks: words.update(attempt=0), "attempt"),
    "seconds": (lambda words, blocks: words.update(seconds=-1.0), "seconds"),
    "steps, none": (lambda words, blocks: words.update(log={}), "sound number of steps"),
    "steps, no log": (lambda words, blocks: words.update(log=[1, 2]), "sound number of steps"),
    "steps, zero": (lambda words, blocks: words["log"].update(steps=0), "sound number of steps"),
    "steps, negative": (lambda words, blocks: words["log"].update(steps=-3), "sound number of steps"),
    "steps, several": (lambda words, blocks: words["log"].update(steps=[1, 2]), "sound number of steps"),
    "steps, part": (lambda words, blocks: words["log"].update(steps=1.5), "sound number of steps"),
    "steps, many": (lambda words, blocks: words["log"].update(steps=10**15), "sound number of steps"),
    "kind": (lambda words, blocks: words.update(kind="hello"), "kind"),
    "bytes": (lambda words, blocks: blocks.update(w=Block("float32", (3,), b"12")), "bytes"),
    "object": (lambda words, blocks: blocks.update(w=Block("object", (1,), b"12345678")), "'object'"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_reply_is_dropped_and_named(what: str, tmp_path: Path) -> None:
    change, words = BAD[what]
    lab = Lab(tmp_path, plan_for(rounds=1))
    summary = lab.serve(lab.grid(altered(change)))
    (record,) = lab.records()
    assert [entry["id"] for entry in record["clients"]] == [0, 2]
    assert words in record["dropped"]["1"]
    assert record["dropped"]["1"].startswith("client 1 ")
    assert summary["dropped"] == 1


def replace_set(
    **entries: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[dict[str, Any], dict[str, Block]], None]:
    def change(words: dict[str, Any], blocks: dict[str, Block]) -> None:
        state = blocks_to_state(blocks)
        blocks |= state_to_blocks({name: made(state[name]) for name, made in entries.items()})

    return change


BAD_SETS = {
    "large": (replace_set(X=lambda X: X * 1e6), "sent 'X' of up to "),
    "many": (replace_set(X=lambda X: X.repeat(9, 1, 1, 1), Y=lambda Y: Y.repeat(9, 1)), "of up to (20, 1, 8, 8)"),
    "uneven": (replace_set(Y=lambda Y: Y[:-1]), "different numbers of rows"),
    "none": (replace_set(X=lambda X: X[:0], Y=lambda Y: Y[:0]), "of up to (20, 1, 8, 8)"),
    "labels": (replace_set(Y=lambda Y: Y[:, :-1]), "of up to (20, 10)"),
    "nan": (replace_set(X=lambda X: X * torch.nan), "not finite"),
}


@pytest.mark.parametrize("what", BAD_SETS)
def test_a_bad_set_is_dropped_and_named(what: str, tmp_path: Path) -> None:
    change, words = BAD_SETS[what]
    lab = Lab(tmp_path, plan_for("feddm", rounds=1))
    lab.serve(lab.grid(altered(change)))
    (record,) = lab.records()
    assert [entry["id"] for entry in record["clients"]] == [0, 2]
    assert words in record["dropped"]["1"]


def test_strange_diagnostics_do_not_reach_the_record(tmp_path: Path) -> None:
    strange = {"train_loss": "high", "steps": 2, "beta": [[1, "a"]], "x" * 100: 1.0, "gamma": 0.5}
    lab = Lab(tmp_path, plan_for(rounds=1))
    lab.serve(lab.grid(altered(lambda words, blocks: words.update(log=strange))))
    entry = lab.records()[0]["clients"][1]
    assert set(entry) == {"id", "gamma", "cos_local", "steps"}


def test_with_too_few_replies_a_round_does_not_count(tmp_path: Path, models: list[torch.Tensor]) -> None:
    plan = plan_for(rounds=3)
    lab, asked = Lab(tmp_path, plan, "min_replies = 3\n"), []

    def change(node: int, message: Any) -> Any:
        asked.append(message.metadata.message_type)
        if asked.count("train") == 5:
            return altered(replace_w(lambda w: w * torch.nan))(102, message)
        return message

    lab.serve(lab.grid(change))
    assert asked.count("train") == 12  # round 2 was asked twice
    assert same(models, [run.w for run in in_process(plan)])


def test_a_run_that_cannot_go_on_stops_in_one_sentence(tmp_path: Path) -> None:
    lab = Lab(tmp_path, plan_for(), "patience = 0.05\nmin_replies = 3\n")
    with pytest.raises(UserError, match=r"round 1 did not count within 0\.05 s: 2 of 3 replies .*fedptr resume"):
        lab.serve(lab.grid(altered(replace_w(lambda w: w * torch.nan))))
    with pytest.raises(UserError, match=r"2 of 3 nodes came within 0\.05 s"):
        lab.serve(lab.grid(count=2))


@pytest.mark.parametrize("rule", ["drop", "anew"])
def test_a_node_that_lost_its_state(rule: str, tmp_path: Path) -> None:
    lab = Lab(tmp_path, plan_for(rounds=4), f'lost_state = "{rule}"\n')

    def change(node: int, message: Any) -> Any:
        if node == 103 and message.metadata.message_type == "train" and message.metadata.group_id == "1":
            for path in (tmp_path / "node-states").rglob("client-1-*"):
                path.unlink()
        return message

    lab.serve(lab.grid(change))
    dropped = [record.get("dropped", {}).get("1", "") for record in lab.records()]
    assert "lost its state of round 1" in dropped[1]
    assert [bool(words) for words in dropped] == (
        [False, True, True, True] if rule == "drop" else [False, True, False, False]
    )


def test_nodes_keep_what_a_checkpoint_may_need_and_no_more(tmp_path: Path) -> None:
    Lab(tmp_path, plan_for(rounds=8)).serve()
    kept = sorted(path.name for path in (tmp_path / "node-states").rglob("client-0-*"))
    assert kept == [f"client-0-{r}-1.safetensors" for r in (6, 7, 8)]


def test_a_parcel_survives_a_stream_and_a_damaged_one_is_refused() -> None:
    state = {"w": torch.randn(5), "b": torch.tensor(True), "none": torch.zeros(0, 3), "h": torch.ones(2).bfloat16()}
    parcel = Parcel({"round": 3, "share": 1 / 3}, state_to_blocks(state))
    sent = bytearray()
    write_parcel(sent.extend, parcel)

    def receiver(data: bytes) -> Callable[[int], bytes]:
        rest = memoryview(data)

        def receive(n: int) -> bytes:
            nonlocal rest
            part, rest = bytes(rest[:n]), rest[n:]
            return part

        return receive

    got = read_parcel(receiver(bytes(sent)))
    assert got == parcel
    assert all(torch.equal(blocks_to_state(got.blocks)[name], value) for name, value in state.items())
    with pytest.raises(ReplyError):
        read_parcel(receiver(bytes(sent[:-3])))
    for damaged in (
        b"",
        b"\x01",
        b"\xff" * 16,
        bytes(8) + b"{}",
        b"\x02" + bytes(7) + b"{}",
        sent.replace(b"float32", b"object!"),
    ):
        with pytest.raises(ReplyError):
            read_parcel(receiver(bytes(damaged)))


@pytest.mark.parametrize("size", [10, 400_000])
def test_small_and_large_parcels_survive_as_records(size: int) -> None:
    parcel = Parcel({"round": 3}, state_to_blocks({"w": torch.randn(size), "c": torch.randn(size)}))
    records = to_records(parcel)
    assert set(records) == ({"parcel"} if size == 10 else {"words", "arrays"})
    assert from_records(records) == parcel


def test_a_node_of_another_protocol_says_so(tmp_path: Path) -> None:
    Lab(tmp_path, plan_for())
    node = make_simulated_node(tmp_path, 0)
    words = node.answer(Parcel({"kind": "hello", "protocol": 99})).words
    assert words == {"kind": "refused", "reason": f"speaks protocol {PROTOCOL}, not 99; install the same fedptr"}
    assert node.answer(Parcel({"kind": "dance", "protocol": PROTOCOL})).words["kind"] == "refused"


def test_nodes_train_on_tables(tmp_path: Path, models: list[torch.Tensor]) -> None:
    """Rows of a .csv with words as labels; the handshake agrees on the words."""
    draw = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)).tolist()
    rows = [f"{a},{b},{c},{'up' if a > 0 else 'down'}" for a, b, c in draw]
    (tmp_path / "points.csv").write_text("\n".join(["a,b,c,label", *rows]) + "\n")
    tables = plan_for("fedavg", rounds=2).tables()
    data = {**tables["data"], "name": str(tmp_path / "points.csv"), "subset": 0}
    plan = planning.check_plan({**tables, "data": data, "split": {**tables["split"], "alpha": 10.0}})
    lab = Lab(tmp_path, plan)
    lab.serve()
    assert [torch.equal(found, run.w) for found, run in zip(models, in_process(plan), strict=True)] == [True, True]
    assert json.loads((tmp_path / "model.json").read_text())["classes"] == ["down", "up"]


@pytest.mark.parametrize("where", ["server", "nodes"])
def test_a_run_that_stops_early_tells_so_and_stays_stopped(
    where: str, tmp_path: Path, models: list[torch.Tensor]
) -> None:
    """With Adam and a cosine: nodes compute the rates of the rounds themselves."""
    local = {**TABLES["local"], "optimiser": "adam", "lr": 0.01, "schedule": "cosine", "warmup": 1}
    free = planning.check_plan({**TABLES, "local": local, "run": {"rounds": 8}, "method": {"name": "fedavg"}})
    runs = in_process(free)
    scores = [run.record["test_accuracy"] for run in runs]
    target = max(scores[:5])
    end = 1 + next(t for t, score in enumerate(scores) if score >= target)
    plan = replace(free, run=replace(free.run, target=target))
    lab = Lab(tmp_path, plan)
    if where == "nodes":
        text = (tmp_path / "deploy.toml").read_text()
        (tmp_path / "deploy.toml").write_text(text.replace('evaluate = "server"', 'evaluate = "nodes"'))
    summary = lab.serve()
    assert same(models, [run.w for run in runs[:end]])
    assert summary["rounds"] == summary["stopped_early"]["round"] == end < 8
    assert json.loads((tmp_path / "status.json").read_text())["phase"] == "finished"
    assert lab.serve()["stopped_early"] == summary["stopped_early"], "started again, it trains no more"
    assert len(lab.records()) == end


def write_numbers(path: Path, scale: float = 1.0) -> Path:
    draw = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)).tolist()
    rows = [f"{a},{b},{c},{scale * (100 + 20 * a - 7 * b):.4f}" for a, b, c in draw]
    path.write_text("\n".join(["a,b,c,target", *rows]) + "\n")
    return path


@pytest.mark.parametrize("method", ["fedavg", "fedptr"])
def test_nodes_learn_to_predict_numbers(tmp_path: Path, models: list[torch.Tensor], method: str) -> None:
    """Rows of a .csv with numbers as labels; the handshake agrees on their mean and deviation."""
    tables = plan_for(method, rounds=2).tables()
    data = {**tables["data"], "name": str(write_numbers(tmp_path / "points.csv")), "subset": 0}
    plan = planning.check_plan({**tables, "data": data, "split": {**tables["split"], "alpha": 10.0}})
    lab = Lab(tmp_path, plan)
    lab.serve()
    assert [torch.equal(found, run.w) for found, run in zip(models, in_process(plan), strict=True)] == [True, True]
    card = json.loads((tmp_path / "model.json").read_text())
    assert card["target"] == "number"
    assert 90 < card["label_mean"] < 110
    assert 15 < card["label_std"] < 30
    assert "r2" in json.loads((tmp_path / "summary.json").read_text())


@pytest.mark.parametrize("method", ["fedavg", "fedptr"])
def test_nodes_learn_several_labels_a_sample(tmp_path: Path, models: list[torch.Tensor], method: str) -> None:
    x = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
    y = torch.stack([x[:, 0] > 0, x[:, 1] > 0, x[:, 0] + x[:, 2] > 0], 1).long()
    rows = {"train_x": x[:60], "train_y": y[:60], "test_x": x[60:], "test_y": y[60:]}
    np.savez(tmp_path / "tags.npz", **{name: value.numpy() for name, value in rows.items()})
    tables = plan_for(method, rounds=2).tables()
    data = {**tables["data"], "name": str(tmp_path / "tags.npz"), "subset": 0}
    plan = planning.check_plan({**tables, "data": data, "split": {**tables["split"], "alpha": 10.0}})
    Lab(tmp_path, plan).serve()
    assert [torch.equal(found, run.w) for found, run in zip(models, in_process(plan), strict=True)] == [True, True]
    assert json.loads((tmp_path / "model.json").read_text())["target"] == "labels"
    assert "f1" in json.loads((tmp_path / "summary.json").read_text())


@pytest.mark.parametrize("method", ["fedavg", "fedptr"])
def test_nodes_train_on_texts(method: str, tmp_path: Path, models: list[torch.Tensor]) -> None:
    """Words are hashed, so nodes agree on their numbers without a list of words."""
    write_texts(tmp_path / "texts.csv")
    tables = plan_for(method, rounds=4).tables()
    text = {"name": str(tmp_path / "texts.csv"), "subset": 0, "vocabulary": 200, "length": 10}
    matching = {"dsa": False} if method == "fedptr" else {}
    plan = planning.check_plan(
        {
            **tables,
            "data": {**tables["data"], **text},
            "model": {"name": "text-mean", "width": 8},
            "split": {**tables["split"], "alpha": 10.0},
            "method": {**tables["method"], **matching},
        }
    )
    Lab(tmp_path, plan).serve()
    assert [torch.equal(found, run.w) for found, run in zip(models, in_process(plan), strict=True)] == [True] * 4
    card = json.loads((tmp_path / "model.json").read_text())
    assert (card["text"], card["shape"], card["classes"]) == (True, [10, 200], ["bad", "good"])
