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
4. Labels are hard, fixed and class-balanced. Images are never clamped to a pixel range. `labels = "soft"` gives every
   image a number for every class, which begins at 1 for its own and 0 for others. They are learned with the images, by
   steps of `lr_label`, and nothing keeps them probabilities.
5. β = "auto" takes its first value from the trajectory: R equal steps along the first gradient would be as long as the
   matched stretch is, β = ‖w^t − w^{t−m}‖ / (R ‖∇ℓ(w^{t−m}, X)‖). From there on it is learned. Should a later matching
   begin at a loss of 1 or more, because the trajectory has changed its pace, β is found in the same way again.
6. `lr_img = "auto"` makes outer steps careful. A step that raises the loss is taken back and tried again a third as
   long; after any other the next is longer by half. Both step sizes begin at MTT's; the factor is carried over rounds.
   No step changes the images by more than 1, their own size, on average, and all of one matching see the same
   augmentations, so that their losses can be compared.
7. A set whose matching ends at `mtt_max_loss` or more mimics nothing, so nothing is projected with it until a later
   matching does better.
8. Texts are token numbers, which cannot be learned. Their auxiliary samples are word vectors, begun from those of real
   texts. The table of word vectors gets no gradient from these: it is left out of the trajectory that is matched,
   and the projected model has the global one's.
9. `matching = "gradient"` is in `fedptr.methods.ptr.by_gradient`. It computes β instead of learning it, so `beta`,
   `lr_beta` and `carry_beta` do nothing there, and R only says how many steps of β span the trajectory.
10. `starts = "segment"`: the student starts after r of R equal parts of the straight line from w^{t−m} to w^t, with r
   drawn for every outer step, and takes R − r steps. In gradient matching it is where the gradient is taken. Careful
   steps compare losses, so all of one matching have the same r.
11. With `styles` above 0 images are factorised: each class has ipc / styles base images, and each of them is shown in
    all styles. Bases are learned by steps of `lr_img` and styles by steps of `lr_style`, see
    `fedptr.methods.ptr.styles`.
12. With `ema` above 0 the projection uses X̄ ← ema·X̄ + (1 − ema)·X, updated after every matching, instead of X.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedptr.core.method import Site
from fedptr.core.task import NO_EMBED, Task
from fedptr.errors import UserError
from fedptr.methods.ptr.auxiliary import Auxiliary, MatchingSettings, reset_momentum
from fedptr.methods.ptr.by_gradient import has_rows
from fedptr.methods.ptr.matching import match_trajectory
from fedptr.methods.ptr.styles import draw_styles, show_bases
from fedptr.settings import setting
from fedptr.types import State

MEMORY = (*Auxiliary._fields, "X_mean", "trail", "seen", "matched", "loss")  # what an owner keeps
MTT_LR_IMG = 1000.0  # of the MTT paper's code


