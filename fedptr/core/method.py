"""The hooks of a method, with FedAvg's answers as their defaults, and the site at which they run.

    x       global model w^t                     w    local model
    msg     what the server sends to a client    client, server   what each keeps between rounds

A method is a frozen dataclass: its fields are the hyper-parameters, its functions are pure. A function reads and writes
nothing but its arguments. Entries named `log/…` in a message or a reply are diagnostics: recorded, never sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from fedptr.core.local_training import Local, TrainedModel, local_sgd
from fedptr.core.long_work import Workbench
from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import Task
from fedptr.plots import Look
from fedptr.settings import setting
from fedptr.types import Batch, Layer, Reply, State


@dataclass(frozen=True)
class Site:
    """A client in round t, or the server (which has no data): all that a hook may know beside its arguments."""

    task: Task
    local: Local  # its `lr` is this round's, by schedule and decay
    key: Key
    round: int  # t, counted from 0
    clients: int  # N, the clients that have data
    data: Samples | None = None
    size: int = 0  # m_i, also where the data is elsewhere
    part: float = 1.0  # of its local steps a straggler has time for
    share: float = 1.0  # ω_i = N·m_i / M: the client's size relative to the average
    numbers: int = 0  # clients are numbered below this, including those without data
    test: Samples | None = None  # the client's own test data
    bench: Workbench | None = None  # where long work is kept while it is unfinished

    @property
    def samples(self) -> Samples:
        assert self.data is not None, "there is no data at this site"
        return self.data


class Effort(NamedTuple):
    """What a visit computes, for those who estimate work and memory."""

    step: float = 1  # gradients per local step
    full: int = 0  # gradients over the client's whole set


EACH_SAMPLE = -1  # rows of an entry: as many as the client has samples


class Entry(NamedTuple):
    """One tensor of a reply."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None  # None = the model's
    summable: bool = True  # whether a sum over clients means anything
    fewer: bool = False  # whether there may be fewer rows, from one on; all such entries of a reply have as many
    plain: bool = False  # whether it is samples or labels, which are no direction in the space of models

    def up_to(self, samples: int) -> Entry:
        """The entry with its largest shape, where clients have up to this many samples."""
        return self._replace(shape=(samples, *self.shape[1:])) if self.shape[:1] == (EACH_SAMPLE,) else self

    def fits(self, shape: tuple[int, ...]) -> bool:
        if not self.fewer:
            return shape == tuple(self.shape)
        return len(shape) == len(self.shape) and shape[1:] == self.shape[1:] and 1 <= shape[0] <= self.shape[0]


