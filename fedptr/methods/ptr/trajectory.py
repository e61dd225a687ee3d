"""The auxiliary dataset an owner (a client, or the server) learns from the global models it has seen.

    X, y, β     the auxiliary dataset D̃ and its step size         trail    the last m+1 global models received
    seen        models received so far                            matched  round of the last matching, −1 = none
    loss        of the last matching when it ended; 0 = the student arrives, 1 = it might as well have stayed

Numbered details (the paper leaves most of these open; each is a field):
1. The trail is what its owner observed: under partial participation a client matches from the model it received m
   receptions ago. With everyone selected this is w^{t−m} → w^t. A rarely selected client's stretch covers more rounds
   while R stays the same.
2. Matching starts when m+2 models were seen (the paper's t > m), then happens every p rounds.
3. D̃ and β are carried over rounds; the momentum of their optimisers is not, as the target has changed.
4. Labels are hard, fixed and class-balanced. Images are never clamped to a pixel range.
5. β = "auto" takes its first value from the trajectory: R equal steps along the first gradient would be as long as the
   matched stretch is, β = ‖w^t − w^{t−m}‖ / (R ‖∇ℓ(w^{t−m}, X)‖). From there on it is learned. Should a later matching
   begin at a loss of 1 or more, because the trajectory has changed its pace, β is found in the same way again.
6. `lr_img = "auto"` makes outer steps careful. A step that raises the loss is taken back and tried again a third as
   long; after any other the next is longer by half. Both step sizes begin at MTT's; the factor is carried over rounds.
   No step changes the images by more than 1, their own size, on average, and all of one matching see the same
   augmentations, so that their losses can be compared.
7. A set whose matching ends at `mtt_max_loss` or more mimics nothing, so nothing is projected with it until a later
   matching does better.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedptr.core.method import Site
from fedptr.errors import UserError
from fedptr.methods.ptr.matching import Auxiliary, MatchingSettings, match_trajectory, reset_momentum
from fedptr.settings import setting
from fedptr.types import State

MEMORY = (*Auxiliary._fields, "trail", "seen", "matched", "loss")  # what an owner keeps
MTT_LR_IMG = 1000.0  # of the MTT paper's code


@dataclass(frozen=True)
class Trajectory:
    m: int = setting(2, "span of the matched trajectory, in received models", ge=1)
    H: int = setting(20, "outer steps of matching", ge=0, le=100_000)
    R: int = setting(10, "inner (student) steps of matching", ge=1, le=100_000)
    ipc: int | Literal["auto"] = setting(
        "auto", 'auxiliary images per class; "auto" = 10, from 20 classes on 2, from 200 on 1', ge=1
    )
    init: Literal["real", "noise"] = setting("real", "start from own samples where a class has any, or from noise")
    beta: float | Literal["auto"] = setting(
        0.01, 'initial student step size β; "auto" = so that R steps are as long as the trajectory', gt=0
    )
    lr_img: float | Literal["auto"] = setting(
        MTT_LR_IMG,
        'step size on the auxiliary images; "auto" = longer while the loss falls, taken back when it rises',
        ge=0,
    )
    lr_beta: float = setting(1e-5, "step size on β; 0 = β is not learned", ge=0)
    mtt_momentum: float = setting(0.5, "momentum of both matching optimisers", ge=0, lt=1)
    aux_batch: int = setting(0, "auxiliary images per student step; 0 = all", example=50, ge=0)
    dsa: bool = setting(True, "augment the auxiliary images in matching")
    mtt_every: int | Literal["once"] = setting(1, 'match every p rounds, or "once"', ge=1)
    mtt_max_loss: float = setting(1.0, "a matching that ends at this loss or above is not projected with", gt=0)
    mtt_stop: float = setting(0.0, "match until two steps do not lower the loss by this part; 0 = off", ge=0, lt=1)
    warmup: Literal["strict", "early"] = setting("strict", "first matching at t > m, or already at t = m")
    carry_beta: bool = setting(True, "keep the learned β for the next matching")
    carry_momentum: bool = setting(False, "keep the matching optimisers' momentum too")

    no_ptr: ClassVar[str] = "has a part of FedPTR already"

    @property
    def first_beta(self) -> float:
        """0 = not known before there is a trajectory."""
        return 0.0 if self.beta == "auto" else self.beta

    def memory(self, x: Tensor, site: Site) -> State:
        """An owner's state before it has seen any model."""
        if self.dsa and (len(site.task.shape) != 3 or site.task.shape[1:] == (1, 1)):  # the latter is a table's row
            raise UserError(f"method.dsa augments images, not shapes {site.task.shape}; set method.dsa = false")
        ipc = usual_ipc(site.task.classes) if self.ipc == "auto" else self.ipc
        X, y = auxiliary_images(site, ipc, self.init == "real", x)
        return {
            "X": X,
            "y": y,
            "beta": x.new_tensor(self.first_beta),
            "X_velocity": torch.zeros_like(X),
            "beta_velocity": x.new_zeros(()),
            "gain": x.new_ones(()),
            "trail": x.new_zeros(0, len(x)),
            "seen": torch.tensor(0),
            "matched": torch.tensor(-1),
            "loss": torch.tensor(0.0, dtype=torch.float64),
        }

    def receive(self, memory: State, x: Tensor, site: Site) -> tuple[State, State]:
        """The memory after one more global model, matched to it if that is due, and a log."""
        trail = torch.cat([memory["trail"][-self.m :], x[None]])  # m+1 models, and no memory for one more
        memory = {**memory, "trail": trail, "seen": memory["seen"] + 1}
        if self.warm(memory) and self.due(int(memory["matched"]), site.round):
            return self.match(memory, site)
        return memory, {}

    def warm(self, memory: State) -> bool:
        return int(memory["seen"]) > self.quick_rounds

    @property
    def quick_rounds(self) -> int:
        """The rounds before the first matching, for a client that is always there."""
        return self.m + (1 if self.warmup == "strict" else 0)

    def due(self, last: int, t: int) -> bool:
        return last < 0 or (self.mtt_every != "once" and t - last >= self.mtt_every)

    def mimics(self, memory: State) -> bool:
        """Whether the last matching was any good."""
        return not float(memory["loss"]) >= self.mtt_max_loss  # there is no loss where nothing had to be matched

    def match(self, memory: State, site: Site) -> tuple[State, State]:
        """Matches the trail's first model to its last."""
        began = time.perf_counter()
        how = MatchingSettings(
            self.H, self.R, MTT_LR_IMG if self.lr_img == "auto" else self.lr_img, self.lr_beta, self.mtt_momentum,
            self.aux_batch, self.dsa, self.mtt_stop, self.beta == "auto", self.lr_img == "auto",
        )  # fmt: skip
        aux = Auxiliary(**{name: memory[name] for name in Auxiliary._fields if name in memory})
        if not self.carry_momentum:
            aux = reset_momentum(aux)
        if not self.carry_beta:
            aux = aux._replace(beta=torch.full_like(aux.beta, self.first_beta))
        aux, report = match_trajectory(site.task, memory["trail"][0], memory["trail"][-1], aux, how, site.key)
        log = {f"match_{name}": float(value) for name, value in report._asdict().items()}
        log |= {"beta": float(aux.beta), "seconds_matching": time.perf_counter() - began}
        loss = torch.tensor(report.after, dtype=torch.float64)
        return {**memory, **aux._asdict(), "matched": torch.tensor(site.round), "loss": loss}, log_entries(**log)


