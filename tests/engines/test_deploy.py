"""`fedptr deploy` without a network: what init writes, what check finds, and how nodes with own data are taken in."""

from __future__ import annotations

import json
import shutil
import socket
import stat
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedptr[flower]'")

from flwr.app import Message
from flwr.clientapp import ClientApp
from wait_until import PATIENCE, until

from fedptr.cli.main import main
from fedptr.engines.flower.node import node_plan, worker
from fedptr.engines.flower.node.node import Node
from fedptr.engines.flower.server import status_file
from fedptr.engines.flower.server.deployed_run import serve_run
from fedptr.engines.flower.setup import certificates as keys
from fedptr.engines.flower.setup import check_folder as checking
from fedptr.engines.flower.setup.init_federation import (
    Federation,
    add_node,
    init_federation,
    read_federation,
    read_register,
)
from fedptr.engines.flower.setup.show_status import show_status
from fedptr.engines.flower.wire.agreement import Offer, combine_moments, make_agreement
from fedptr.engines.flower.wire.local_grid import LocalGrid
from fedptr.engines.flower.wire.parcel import PROTOCOL, Parcel
from fedptr.engines.flower.wire.records import from_records, to_records
from fedptr.engines.flower.wire.tensors import state_to_blocks
from fedptr.errors import UserError
from fedptr.runs import plan as planning
from fedptr.runs.plan import Plan

pytestmark = pytest.mark.real

PLAN: dict[str, Any] = {
    "run": {"rounds": 2, "on_failure": "drop"},
    "model": {"name": "mlp", "width": 8},
    "local": {"batch": 8, "lr": 0.05},
    "machine": {"threads": 1, "device": "cpu"},
    "method": {"name": "scaffold"},
}


def plan(**tables: Any) -> Plan:
    return planning.check_plan({**PLAN, **tables})


