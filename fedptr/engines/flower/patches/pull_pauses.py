"""Shorter pauses of Flower's where it has no settings for them, in the processes that are ours.

A message is announced before what it holds has arrived, and who pulls too early sleeps one second, then two, then
four, up to ten. In a round that happens at three places. Nothing else is changed, and a Flower without these values is
left as it is.
"""

from __future__ import annotations

FIRST, LONGEST = 0.05, 1.0  # seconds


def hurry() -> None:
    """Looks for the parts of a message soon, and then less and less often."""
    from flwr.supercore.inflatable import inflatable_utils

    defaults = getattr(inflatable_utils.pull_objects, "__kwdefaults__", None)
    if defaults and {"initial_backoff", "backoff_cap"} <= set(defaults):
        defaults |= {"initial_backoff": FIRST, "backoff_cap": LONGEST}
