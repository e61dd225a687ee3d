"""A federation of Flower within one process: no network, and nodes that do what a test wants."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedptr.engines.flower.client_app import app
from fedptr.engines.flower.node.simulated_node import make_simulated_node
from fedptr.engines.flower.server import deployed_run as serving
from fedptr.engines.flower.wire.local_grid import LocalGrid
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.plan import Plan

Change = Callable[[int, Any], Any]


class Lab:
    """A run folder with simulated nodes."""

    def __init__(self, folder: Path, plan: Plan, rules: str = "") -> None:
        self.folder = folder
        (folder / "plan.toml").write_text(plan.toml())
        (folder / "deploy.toml").write_text(f'[deploy]\nmin_nodes = 3\nevaluate = "server"\npoll = 0.01\n{rules}')
        prepare_experiment(plan).split.save(folder / "split.json")

    def grid(self, change: Change = lambda node, message: message, count: int = 3) -> LocalGrid:
        make_simulated_node.cache_clear()  # a new process
        return LocalGrid(app, [{"partition-id": i} for i in range(count)], {"folder": str(self.folder)}, change)

    def serve(self, grid: LocalGrid | None = None) -> dict[str, Any]:
        return serving.serve_run(grid or self.grid(), self.folder)

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "rounds.jsonl").read_text().splitlines()]
