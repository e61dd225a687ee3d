"""Client-level differential privacy: what a round releases hardly depends on whether any one client takes part.

    C   clip: a client's step w_i − x is shortened to this norm
    z   noise multiplier: the sum of the steps gets Gaussian noise of standard deviation z·C
    q   the fraction of clients in a round, each drawn by its own coin flip (Poisson sampling)

    released:  x + (Σ_i clip(w_i − x) + N(0, z²C² I)) / (q·N)

The divisor is fixed, as in McMahan et al., ICLR 2018, arXiv:1710.06963: it does not depend on how many clients were
drawn or replied. The server adds the noise, and is trusted with the replies; ε protects a client from anybody who sees
the models of all rounds. It is computed by Google's dp-accounting (Rényi, add or remove one client).
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedptr.core.federation import Rounds, Run, draw_cohort
from fedptr.core.method import Method, Site
from fedptr.core.randomness import Key
from fedptr.errors import UserError
from fedptr.messages import install_command
from fedptr.privacy import secure_sums
from fedptr.settings import check_settings, setting
from fedptr.types import Reply

ORDERS = [*range(2, 65), 80, 96, 128, 192, 256, 512]  # of the Rényi divergence: integers, which always converge

SMALL_PART = 0.01  # of δ, for cohorts that are too small to be masked


@dataclass(frozen=True)
class Privacy:
    clip: float = setting(0.0, "clip a client's step to this norm C; 0 = no differential privacy", example=1.0, ge=0)
    noise: float = setting(1.0, "noise multiplier z: the sum of the steps gets noise of deviation z·C", gt=0)
    delta: float = setting(1e-5, "δ of the reported (ε, δ); choose it far below 1 / clients", gt=0, lt=1)
    randomness: Literal["system", "seed"] = setting(
        "system", "cohorts and noise from the operating system, or from run.seed: repeatable, and not private"
    )
    secure: bool = setting(False, "secure aggregation in a deployed run: the server sees only the sum of the replies")
    scores: bool = setting(False, "secure aggregation: let the server see how every client's tests went")
    range: float = setting(8.0, "secure aggregation: largest absolute value of a number in a step", gt=0)

    @property
    def hides_scores(self) -> bool:
        """Whether clients keep to themselves how their tests went."""
        return self.secure and not self.scores

    @property
    def counts_releases(self) -> bool:
        """Whether a round that is done again is another release; with noise from the seed it is the same one."""
        return bool(self.clip) and self.randomness == "system"

    def cohort(self, clients: Sequence[int], rounds: Rounds, key: Key) -> list[int]:
        """One coin flip per client, so a cohort may be empty. Without differential privacy, the usual cohort."""
        if not self.clip:
            return draw_cohort(clients, rounds, key)
        if self.secure:
            check_masked_cohorts(self, len(clients), rounds)
        coins = draw_uniform(len(clients), self.source(key), "sampling").tolist()
        return [i for i, coin in zip(clients, coins, strict=True) if coin < rounds.participation]

    def release(self, replies: list[Reply], x: Tensor, rounds: Rounds, site: Site) -> list[Reply]:
        """What the method's server sees of the replies to x: the noisy mean, once per expected reply.

        A round in which all replies are empty releases nothing, but counts towards ε as if it did.
        """
        if not self.clip or (replies and not any(reply.state for reply in replies)):
            return replies
        expected, total = rounds.participation * site.clients, torch.zeros_like(x, dtype=torch.float64)
        for reply in replies:
            total += clip_step(reply.state["w"].double() - x, self.clip)
        total += self.noise * self.clip * draw_normal(len(x), self.source(site.key)).to(x.device)
        w = (x + total / expected).to(x.dtype)
        return [Reply(-1, 1, {"w": w})] * max(1, round(expected))

    def record(self, rounds: Rounds, done: int) -> dict[str, float]:
        """The ε spent by `done` rounds."""
        return {"epsilon": compute_epsilon(rounds.participation, self.noise, done, self.delta)} if self.clip else {}

    def commit(self, run: Run) -> None:
        """Nothing is kept here; `fedptr.privacy.ledger` counts the releases of a run that has a folder."""

    def check(self, method: Method, rounds: Rounds) -> None:
        check_settings(self, "privacy")
        check_privacy(self, method, rounds)

    def source(self, key: Key) -> Key | None:
        """The source of this round's randomness; None = the operating system."""
        return key if self.randomness == "seed" else None


def clip_step(step: Tensor, C: float) -> Tensor:
    """The step, shortened to norm C if it is longer.

    >>> clip_step(torch.tensor([3.0, 4.0]), 1.0).tolist(), clip_step(torch.tensor([0.3, 0.4]), 1.0).tolist()
    ([0.6000000238418579, 0.800000011920929], [0.30000001192092896, 0.4000000059604645])
    """
    return step * min(1.0, C / max(float(step.norm()), 1e-300))


