"""A node runs our ClientApp, whatever app the server sent.

Flower sends an app with every run and executes it on the nodes: whoever has the server runs any program on them. With
this patch the app is neither unpacked nor loaded. A node runs the fedptr that is installed on it and nothing else; a
Flower in which that is not certain is refused.
"""

from __future__ import annotations

import importlib
from typing import Any

from fedptr.engines.flower.patches.flower_code import FlowerCode, refuse_flower

PROCESS = "flwr.supernode.runtime.run_clientapp"
FLOWER = (
    FlowerCode(PROCESS, "run_clientapp", 155, "install_from_fab(fab.content, skip_prompt=True)", "6ce09559f3a2f5dc"),
    FlowerCode(PROCESS, "run_clientapp", 180, "load_client_app_fn = get_load_client_app_fn(", "6ce09559f3a2f5dc"),
    FlowerCode(
        "flwr.clientapp.utils",
        "get_load_client_app_fn",
        37,
        ") -> Callable[[str, str, str], ClientApp]:",
        "f7790dd641bafaff",
    ),
)


def run_only(app: Any) -> None:
    """In this process and its children Flower's ClientApp process takes `app` for the one that was sent."""
    process = importlib.import_module(PROCESS)  # its package has a function of the same name
    ours = {"install_from_fab": lambda *_, **__: None, "get_load_client_app_fn": lambda **_: lambda *_: app}
    if not all(callable(getattr(process, name, None)) for name in ours):
        refuse_flower()
    for name, function in ours.items():
        setattr(process, name, function)