def own_data(path: Path, classes: list[str], side: int = 8, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    y = np.arange(24) % len(classes)
    x = rng.integers(0, 255, (24, side, side), dtype=np.uint8)
    np.savez(path, train_x=x, train_y=y, test_x=x[:8], test_y=y[:8], classes=np.array(classes))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A federation of north and south, whose classes differ."""
    data = {
        "north": str(own_data(tmp_path / "n.npz", ["cat", "dog"])),
        "south": str(own_data(tmp_path / "s.npz", ["dog", "eel"], seed=1)),
    }
    init_federation(
        tmp_path / "f", plan(), Federation("localhost", 45999, False, 90), data, {"min_nodes": 2, "poll": 0.01}
    )
    return tmp_path / "f"


def grid_of(folder: Path, *names: str) -> LocalGrid:
    """The nodes of a deploy folder, in this process."""
    known: dict[str, Node] = {}
    app = ClientApp()

    @app.query()
    @app.train()
    @app.evaluate()
    def answer(message: Message, context: Any) -> Message:
        place = context.node_config["folder"]
        if place not in known:
            known[place] = Node(node_plan.read_node_plan(Path(place)))
        return Message(to_records(known[place].answer(from_records(message.content))), reply_to=message)

    return LocalGrid(app, [{"folder": str(folder / "nodes" / name)} for name in names], {})


def run_folder(folder: Path, tmp_path: Path, rules: str = "", register: dict[str, Any] | None = None) -> Path:
    out = tmp_path / "run"
    out.mkdir(exist_ok=True)
    (out / "plan.toml").write_text((folder / "server" / "plan.toml").read_text())
    nodes = ""
    if register is not None:
        (tmp_path / "nodes.json").write_text(json.dumps(register))
        nodes = f'[flower]\nnodes = "{tmp_path / "nodes.json"}"\n'
    (out / "deploy.toml").write_text(f"[deploy]\nmin_nodes = 2\npoll = 0.01\npatience = 0.3\n{rules}\n{nodes}")
    return out


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_units_are_sound(folder: Path) -> None:
    for unit in folder.glob("*/**/*.service"):
        text = unit.read_text().replace(f"/opt/fedptr/{unit.parent.name}", str(unit.parent))  # where nodes put it
        unit.write_text(text)
        done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_private_keys_are_private_and_everything_is_there(folder: Path) -> None:
    private = [folder / "server" / "ca.key", folder / "server" / "server.key", folder / "nodes" / "north" / "key"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in private] == [0o600] * 3
    assert stat.S_IMODE((folder / "nodes" / "north").stat().st_mode) == 0o700
    assert keys.is_signed_by(folder / "server" / "server.crt", folder / "server" / "ca.crt")
    assert set(read_register(folder / "server")) == {"north", "south"}
    for script in (folder / "server" / "superlink.sh", folder / "nodes" / "south" / "supernode.sh"):
        text = script.read_text()
        assert "FLWR_TELEMETRY_ENABLED=0" in text
        assert "--insecure" not in text
    assert not list(folder.glob("server/keys/*[!b]"))
    with pytest.raises(UserError, match="already holds something"):
        init_federation(folder, plan(), Federation("localhost", 1, False, 30), {"a": ""}, {})


def test_a_node_imports_no_model_that_it_does_not_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`init` writes the plan's own model into node.toml; what a server asks for later is another matter."""
    monkeypatch.chdir(tmp_path)
    make = "from torch.nn import *\ndef make(shape, classes): return Sequential(Flatten(), Linear(64, classes))\n"
    for name in ("hospital_model", "other_model"):
        (tmp_path / f"{name}.py").write_text(f"open({name!r}, 'w').close()\n{make}")
    data = own_data(tmp_path / "data.npz", ["cat", "dog"])
    ours = plan(model={"name": "hospital_model:make"})
    init_federation(tmp_path / "f", ours, Federation("localhost", 1, True, 30), {"a": str(data)}, {})
    node = Node(node_plan.read_node_plan(tmp_path / "f" / "nodes" / "a"))
    agreed = make_agreement([node.make_offer()], ()).to_words()

    def order(asked: Plan) -> Parcel:
        site = {"client": 0, "clients": 1, "numbers": 1, "size": node.size, "share": 1.0, "part": 1.0, "round": 0}
        which = {"experiment": "0" * 16, "attempt": 1, "base": None, "floor": 0, "purpose": "evaluate"}
        words = {"kind": "visit", "protocol": PROTOCOL, "plan": asked.toml(), "agreement": agreed, **site, **which}
        return Parcel(words, state_to_blocks({"x": torch.zeros(64 * 2 + 2)}))

    other = plan(model={"name": "other_model:make"})
    assert node.answer(order(ours)).words["kind"] == "visited"
    assert "other_model:make, which node.models" in node.answer(order(other)).words["reason"]
    assert [Path(name).exists() for name in ("hospital_model", "other_model")] == [True, False]
    folder = node.plan.folder
    assert list(checking.check_own_models(folder)) == [(True, "the model hospital_model:make: 130 parameters")]
    text = (folder / "node.toml").read_text()
    (folder / "node.toml").write_text(text.replace("hospital_model:make", "hospital_model:make, missing:make"))
    (_, (well, words)) = checking.check_own_models(folder)
    assert not well
    assert "'missing:make' cannot be imported" in words


def test_insecure_says_so_loudly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "init", str(tmp_path / "f"), "--nodes", "a,b", "--insecure"]) == 0
    assert "INSECURE" in capsys.readouterr().err
    for path in ("README.md", "server/superlink.sh", "nodes/a/supernode.sh"):
        assert "INSECURE" in (tmp_path / "f" / path).read_text()
    assert main(["deploy", "check", str(tmp_path / "f" / "server")]) == 2
    assert "WRONG INSECURE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nodes", "a/b"], "'a/b' cannot be a node's name"),
        (["--nodes", ","], "--nodes names no node"),
        (["--nodes", "a", "--set", "deploy.min_node=1"], "did you mean deploy.min_nodes?"),
        (["--nodes", "a", "--set", "method.lma=1"], "did you mean method.lam?"),
        (["--nodes", "a,b,a"], "--nodes names a node twice"),
        (["--nodes", "a", "--host", ""], "--host '' is no name or address"),
        (["--nodes", "a", "--host", "a b"], "--host 'a b' is no name or address"),
        (["--nodes", "a", "--port", "99999"], "--port must be at most 65535, not 99999"),
        (["--nodes", "a", "--days", "0"], "--days must be from 1 to 36500, not 0"),
        (["--nodes", "a", "--days", "99999999"], "--days must be at most 36500"),
    ],
)
def test_a_mistake_is_one_sentence(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", "init", str(tmp_path / "f"), *options]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "f").exists(), "the mended command would be refused"


def test_data_that_is_not_there_yet_has_a_place_in_the_nodes_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["deploy", "init", "f", "--nodes", "anna,ben=train", "--set", "model.name=mlp"]) == 0
    assert node_plan.read_node_plan(tmp_path / "f" / "nodes" / "anna").data.name == "data"
    assert node_plan.read_node_plan(tmp_path / "f" / "nodes" / "ben").data.name == str(tmp_path / "train")
    capsys.readouterr()
    assert main(["deploy", "check", "f/nodes/anna"]) == 2
    place = Path("f/nodes/anna")
    words = f"WRONG the node's data: there is no data at {place / 'data'} yet; put an image folder"
    assert words in (said := capsys.readouterr().out)
    assert f"or name its place in {place / 'node.toml'}" in said


