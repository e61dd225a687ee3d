"""`python -m fedptr.engines.flower.superlink`: Flower's SuperLink, which serves only nodes over the network.

See `superlink_gate`, `superlink_sizes` and `returning_nodes` in `fedptr.engines.flower.patches`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fedptr.engines.flower.patches.returning_nodes import let_nodes_return
from fedptr.engines.flower.patches.superlink_gate import install_gate
from fedptr.engines.flower.patches.superlink_sizes import limit_sizes
from fedptr.engines.flower.wire.reply_limit import make_limits_folder


def main() -> None:
    from flwr.superlink.cli import flower_superlink

    make_limits_folder(Path(os.environ.get("FLWR_HOME", ".")) / "limits")
    let_nodes_return(limit_sizes().forget)
    install_gate()
    flower_superlink()


if __name__ == "__main__":
    sys.argv[0] = "flower-superlink"
    main()
