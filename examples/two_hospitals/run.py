"""Two hospitals on this machine: one server, two nodes, TLS and keys. See README.md.

Usage: python examples/two_hospitals/run.py [DIR]      (default: runs/hospitals)
       python examples/two_hospitals/run.py --data DIR     (only writes the hospitals' data, for compose.yaml)
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

HERE = Path(__file__).parent
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
HOSPITALS = {"north": range(6), "south": range(4, 10)}
FEDPTR = [sys.executable, "-m", "fedptr"]


def write_data(folder: Path) -> None:
    """Writes a file for each hospital: its own images, and the names of its classes, which it numbers from 0."""
    folder.mkdir(parents=True, exist_ok=True)
    x, y = load_digits(return_X_y=True)
    images, owner = (x * 15).astype(np.uint8).reshape(-1, 8, 8), np.arange(len(y)) % 2
    for k, (name, classes) in enumerate(HOSPITALS.items()):
        mine = np.flatnonzero((owner == k) & np.isin(y, classes))
        labels = y[mine] - classes[0]
        cut = len(mine) * 4 // 5
        train, test = slice(0, cut), slice(cut, None)
        parts = {"train_x": images[mine][train], "train_y": labels[train]}
        parts |= {"test_x": images[mine][test], "test_y": labels[test]}
        np.savez(folder / f"{name}.npz", classes=np.array([NAMES[c] for c in classes]), **parts)


def run_fedptr(*arguments: str | Path) -> None:
    print("$ fedptr", *arguments, flush=True)
    subprocess.run([*FEDPTR, *map(str, arguments)], check=True)


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_script(script: Path, log: Path) -> subprocess.Popen[bytes]:
    print(f"$ {script} &", flush=True)
    with open(log, "wb") as file:
        return subprocess.Popen([script], stdout=file, stderr=file)


def wait_for_port(port: int) -> None:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the SuperLink did not start; see superlink.log")


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    write_data(folder)
    port, federation = find_free_port(), folder / "federation"
    nodes = ",".join(f"{name}={folder / name}.npz" for name in HOSPITALS)
    run_fedptr("deploy", "init", federation, HERE / "plan.toml", "--nodes", nodes, "--port", str(port))
    os.environ["FEDPTR_BIN"] = str(Path(sys.executable).parent)
    running = [start_script(federation / "server" / "superlink.sh", folder / "superlink.log")]
    try:
        wait_for_port(port)
        run_fedptr("deploy", "register", federation / "server")
        for name in HOSPITALS:
            running.append(start_script(federation / "nodes" / name / "supernode.sh", folder / f"{name}.log"))
            run_fedptr("deploy", "check", federation / "nodes" / name)
        run_fedptr("deploy", "run", federation / "server")
        run_fedptr("status", federation / "server" / "run")
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(20)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--data"]:
        write_data(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/hospitals").absolute())