class Sizes(Protocol):
    """The part of a task that decides how large a message is."""

    @property
    def layers(self) -> Sequence[Layer]: ...
    @property
    def classes(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


Owner = Literal["", "client", "server"]


class Cost(NamedTuple):
    """What is sent to a client in a round, and what is kept between rounds, in model sizes."""

    down: int = 1
    client: int = 0  # kept by every client
    server: int = 0  # kept by the server beside the global model
    each: int = 0  # kept by the server for every client besides
    duals: int = 0  # numbers that a client keeps for every sample and class besides
    trail: Owner = ""  # who keeps the last m+1 global models besides
    auxiliary: Owner = ""  # who keeps an auxiliary dataset D̃ besides

    def kept_by(self, owner: Owner) -> str:
        """In words: `m+1, D̃`, or `1 + m+1, D̃`; `2N` for N clients; `m_i·C numbers` for m_i samples of C classes."""
        own = self.client if owner == "client" else self.server
        learned = ", ".join(["m+1"] * (self.trail == owner) + ["D̃"] * (self.auxiliary == owner))
        each = f"{self.each}N" if self.each and owner == "server" else ""
        duals = f"{self.duals if self.duals > 1 else ''}m_i·C numbers" if self.duals and owner == "client" else ""
        more = [part for part in (each, duals, learned) if part]
        return " + ".join([*([str(own)] if own or not more else []), *more])


class Rule(NamedTuple):
    """A round in formulas, for tables and pages."""

    pull: str = ""  # added to ∇L_i(w)
    direction: str = ""  # of a local step, where it is not ∇L_i(w) + pull
    step: str = ""  # a local step, where it is not w ← w − η_l · direction
    start: str = "x"  # where local training starts
    where: str = ""  # what a symbol in these is
    server: str = "x ← mean of w_i"

    @property
    def local(self) -> str:
        """The direction of a local step, or the step where it has none."""
        return self.step or self.direction or "∇L_i(w)" + (f" + {self.pull}" if self.pull else "")

    def in_words(self) -> list[str]:
        """A line for each of: the start, a local step, its symbols, the server."""
        start = [f"w ← {self.start}"] if self.start != "x" else []
        step = self.step or f"w ← w − η_l · ({self.local})"
        return [*start, step, *([self.where] if self.where else []), self.server]


class Oracle(NamedTuple):
    """Where theory sees a method end on quadratics with a known optimum; `fedptr.theory.oracle` checks it."""

    row: str  # its name in the oracle's table
    ends: Literal["optimum", "optimum with everyone", "off"]
    because: str
    settings: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Method:
    """What every method extends: its fields are the hyper-parameters, its functions the hooks of a round."""

    weighting: Literal["samples", "uniform"] = setting("samples", "how the clients' models are averaged")

    # All that tables, pages, figures and tests know of a method.
    name: ClassVar[str]
    idea: ClassVar[str]  # in one line
    cite: ClassVar[str]
    family: ClassVar[str] = "other"  # methods of one family stand together in tables
    rule: ClassVar[Rule | None] = None
    look: ClassVar[Look | None] = None  # of its curves; None = a colour that no other method has
    oracle: ClassVar[tuple[Oracle, ...]] = ()
    aliases: ClassVar[tuple[str, ...]] = ()  # names that it has elsewhere
    paper_column: ClassVar[int] = 0  # in Table 1 of FedPTR's paper, from 1; 0 = it is not there
    cost: ClassVar[Cost] = Cost()
    sent: ClassVar[tuple[str, ...]] = ("w",)  # what a reply holds: tensors of the model's size
    sends_sets: ClassVar[bool] = False  # whether clients send sets of samples instead, from which the server learns
    one_shot: ClassVar[bool] = False  # whether clients are asked once: a run has one round
    answered: ClassVar[tuple[str, ...]] = ()  # what an answer to `ask` holds
    personalised: ClassVar[bool] = False  # whether clients use models of their own: set where `personal` is defined
    adapts: ClassVar[bool] = False  # whether a client makes its own model from the global one when it is asked for it
    everyone: ClassVar[bool] = False  # whether all clients must take part in every round
    needs_linear: ClassVar[bool] = False  # whether the model must be one linear layer on the inputs
    needs_classes: ClassVar[bool] = False  # whether it trains classifiers only
    needs_features: ClassVar[bool] = False  # whether it uses what the model's last linear layer is given
    measures_drift: ClassVar[bool] = False  # whether the server needs w_i − where client i's training started
    no_ptr: ClassVar[str] = ""  # why NAME+ptr is refused; "" = it is not
    laptop: ClassVar[Mapping[str, Any]] = {}  # settings that a laptop has time for, where the paper's are too costly
    sgd_only: ClassVar[str] = ""  # why another local optimiser than SGD is refused; "" = it is not
    no_augment: ClassVar[str] = ""  # why local.augment is refused; "" = it is not

    def __init_subclass__(cls) -> None:
        """A method with a name of its own does not inherit what describes its parent alone."""
        super().__init_subclass__()
        cls.personalised = cls.personal is not Method.personal
        if "name" in vars(cls):
            for entry in ("rule", "look", "oracle", "aliases", "paper_column"):
                if entry not in vars(cls):
                    setattr(cls, entry, getattr(Method, entry))
        if not cls.__doc__:
            cls.__doc__ = make_docstring(cls)

    @property
    def effort(self) -> Effort:
        return Effort()

    @property
    def second_derivatives(self) -> Literal["", "weights", "inputs"]:
        """Whether it takes second derivatives of the loss: by the weights alone, or also by inputs that it learns."""
        return ""

    def check(self, task: Task) -> None:
        """Raises a UserError where the task lacks what this method needs, before anything starts."""

    @property
    def quick_rounds(self) -> int:
        """The first rounds, which compute less than the others; for those who estimate the time left."""
        return 0

    def count_sets(self, rounds: int) -> int:
        """How many sets somebody learns who is there in this many rounds; for those who estimate a run's time."""
        return 0

    @property
    def outer_steps(self) -> int:
        """In how many steps a set is learned, where one is; for those who estimate a run's time."""
        return 0

    def shorten(self, steps: int) -> Self:
        """The same method with sets learned in this many steps, and used however bad they are; for a rehearsal."""
        return self

    @classmethod
    def cost_in_words(cls) -> dict[str, str]:
        return {
            "down": str(cls.cost.down),
            "up": "images" if cls.sends_sets else str(len(cls.sent) + len(cls.answered)),
            "client keeps": cls.cost.kept_by("client"),
            "server keeps": "images" if cls.sends_sets else cls.cost.kept_by("server"),
        }

    @classmethod
    def optimisers_in_words(cls) -> str:
        return f"sgd only: {cls.name} {cls.sgd_only}" if cls.sgd_only else "sgd, adam or adamw"

    def sends(self, task: Sizes) -> dict[str, Entry]:
        """What a client sends after training, by name."""
        return {name: Entry((task.layers[-1].stop,)) for name in self.sent}

    def answers(self, task: Sizes) -> dict[str, Entry]:
        """What a client sends when it is asked before the broadcast, by name."""
        return {name: Entry((task.layers[-1].stop,)) for name in self.answered}

    def silent(self, site: Site) -> bool:
        """Whether this is a round in which no client sends anything back."""
        return False

    def server_init(self, x: Tensor, site: Site) -> State:
        return {"x": x}

    def client_init(self, x: Tensor, site: Site) -> State:
        return {}

    def settings(self, local: Local) -> Local:
        """The plan's local settings, as this method wants them."""
        return local

    def ask(self, server: State, site: Site) -> State | None:
        """A message to the cohort that is answered before the broadcast; None = nothing is asked."""
        return None

    def answer(self, msg: State, client: State, site: Site) -> State:
        """The client's answer to what `ask` asked."""
        return {}

    def learn(self, server: State, answers: Sequence[Reply], site: Site) -> State:
        """The server's state for this round, after the answers."""
        return server

    def broadcast(self, server: State, site: Site) -> tuple[State, State]:
        """The message to every client of the cohort, and the new server state."""
        return {"x": server["x"]}, server

    def message(self, server: State, i: int) -> State:
        """What is sent to client i alone, beside the broadcast."""
        return {}

    def prepare(self, msg: State, client: State, site: Site) -> tuple[State, State]:
        """The client's work before training."""
        return msg, client

    def data(self, msg: State, client: State, site: Site) -> Samples:
        return site.samples

    def train(self, msg: State, client: State, site: Site, buffers: State) -> tuple[TrainedModel, State]:
        """The client's training, and what it keeps. `buffers` are the model's running statistics, changed in place."""

        def gradient(w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            return self.gradient(w, batch, msg, client, site)

        return local_sgd(self.start(msg, client), gradient, self.data(msg, client, site), site, buffers), client

    def start(self, msg: State, client: State) -> Tensor:
        """Where local training starts. What a method makes of the path of training is measured from here."""
        return msg["x"]

    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        """The extra gradient this method adds to the client's own; None = nothing is added."""
        return None

    def gradient(self, w: Tensor, batch: Batch, msg: State, client: State, site: Site) -> tuple[Tensor, Tensor]:
        """The direction of one local step, and the loss to record."""
        g, loss = site.task.grad(w, batch)
        pull = self.pull(w, msg, client, site)
        return (g if pull is None else g + pull), loss

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        """What is sent back after training, and what the client keeps."""
        return {"w": w}, client

    def personal(self, msg: State, client: State, site: Site) -> Tensor:
        """The model that a client would use. `msg` holds the global model x, and the client's own message."""
        return msg["x"]

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        return {**server, "x": self.mean(replies)}

    def quadratic_limit(self, A: Tensor, c: Tensor, K: int, lr: float) -> tuple[Tensor | None, Tensor] | None:
        """Where theory sees a personalised method end on client losses ½ (w − c_i)ᵀ A_i (w − c_i).

        The global model (None = it stays the initial one) and the clients' own models, row by row, when everyone takes
        K full-batch steps of size lr in every round and clients have equal weights; None = no closed form is known.
        `fedptr.theory.personal_oracle` checks it.
        """
        return None

    def mean(self, replies: Sequence[Reply], entry: str = "w") -> Tensor:
        """The weighted mean over the cohort; the weights are normalised over those who replied."""
        sizes = [reply.size if self.weighting == "samples" else 1 for reply in replies]
        total = sum(reply.state[entry] * (size / sum(sizes)) for reply, size in zip(replies, sizes, strict=True))
        assert isinstance(total, Tensor)
        return total


def make_docstring(method: type[Method]) -> str:
    """What `help` and notebooks show of a method without a docstring of its own: idea, rule, settings, citation."""
    settings = {
        name: field.metadata["doc"]
        for base in reversed(method.__mro__)
        for name, field in vars(base).get("__dataclass_fields__", vars(base)).items()
        if isinstance(field, Field) and "doc" in field.metadata
    }
    idea = getattr(method, "idea", "a base of other methods")
    parts = [
        f"{idea[0].upper()}{idea[1:]}.",
        "\n".join(f"    {line}" for line in method.rule.in_words()) if method.rule else "",
        "\n".join(["Settings:", "", *(f"    {name}: {words}" for name, words in settings.items())]),
        getattr(method, "cite", ""),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def local_change(reply: Reply, x: Tensor) -> Tensor:
    """How far a client's training moved its model: from x, or from where the client says that it started."""
    return reply.state["w"] - reply.state.get("start", x)


def mean_over_all_clients(parts: Iterable[Tensor], site: Site) -> Tensor:
    """(1/N) Σ over the cohort: how much a mean over *all* clients moves when only the cohort's parts do."""
    total = sum(parts)
    assert isinstance(total, Tensor)
    return total / site.clients