def draw_normal(n: int, key: Key | None) -> Tensor:
    """Standard normal numbers, each from four draws: the last digits of a single draw would reveal it.

    See Holohan and Braghin, ESORICS 2021, arXiv:2107.10138.
    """
    draws: Tensor = torch.special.ndtri(draw_uniform(4 * n, key, "noise"))
    return draws.view(4, n).sum(0) / 2


def draw_uniform(n: int, key: Key | None, purpose: str) -> Tensor:
    """Numbers strictly between 0 and 1, with 52 random bits each."""
    if key is None:
        bits = torch.frombuffer(bytearray(os.urandom(8 * n)), dtype=torch.int64) if n else torch.zeros(0).long()
    else:
        bits = torch.randint(-(2**63), 2**63 - 1, (n,), generator=key(f"privacy-{purpose}"))
    return ((bits >> 12).double() + 0.5) / 2**52 + 0.5


@functools.cache
def compute_epsilon(q: float, z: float, rounds: int, delta: float) -> float:
    """The ε of `rounds` rounds with sampling rate q and noise multiplier z."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    event = GaussianDpEvent(z) if q == 1 else PoissonSampledDpEvent(q, GaussianDpEvent(z))
    return float(RdpAccountant(ORDERS).compose(event, rounds).get_epsilon(delta))


def check_privacy(privacy: Privacy, method: Method, rounds: Rounds) -> None:
    """Refuses combinations that would not be private, or would not work, and says why."""
    entries = method.sends(secure_sums.make_small_site().task)
    for option in ("secure", "clip"):
        if getattr(privacy, option) and not entries:
            raise UserError(
                f"privacy.{option}: {method.name} sends nothing, so there is nothing to protect; leave the option out"
            )
    if privacy.secure and not secure_sums.sums_suffice(method):
        raise UserError(f"privacy.secure: {method.name} {explain_needs(method)}")
    if not privacy.clip:
        return
    what = f"privacy.clip: {method.name}"
    if method.answered:
        raise UserError(f"{what} asks clients for gradients besides their models, which clip does not bound")
    besides = entries.keys() - {"w"}
    if besides:
        raise UserError(f"{what} sends {', '.join(sorted(besides))} besides the model, which clip does not bound")
    if method.weighting != "uniform":
        raise UserError("privacy.clip: all clients must have the same weight; set method.weighting=uniform")
    if not secure_sums.sums_suffice(method):
        raise UserError(f"{what} {explain_needs(method)}")
    if rounds.participation < 1 and rounds.sampling != "bernoulli":
        raise UserError(
            "privacy.clip: ε is known only for cohorts drawn by a coin flip per client; set run.sampling=bernoulli"
        )
    if rounds.checkpoint_every != 1 and privacy.randomness == "system":
        raise UserError("privacy.clip: repeating a round would release it twice; set run.checkpoint_every=1")
    if importlib.util.find_spec("dp_accounting") is None:
        raise UserError(f"privacy.clip needs dp-accounting; install it with: {install_command('privacy')}")


def check_masked_cohorts(privacy: Privacy, clients: int, rounds: Rounds) -> None:
    """Refuses cohorts of which too many are too small to be masked.

    A single reply cannot be masked, so a cohort of one adds nothing. One client more makes it a cohort of two, and
    changes the sum by two steps, where ε covers one. The probability that this ever happens is part of δ, and must be a
    small part.
    """
    q = rounds.participation
    if q == 1:  # nobody is drawn
        return
    alone = (clients - 1) * q * (1 - q) ** max(clients - 2, 0)  # exactly one of the others is drawn
    if rounds.rounds * q * alone > privacy.delta * SMALL_PART:
        raise UserError(
            f"privacy.secure with privacy.clip: with {clients} clients and run.participation={q:g} a cohort of one is "
            "too likely: its reply cannot be masked, and ε does not cover that; set run.participation=1, or have more "
            "clients in a round"
        )


def explain_needs(method: Method) -> str:
    """Why the sum of the replies does not suffice for this method, and what to do."""
    task = secure_sums.make_small_site().task
    loose = [name for name, e in {**method.answers(task), **method.sends(task)}.items() if not e.summable]
    if loose:
        return f"sends {', '.join(sorted(loose))}, whose sum over clients means nothing; use another method"
    alone = "needs every client's own reply, but gets only their sum"
    if secure_sums.sums_suffice(replace(method, weighting="uniform")):
        return f"{alone}; set method.weighting=uniform, with which the sum suffices"
    return f"{alone}; use another method"
