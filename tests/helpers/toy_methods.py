"""A method that no paper has, for what engines and privacy must hold: it uses every hook beyond the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedptr.core.method import Entry, Method, Site, Sizes
from fedptr.types import Reply, State


@dataclass(frozen=True)
class Toy(Method):
    """Each client keeps a model, sends a table and whole numbers besides w, and gets a table of its own back.

    Every entry has a part in the next global model, so a difference in any of them is a difference in the weights.
    """

    name = "toy"
    idea = "all hooks at once"
    cite = "nobody"

    def sends(self, task: Sizes) -> dict[str, Entry]:
        table, whole = Entry((task.classes, 2), torch.float64), Entry((3,), torch.int64, summable=False)
        return {**super().sends(task), "table": table, "whole": whole}

    def server_init(self, x: Tensor, site: Site) -> State:
        return {"x": x, "tables": torch.zeros(site.numbers, site.task.classes, 2, dtype=torch.float64)}

    def client_init(self, x: Tensor, site: Site) -> State:
        return {"v": x + 0.01 * torch.randn(len(x), generator=site.key("toy"))}

    def message(self, server: State, i: int) -> State:
        return {"table": server["tables"][i]}

    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor:
        return (0.01 * msg["table"].sum() * (w - client["v"])).to(w)

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        table = msg["table"] / 2 + w.double()[: msg["table"].numel()].view_as(msg["table"])
        return {"w": w, "table": table, "whole": torch.tensor([steps, site.size, site.round])}, {
            "v": (w + client["v"]) / 2
        }

    def personal(self, msg: State, client: State, site: Site) -> Tensor:
        return client["v"] + (0.1 * msg["table"].sum()).to(client["v"]) * (msg["x"] - client["v"])

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        tables = server["tables"].clone()
        for reply in replies:
            tables[reply.client] = reply.state["table"]
        whole = sum(float(reply.state["whole"].sum()) for reply in replies)
        return {"x": self.mean(replies) * (1 - 1e-4 * whole / len(replies)), "tables": tables}
