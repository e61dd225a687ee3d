"""A real federation on the loopback interface: processes of Flower, TLS, node keys. Used by test_deploy_real.py."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from wait_until import PATIENCE, end_of, until

from fedptr.data.split import Split
from fedptr.engines.flower.setup import launch_run
from fedptr.engines.flower.setup.init_federation import Federation, init_federation
from fedptr.runs.plan import Plan
from fedptr.runs.rounds_file import whole_lines

T = TypeVar("T")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Federation3:
    """A server and nodes a, b, c (and d, which is started when a test wants it), each with a part of the digits."""

    def __init__(self, folder: Path, plan: Plan, split: Split, insecure: bool = False, **rules: Any) -> None:
        self.folder, self.server, self.run = folder, folder / "server", folder / "server" / "run"
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        nodes = dict.fromkeys("abcd"[: len(split.clients)], "digits")
        rules = {"min_nodes": 3, "evaluate": "server", "poll": 0.1, **rules}
        init_federation(folder, plan, Federation("localhost", self.port, insecure, 30), nodes, rules)
        for number, name in enumerate(nodes):
            split.save(folder / "nodes" / name / "split.json")
            tables = {
                "node": {"name": name, "number": number, "split": "split.json"},
                "data": {"name": "digits", "subset": plan.data.subset},
                "machine": {"device": "cpu", "threads": 1},
            }
            (folder / "nodes" / name / "node.toml").write_text(tomli_w.dumps(tables))
            script = folder / "nodes" / name / "supernode.sh"  # a free port instead of 9100 and so on
            script.write_text(script.read_text().replace(f"--port {9100 + number}", f"--port {free_port()}"))

    def start(self, what: str, script: Path) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{what}.log", "ab") as log:
            process = subprocess.Popen([str(script)], stdout=log, stderr=log, start_new_session=True)
        self.processes[what] = process
        return process

    def start_server(self) -> None:
        process = self.start("superlink", self.server / "superlink.sh")
        self.until(lambda: self.listens() or process.poll() is not None, f"a SuperLink on port {self.port}")
        words = f"the SuperLink ended with {process.returncode}{end_of(self.folder / 'superlink.log')}"
        assert process.poll() is None, words

    def start_node(self, name: str) -> None:
        self.start(name, self.folder / "nodes" / name / "supernode.sh")

    def listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def kill(self, what: str, number: int = signal.SIGKILL, alone: bool = False) -> None:
        """The process and, as a machine that loses power would, all it started."""
        process = self.processes.pop(what)
        if number == signal.SIGKILL and not alone:
            for child in descendants(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
        process.wait(PATIENCE)

    @contextlib.contextmanager
    def frozen(self, what: str) -> Iterator[None]:
        """A node whose worker computes nothing for a while; its connection stays."""
        below = descendants(self.processes[what].pid)
        (worker,) = [pid for pid in below if b"flower.node.worker" in command_of(pid)]
        os.kill(worker, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(worker, signal.SIGCONT)

    def train(self, plan: Plan, name: str) -> None:
        """A run of its own, to its end."""
        (self.server / "plan.toml").write_text(plan.toml())
        self.run = self.server / f"run-{name}"
        done = self.command("deploy", "run", str(self.server), "--out", str(self.run))
        assert done.wait(PATIENCE) == 0, self.log("command")

    def begin(self) -> subprocess.Popen[bytes]:
        """`fedptr deploy run`, in the background."""
        return self.command("deploy", "run", str(self.server))

    def command(self, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self.folder / "command.log", "ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "fedptr", *arguments], stdout=log, stderr=log)
        self.processes["command"] = process
        return process

    def rounds(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in whole_lines(self.run)]

    def until(self, true: Callable[[], T], what: str) -> T:
        """Waits; where it does not come, the message has the ends of all logs."""
        return until(true, what, logs=sorted(self.folder.glob("*.log")))

    def reach(self, round_: int) -> None:
        self.until(lambda: len(self.rounds()) >= round_, f"round {round_}")

    def summary(self) -> dict[str, Any]:
        self.until(lambda: (self.run / "summary.json").exists(), "the end of the run")
        return dict(json.loads((self.run / "summary.json").read_text()))

    def log(self, what: str) -> str:
        return (self.folder / f"{what}.log").read_text(errors="replace")

    def close(self) -> None:
        for what in list(self.processes):
            with contextlib.suppress(Exception):
                self.kill(what)


def descendants(pid: int) -> list[int]:
    """Children, theirs, and so on; the worker, which has a session of its own, is found by whom it waits for."""
    found = [int(child) for task in Path(f"/proc/{pid}/task").glob("*") for child in children_of(task)]
    mark = f"FEDPTR_NODE_PID={pid}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes().split(b"\0") and path.parent.name != str(pid):
                found.append(int(path.parent.name))
    return found + [below for child in found for below in descendants(child) if below not in found]


def command_of(pid: int) -> bytes:
    """Empty if it has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def children_of(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:
        return []


@contextlib.contextmanager
def federation(folder: Path, plan: Plan, split: Split, nodes: str = "abc", **rules: Any) -> Iterator[Federation3]:
    """With the SuperLink running, the keys registered and these nodes started."""
    lab = Federation3(folder, plan, split, **rules)
    try:
        lab.start_server()
        launch_run.write_flower_config(lab.server, lab.server / "flower")
        if not rules.get("insecure"):
            launch_run.register_keys(lab.server)
        for name in nodes:
            lab.start_node(name)
        yield lab
    except BaseException:
        keep = os.environ.get("FEDPTR_KEEP_LOGS")
        if keep:
            shutil.copytree(folder, Path(keep) / folder.name, dirs_exist_ok=True)
        raise
    finally:
        lab.close()