def usual_ipc(classes: int) -> int:
    """The paper's 10 for Fashion-MNIST and CIFAR-10 and 2 for CIFAR-100; 1 for TinyImageNet makes that set as large."""
    return 10 if classes < 20 else 2 if classes < 200 else 1


def auxiliary_images(site: Site, ipc: int, real: bool, like: Tensor) -> tuple[Tensor, Tensor]:
    """ipc images per class of N(0,1) noise; where the site has samples of a class, own ones with replacement."""
    task, generator = site.task, site.key("aux-init")
    y = task.auxiliary_labels(ipc)
    X = torch.randn(len(y), *task.shape, generator=generator).to(like)
    if real and site.data is not None and not task.classes:
        X, y = site.data.take(torch.randint(len(site.data), (len(y),), generator=generator))
        return X.to(like), y.to(like.device)
    if real and site.data is not None:
        labels = site.data.labels
        for k in labels.unique().tolist():
            own = (labels == k).nonzero().flatten()
            picked = own[torch.randint(len(own), (ipc,), generator=generator)]
            X[k * ipc : (k + 1) * ipc] = site.data.take(picked)[0].to(like)
    return X, y.to(like.device)


def log_entries(**values: float) -> State:
    """Diagnostics as entries that are recorded but never sent."""
    return {f"log/{name}": torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
