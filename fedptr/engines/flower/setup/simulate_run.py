"""`fedptr deploy simulate`: the same ServerApp and ClientApp in Flower's simulation (Ray), on this machine only.

Client i of the plan's split is a simulated node. The SuperLink is started for this run, on a free port of the loopback
interface, and ends with it. Its working folder is empty, because Ray's workers import packages from there first.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import tomli_w

from fedptr.atomic_files import write_text
from fedptr.engines.flower.server import deploy_plan
from fedptr.engines.flower.setup import launch_run, templates
from fedptr.engines.ray import pool
from fedptr.errors import UserError
from fedptr.messages import describe_last_words
from fedptr.runs import plan as planning
from fedptr.runs.experiment import draw_split, load_data
from fedptr.runs.folder import claim_folder
from fedptr.runs.progress import show_progress
from fedptr.runs.rounds_file import Record
from fedptr.runs.summary import read_finished

START = 600.0  # seconds for the SuperLink to listen, on a very busy machine


def simulate_run(path: Path, out: Path, force: bool) -> Record:
    plan = planning.check_plan(planning.read_plan(path))
    dataset = load_data(plan.data)
    split = draw_split(plan, dataset)
    out = claim_folder(out, force)
    write_text(out / "plan.toml", plan.toml())
    split.save(out / "split.json")
    rules = {"min_nodes": sum(size > 0 for size in split.sizes), "evaluate": "server"}
    write_text(out / deploy_plan.NAME, tomli_w.dumps({"deploy": rules}))
    with tempfile.TemporaryDirectory(prefix="fedptr-simulation-") as scratch:
        home = Path(scratch) / "flower"
        home.mkdir()
        write_app(Path(scratch) / "app")
        with (
            start_superlink(Path(scratch)) as port,
            show_progress(plan.method.name, plan.run.rounds, plan.method.quick_rounds) as show,
        ):
            connection = {"address": f"127.0.0.1:{port}", "insecure": True}
            links = {"default": launch_run.CONNECTION, launch_run.CONNECTION: connection}
            write_text(home / "config.toml", tomli_w.dumps({"superlink": links}))
            size = f"num-supernodes={len(split.sizes)} client-resources-num-cpus=1"
            folder = f"folder={json.dumps(str(out.absolute()))}"
            app = str(Path(scratch) / "app")
            launch_run.call_flwr(
                Path(scratch),
                "run",
                app,
                launch_run.CONNECTION,
                "--federation-config",
                size,
                "-c",
                folder,
                patience=launch_run.CONNECT,
            )
            launch_run.follow_run(out, show)
    return read_finished(out)[0]


def write_app(folder: Path) -> None:
    for name, text in templates.APP_FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_text(folder / name, text)


@contextlib.contextmanager
def start_superlink(scratch: Path) -> Iterator[int]:
    """Yields the port of a SuperLink that simulates its nodes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    empty = scratch / "empty"
    empty.mkdir()
    env = {**pool.ENV, **os.environ, **launch_run.ENV, "FLWR_HOME": str(scratch / "flower")}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}"
    command = [sys.executable, "-m", "fedptr.engines.flower.superlink", "--insecure", "--simulation"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--disable-runtime-dependency-installation"]
    with open(scratch / "log", "wb") as log:
        process = subprocess.Popen(command, env=env, cwd=empty, stdout=log, stderr=log)
    try:
        wait_for_superlink(process, port, scratch / "log")
        yield port
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_superlink(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Returns when it listens; raises with what it said last."""
    until = time.monotonic() + START
    while not is_listening(port):
        if process.poll() is not None:
            why = f"ended with exit code {process.returncode} before it listened on port {port}"
        elif time.monotonic() > until:
            why = f"did not listen on port {port} within {START:g} s"
        else:
            time.sleep(0.2)
            continue
        raise UserError(f"Flower's SuperLink {why}; {describe_last_words(log)}")


def is_listening(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
