"""`fedptr deploy run`, and `fedptr resume` of a deployed run: hands the run to the SuperLink and follows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import tomli_w

from fedptr.atomic_files import write_text
from fedptr.engines.flower.server import deploy_plan, status_file
from fedptr.engines.flower.setup import certificates
from fedptr.engines.flower.setup.init_federation import REGISTER, REMOVED, read_federation, read_register
from fedptr.errors import UserError
from fedptr.runs.lock import is_folder_in_use
from fedptr.runs.plan import load_plan
from fedptr.runs.rounds_file import Record, whole_lines

CONNECTION = "fedptr"
ENV = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
LOST = 20.0  # seconds without a server in the run folder before it counts as dead
START = 300.0  # seconds for Flower to start the server
CONNECT = 60.0  # seconds for a SuperLink to answer a registration or a run


def write_run_folder(server: Path, out: Path) -> None:
    """Writes the plan, and the rules with absolute paths."""
    plan, rules = load_plan(server), deploy_plan.read_deploy_plan(server)
    deploy_plan.check_evaluation(plan, rules.deploy)
    home = server.absolute() / "flower"
    nodes = str(server.absolute() / rules.flower.nodes) if rules.flower.nodes else ""
    link = replace(rules.flower, home=str(home), app=str(server.absolute() / "app"), nodes=nodes)
    write_text(out / "plan.toml", plan.toml())
    write_text(out / deploy_plan.NAME, tomli_w.dumps({"deploy": asdict(rules.deploy), "flower": asdict(link)}))


def submit_run(out: Path) -> None:
    """Registers new keys, and starts the run on the SuperLink."""
    link = deploy_plan.read_deploy_plan(out).flower
    if not link.app:
        raise UserError(f"{out} was simulated; repeat it with `fedptr deploy simulate`, or `fedptr run` its plan")
    server = Path(link.app).parent
    write_flower_config(server, Path(link.home))
    if link.nodes:
        register_keys(server)
    folder = f"folder={json.dumps(str(out.absolute()))}"
    call_flwr(server, "run", link.app, CONNECTION, "--run-config", folder, patience=CONNECT)


def write_flower_config(server: Path, home: Path) -> None:
    """Flower's own configuration, for this machine only."""
    federation = read_federation(server)
    secure = {"insecure": True} if federation.insecure else {"root-certificates": str(server.absolute() / "ca.crt")}
    connection = {"address": f"127.0.0.1:{federation.port}", **secure}
    home.mkdir(mode=0o700, exist_ok=True)
    write_text(home / "config.toml", tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: connection}}))


def register_keys(server: Path) -> None:
    """Tells the SuperLink the keys of all nodes, and notes Flower's number of each."""
    known = read_register(server)
    for name, entry in known.items():
        if entry["node"] is None:
            found = call_flwr(
                server,
                "supernode",
                "register",
                str(server.absolute() / "keys" / f"{name}.pub"),
                CONNECTION,
                "--name",
                name,
                patience=CONNECT,
            )
            entry["node"] = str(found["node-id"])
            write_text(server / REGISTER, json.dumps(known, indent=1) + "\n")


def remove_node(server: Path, name: str) -> None:
    """Unregisters a node's key; its number stays taken, so that nobody else gets it in a run that goes on."""
    known = read_register(server)
    if name not in known or known[name]["node"] == REMOVED:
        raise UserError(f"there is no node {name} in {server / REGISTER}; it has {', '.join(known)}")
    if known[name]["node"] is not None:
        call_flwr(server, "supernode", "unregister", known[name]["node"], CONNECTION, patience=CONNECT)
    known[name]["node"] = REMOVED
    write_text(server / REGISTER, json.dumps(known, indent=1) + "\n")
    (server / "keys" / f"{name}.pub").unlink(missing_ok=True)


def rotate_key(server: Path, name: str) -> Path:
    """A new key for a node, also for one that was removed; the old one is of no use afterwards."""
    known = read_register(server)
    if name not in known:
        raise UserError(f"there is no node {name} in {server / REGISTER}; it has {', '.join(known)}")
    if known[name]["node"] != REMOVED:
        remove_node(server, name)
        known = read_register(server)
    folder = server.parent / "nodes" / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in ("key", "key.pub"):
        (folder / old).unlink(missing_ok=True)
    (server / "keys" / f"{name}.pub").write_bytes(certificates.make_node(folder, name))
    known[name]["node"] = None
    write_text(server / REGISTER, json.dumps(known, indent=1) + "\n")
    register_keys(server)
    return folder / "key"


def call_flwr(server: Path, *arguments: str, patience: float = 0) -> dict[str, Any]:
    """Calls Flower's command line; returns its JSON answer, or raises its complaint in one sentence.

    `patience`: seconds in which a SuperLink that does not answer is asked again, as on a busy machine.
    """
    until = time.monotonic() + patience
    command = [str(Path(sys.executable).with_name("flwr")), *arguments, "--format", "json"]
    env = {**os.environ, **ENV, "FLWR_HOME": str((server / "flower").absolute())}
    done = subprocess.run(command, env=env, cwd=server, capture_output=True, text=True, check=False)
    text = done.stdout[done.stdout.find("{") :] if "{" in done.stdout else "{}"
    try:
        answer = json.loads(text)
    except ValueError:
        answer = {}
    if done.returncode or not answer.get("success", True):
        words = answer.get("error-message") or done.stderr.strip() or done.stdout.strip()
        last = " ".join(str(words).split())[-400:]
        if "is unavailable" in last and time.monotonic() < until:
            time.sleep(1)
            return call_flwr(server, *arguments, patience=until - time.monotonic())
        raise UserError(
            f"`flwr {arguments[0]}` failed: {last}; is the SuperLink running? see `fedptr deploy check {server}`"
        )
    return dict(answer)


def follow_run(out: Path, show: Callable[[Record], None]) -> None:
    """Shows rounds as they come until the run is finished; raises if it stops."""
    began = time.time()
    shown, alive = len(whole_lines(out)), began + START
    while True:
        new = whole_lines(out)
        for line in new[shown:]:
            show(json.loads(line))
        shown = max(shown, len(new)) if len(new) >= shown else len(new)
        now = status_file.read_status(out)
        fresh = now.get("at", 0) >= began
        if fresh and now["phase"] == "finished":
            return
        if fresh and "problem" in now:
            raise UserError(now["problem"])
        if is_folder_in_use(out):
            alive = time.time() + LOST
        elif time.time() > alive:
            raise UserError(f"the server of {out} has ended; see Flower's log, then resume with `fedptr resume {out}`")
        time.sleep(0.5)