def test_check_finds_what_is_wrong(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, north = folder / "server", folder / "nodes" / "north"

    def wrong(place: Path) -> list[str]:
        checking.check_folder(place)
        lines = capsys.readouterr().out.splitlines()
        return [line.removeprefix("WRONG ") for line in lines if line.startswith("WRONG")]

    assert [line[:34] for line in wrong(server)] == ["127.0.0.1:45999 does not answer (C"]
    assert [line[:34] for line in wrong(north)] == ["localhost:45999 does not answer (C"]
    (north / "key").chmod(0o644)
    (north / "node.toml").write_text((north / "node.toml").read_text().replace("n.npz", "gone.npz"))
    found = wrong(north)
    assert "gone.npz" in found[0]
    assert f"chmod 600 {north / 'key'}" in found[1]
    (server / "server.crt").unlink()
    (server / "server.key").unlink()
    keys.make_server(server, ["elsewhere.example"], 3)
    (server / "deploy.toml").write_text((server / "deploy.toml").read_text().replace("min_nodes = 2", "min_nodes = 5"))
    found = wrong(server)
    assert found[0] == "deploy.min_nodes is 5, and 2 nodes are known"
    assert found[1] == "server.crt is for elsewhere.example, and nodes go to localhost"
    assert found[2].startswith("server.crt is good for 2 more days")
    with pytest.raises(UserError, match="neither a server's nor a node's folder"):
        checking.check_folder(folder)


@pytest.mark.parametrize("content", [b"", b"rubbish"])
def test_check_looks_into_keys(content: bytes, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, north = folder / "server", folder / "nodes" / "north"
    for place, name, words in (
        (north, "key", "private key: key is missing, or no private key"),
        (north, "ca.crt", "certificate: ca.crt is missing, or no certificate"),
        (server, "server.crt", "server.crt is missing, or no certificate"),
        (server, "ca.crt", "ca.crt is missing, or no certificate"),
        (server, "server.key", "private key: server.key is missing, or no private key"),
        (server, "keys/north.pub", "public key of node north: north.pub is missing, or no public key"),
        (north, "node.toml", "does not say node.name" if not content else "is not"),
    ):
        kept = (place / name).read_bytes()
        (place / name).write_bytes(content)
        assert checking.check_folder(place) == 2
        lines = capsys.readouterr().out.splitlines()
        assert any(line.startswith("WRONG") and words in line for line in lines), (name, lines)
        (place / name).write_bytes(kept)
    (server / "server.key").unlink()
    (server / "server.crt").rename(server / "kept.crt")
    keys.make_server(server, ["localhost"], 90)
    (server / "kept.crt").rename(server / "server.crt")
    checking.check_folder(server)
    assert "WRONG server.key belongs to server.crt" in capsys.readouterr().out


def test_organisations_with_different_classes_train_together(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run_folder(folder, tmp_path)
    summary = serve_run(grid_of(folder, "north", "south"), out)
    assert summary["rounds"] == 2
    assert summary["dropped"] == 0
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [record["tested"] for record in records] == [[0, 1], [0, 1]]
    from safetensors.torch import load_file

    assert load_file(out / "weights.safetensors")["5.weight"].shape[0] == 3  # cat, dog and eel
    assert show_status(out, watch=False) == 0
    told = capsys.readouterr().out
    assert "finished · 2 of 2 rounds done" in told
    assert "north" in told


def test_status_shows_nodes_that_are_connected_between_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run is finished, but its nodes wait for the next one: the SuperLink knows them."""
    out = run_folder(folder, tmp_path)
    serve_run(grid_of(folder, "north", "south"), out)
    rules = (out / "deploy.toml").read_text() + f'[flower]\napp = "{folder / "server" / "app"}"\n'
    (out / "deploy.toml").write_text(rules)
    first, second = [node["node"] for node in status_file.read_status(out)["nodes"]]
    answers: list[dict[str, Any]] = []
    monkeypatch.setattr("fedptr.engines.flower.setup.show_status.call_flwr", lambda *_: answers.pop())

    def online() -> dict[str, list[str]]:
        assert show_status(out, watch=False) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        return {cells[1]: cells[3:] for cells in lines if cells[1:2] in (["north"], ["south"])}

    answers.append({"nodes": [{"node-id": first, "status": "online"}, {"node-id": second, "status": "offline"}]})
    found = online()
    assert found["north"] == ["yes", "now"]
    assert found["south"][0] == "no"
    assert "ago" in found["south"]

    def refuse(*_: object) -> dict[str, Any]:
        raise UserError("the SuperLink does not answer")

    monkeypatch.setattr("fedptr.engines.flower.setup.show_status.call_flwr", refuse)
    assert [cells[0] for cells in online().values()] == ["no", "no"]


@pytest.mark.parametrize(
    ("classes", "side", "rules", "words"),
    [
        (["dog", "eel"], 9, 'shape = "1x8x8"', "node south was refused: it has images of 1×9×9, not fitting: 1×8×8"),
        (["dog", "eel"], 8, 'classes = "cat,dog"', "node south was refused: it has the class 'eel'"),
    ],
)
def test_a_node_that_does_not_fit_is_refused_by_name(
    classes: list[str], side: int, rules: str, words: str, folder: Path, tmp_path: Path
) -> None:
    own_data(tmp_path / "s.npz", classes, side)
    out = run_folder(folder, tmp_path, rules)
    with pytest.raises(UserError, match=r"1 of 2 nodes came within 0\.3 s"):
        serve_run(grid_of(folder, "north", "south"), out)
    refused = json.loads((out / "status.json").read_text())["refused"]
    assert any(reason.startswith(words) for reason in refused)


def test_a_late_node_with_a_new_class_is_refused(folder: Path, tmp_path: Path) -> None:
    out = run_folder(folder, tmp_path)
    add_node(
        folder / "server", "west", str(own_data(tmp_path / "w.npz", ["cow", "dog"])), read_federation(folder / "server")
    )
    grid = grid_of(folder, "north", "south", "west")
    grid.offline = {103}

    def change(node: int, message: Any) -> Any:
        grid.offline = set()
        return message

    (out / "plan.toml").write_text(plan(run={"rounds": 3, "on_failure": "drop"}).toml())
    grid.change = lambda node, message: change(node, message) if message.metadata.message_type == "train" else message
    serve_run(grid, out)
    (reason,) = json.loads((out / "status.json").read_text())["refused"]
    assert "node west has the class 'cow', which is not among the agreed ones: cat, dog, eel" in reason


def test_a_node_cannot_pass_for_another(folder: Path, tmp_path: Path) -> None:
    register = {"north": {"number": 0, "node": "101"}, "other": {"number": 1, "node": "102"}}
    out = run_folder(folder, tmp_path, register=register)
    with pytest.raises(UserError, match="1 of 2 nodes"):
        serve_run(grid_of(folder, "north", "south"), out)
    refused = json.loads((out / "status.json").read_text())["refused"]
    assert any("calls itself south (number 1) with the key of other (number 1)" in reason for reason in refused)


def test_moments_of_all_images_together() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(k, 1 + k, (20 + k, 1)) for k in range(3)]
    offers = [Offer("", len(p), ("a",), (1, 1, 1), (float(p.mean()),), (float(p.std()),)) for p in parts]
    mean, std = combine_moments(offers)
    pooled = np.concatenate(parts)
    np.testing.assert_allclose([mean[0], std[0]], [pooled.mean(), pooled.std()])
    assert make_agreement(offers[:1] * 2).mean == offers[0].mean  # exactly


def test_the_worker_stays_and_answers_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real process and a real socket, in a folder that nobody else may enter."""
    north = folder / "nodes" / "north"
    hello = Parcel({"kind": "hello", "protocol": PROTOCOL, "experiment": "e"})
    sleeper = subprocess.Popen(["sleep", "infinity"])
    monkeypatch.setenv(worker.PID, str(sleeper.pid))
    try:
        first = worker.ask_worker(north, hello).words
        assert (first["name"], first["size"], first["classes"]) == ("north", 24, ["cat", "dog"])
        assert stat.S_IMODE((north / worker.PRIVATE).stat().st_mode) == 0o700
        assert worker.ask_worker(north, hello).words == first
        assert worker.ask_worker(north, Parcel({"kind": "?", "protocol": PROTOCOL})).words["kind"] == "refused"
    finally:
        sleeper.kill()
        sleeper.wait()
    until(
        lambda: not listening(north / worker.PRIVATE), "the end of the worker, which outlives its SuperNode otherwise"
    )
    worker.started.pop().wait(PATIENCE)


def listening(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as stream:
        return worker.try_to_connect(stream, place)
