"""Shorter pauses while the parts of a message arrive.

A message is announced before its parts are there. Whoever pulls a part too early sleeps one second, then two, then
four, up to ten; in a round that happens at three places. The defaults of `pull_objects` become 0.05 s and 1 s, in our
own processes only. Where Flower has no such defaults nothing changes: the patch is for speed, not for safety.
"""

from __future__ import annotations

from fedptr.engines.flower.patches.flower_code import FlowerCode

PULLING = "flwr.supercore.inflatable.inflatable_utils"
FLOWER = (
    FlowerCode(PULLING, "pull_objects", 208, "initial_backoff: float = PULL_INITIAL_BACKOFF,", "31bb2de46b450e6a"),
)
FIRST, LONGEST = 0.05, 1.0  # seconds


def shorten_pull_pauses() -> None:
    """Looks for the parts of a message soon, then less and less often."""
    from flwr.supercore.inflatable import inflatable_utils

    defaults = getattr(inflatable_utils.pull_objects, "__kwdefaults__", None)
    if defaults and {"initial_backoff", "backoff_cap"} <= set(defaults):
        defaults |= {"initial_backoff": FIRST, "backoff_cap": LONGEST}
