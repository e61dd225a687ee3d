"""`python -m fedptr.engines.flower.superlink`: Flower's SuperLink, which serves only nodes over the network.

See `fedptr.engines.flower.patches.superlink_gate`.
"""

from __future__ import annotations

import sys

from fedptr.engines.flower.patches.superlink_gate import install_gate


def main() -> None:
    from flwr.superlink.cli import flower_superlink

    install_gate()
    flower_superlink()


if __name__ == "__main__":
    sys.argv[0] = "flower-superlink"
    main()
