"""`python -m fedptr.engines.flower.superexec`: Flower's SuperExec on a node, which runs our ClientApp and forks it.

See `own_client_app` and `forked_client_app` in `fedptr.engines.flower.patches`.
"""

from __future__ import annotations

import sys

from fedptr.engines.flower.patches.forked_client_app import fork_client_apps
from fedptr.engines.flower.patches.own_client_app import run_only
from fedptr.engines.flower.patches.pull_pauses import shorten_pull_pauses


def main() -> None:
    from flwr.supercore.cli import flower_superexec
    from flwr.supernode.cli import flwr_clientapp  # noqa: F401 (imported for the children)

    from fedptr.engines.flower.node import worker  # noqa: F401

    shorten_pull_pauses()
    run_own_programs()
    flower_superexec()


def run_own_programs() -> None:
    """Whatever the server sends, this process and its children run our ClientApp."""
    from fedptr.engines.flower.client_app import app

    run_only(app)
    fork_client_apps()


if __name__ == "__main__":
    sys.argv[0] = "flower-superexec"
    main()
