"""Which clients are left out for a while because they keep failing.

A round waits for a node that crashes, so one that crashes in every round would slow all of them down. After one failure
a client is asked again in the next round; when failures follow each other it is left out for 1, 2, 4 … rounds, at most
`LONGEST`. One good reply, and it takes part as before. A node that was offline has not failed: it is asked as soon as
it is back. Rounds that are repeated count, too, so that nobody is left out for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LONGEST = 32  # rounds


@dataclass
class Failing:
    count: int  # failures in a row
    until: int  # the turn in which it is asked again
    reason: str


class Rests:
    def __init__(self) -> None:
        self.turn = 0  # how many rounds were tried
        self.failing: dict[int, Failing] = {}

    def begin_turn(self) -> None:
        self.turn += 1

    def note_failure(self, i: int, reason: str) -> None:
        """Once in a turn: a client that fails in two questions of a round has failed once."""
        before = self.failing.get(i)
        if before is not None and before.until > self.turn:
            return
        count = 1 + (before.count if before else 0)
        self.failing[i] = Failing(count, self.turn + 1 + pause_after(count), reason)

    def note_replies(self, clients: Iterable[int]) -> None:
        for i in clients:
            self.failing.pop(i, None)

    def is_left_out(self, i: int) -> bool:
        """Not in the turn in which it failed: the reason is the failure then."""
        found = self.failing.get(i)
        return found is not None and self.turn < found.until and found.until - pause_after(found.count) <= self.turn

    def choose_to_ask(self, clients: Iterable[int], least: int) -> list[int]:
        """Those that are not left out; where these are too few, the ones that would be back soonest as well."""
        clients = list(clients)
        well = [i for i in clients if not self.is_left_out(i)]
        ill = sorted((i for i in clients if i not in well), key=lambda i: (self.failing[i].until, i))
        return sorted(well + ill[: max(0, least - len(well))])

    def describe(self, i: int) -> str:
        """In words for the record; why it failed comes last."""
        found = self.failing[i]
        left = found.until - self.turn
        rounds = "1 round" if left == 1 else f"{left} rounds"
        return f"is left out for {rounds} after {found.count} failures in a row: it {found.reason}"

    def describe_all(self) -> dict[int, str]:
        """Of all that are left out now."""
        return {i: self.describe(i) for i in sorted(self.failing) if self.is_left_out(i)}


def pause_after(failures: int) -> int:
    """
    >>> [pause_after(n) for n in (1, 2, 3, 4, 5, 20)]
    [0, 1, 2, 4, 8, 32]
    """
    return min(LONGEST, 1 << min(failures - 2, 30)) if failures > 1 else 0