@dataclass(frozen=True)
class Trajectory:
    matching: Literal["trajectory", "gradient"] = setting(
        "trajectory",
        "how images are learned: a student on them arrives where the global model did, or their gradient points there",
    )
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
    starts: Literal["first", "segment"] = setting(
        "first", "where a student starts: at w^{t−m}, or anywhere on the straight line from there to w^t"
    )
    labels: Literal["hard", "soft"] = setting(
        "hard", "labels of the auxiliary images: fixed classes, or numbers that are learned, one for every class"
    )
    lr_label: float = setting(1.0, "step size on soft labels", ge=0)
    styles: int = setting(
        0, "factorise the images: styles in which every base image is shown, learned with these; 0 = off", ge=0, le=1000
    )
    lr_style: float = setting(1.0, "step size on styles", ge=0)
    ema: float = setting(
        0.0, "memory of the images' mean over matchings, which projects instead of them; 0 = off", ge=0, lt=1
    )
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

    @property
    def gradients_per_step(self) -> int:
        """Gradients of the images, and as many second-order products, that an outer step takes."""
        return self.R if self.matching == "trajectory" else 1

    @property
    def active(self) -> bool:
        """Whether matching is needed at all."""
        return True

    @property
    def second_derivatives(self) -> Literal["", "weights", "inputs"]:
        return "inputs" if self.active else ""

    def check(self, task: Task) -> None:
        if not self.active:
            return
        check_learnable(task, self.dsa)
        if self.matching == "gradient" and not any(map(has_rows, task.layers)):
            raise UserError(
                'method.matching = "gradient" compares the rows of weights, and this model has only parameters of one '
                'dimension; set method.matching = "trajectory"'
            )
        if self.labels == "soft" and not task.classes:
            raise UserError(
                'method.labels = "soft" learns a number for every class, and this task has none; set '
                'method.labels = "hard"'
            )
        if self.styles and not has_images(task):
            raise UserError(f"method.styles are of images, not of shapes {task.shape}; set method.styles = 0")
        if self.styles and self.images_per_class(task) % self.styles:
            raise UserError(
                f"method.styles: {self.images_per_class(task)} images per class cannot be made from base images in "
                f"{self.styles} styles each; set method.ipc to a multiple of it"
            )
        task.auxiliary_labels(1)  # a task that does not know what labels samples have says so

    def images_per_class(self, task: Task) -> int:
        return usual_ipc(getattr(task, "groups", task.classes)) if self.ipc == "auto" else self.ipc

    def memory(self, x: Tensor, site: Site) -> State:
        """An owner's state before it has seen any model."""
        bases = self.images_per_class(site.task) // max(self.styles, 1)
        X, y = auxiliary_images(site, bases, self.init == "real", x)
        factors: State = {}
        if self.styles:
            styles = draw_styles(self.styles, site.task.shape[0], site.key("aux-styles"), x)
            factors = {"bases": X, "bases_velocity": torch.zeros_like(X)}
            factors |= {"styles": styles, "styles_velocity": torch.zeros_like(styles)}
            X, y = show_bases(X, styles), y.repeat_interleave(self.styles)
        soft = {}
        if self.labels == "soft":
            soft = {"Y": one_hot(y, site.task.classes).to(x), "Y_velocity": x.new_zeros(len(y), site.task.classes)}
        return {
            **soft,
            **factors,
            **({"X_mean": X} if self.ema else {}),
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

    def count_sets(self, rounds: int) -> int:
        later = max(0, rounds - self.quick_rounds)
        return min(later, 1) if self.mtt_every == "once" else -(-later // self.mtt_every)

    @property
    def outer_steps(self) -> int:
        return self.H

    def shorten(self, steps: int) -> Self:
        return replace(self, H=steps, mtt_max_loss=sys.float_info.max)

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
            self.aux_batch, self.dsa, self.mtt_stop, self.beta == "auto", self.lr_img == "auto", self.matching,
            self.lr_label, self.starts, self.lr_style,
        )  # fmt: skip
        aux = Auxiliary(**{name: memory[name] for name in Auxiliary._fields if name in memory})
        if not self.carry_momentum:
            aux = reset_momentum(aux)
        if not self.carry_beta:
            aux = aux._replace(beta=torch.full_like(aux.beta, self.first_beta))
        start = memory["trail"][0]
        end = site.task.reachable_end(start, memory["trail"][-1])
        aux, report = match_trajectory(site.task, start, end, aux, how, site.key)
        learned = {name: part for name, part in aux._asdict().items() if part is not None}
        log = {f"match_{name}": float(value) for name, value in report._asdict().items()}
        log |= {"beta": float(aux.beta), "seconds_matching": time.perf_counter() - began}
        loss = torch.tensor(report.after, dtype=torch.float64)
        if self.ema:
            before = aux.X if int(memory["matched"]) < 0 else memory["X_mean"]
            learned["X_mean"] = torch.lerp(aux.X, before, self.ema)
        return {**memory, **learned, "matched": torch.tensor(site.round), "loss": loss}, log_entries(**log)


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
        return task.to_learnable(like, X).to(like), y.to(like.device)
    if real and site.data is not None:
        labels = site.data.labels
        for k in labels.unique().tolist():
            own = (labels == k).nonzero().flatten()
            picked = own[torch.randint(len(own), (ipc,), generator=generator)]
            X[k * ipc : (k + 1) * ipc] = task.to_learnable(like, site.data.take(picked)[0]).to(like)
    return X, y.to(like.device)


def log_entries(**values: float) -> State:
    """Diagnostics as entries that are recorded but never sent."""
    return {f"log/{name}": torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def has_images(task: Task) -> bool:
    return len(task.shape) == 3 and task.shape[1:] != (1, 1)  # the latter is a table's row


def check_learnable(task: Task, dsa: bool) -> None:
    """Refuses inputs of which no auxiliary samples can be learned, and augmentation where they are no images."""
    if dsa and not has_images(task):
        raise UserError(f"method.dsa augments images, not shapes {task.shape}; set method.dsa = false")
    if getattr(task, "tokens", 0):
        raise UserError(NO_EMBED)
