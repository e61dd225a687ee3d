"""FedPTR in one file, to read next to the paper (Chen, Cao, Wang et al., arXiv:2312.14380).

    python examples/fedptr_minimal.py [ROUNDS]          needs only torch and scikit-learn
    w^t    global model, a flat vector        X, y, β   client i's auxiliary dataset D̃_i, its labels and step size
    w̃      projected model, `target`          d_j       w_j − w̃_j, for each parameter tensor j

Simple rather than fast: matching keeps the graph of all R student steps. The package computes the same without it, and
tests/test_examples.py keeps the two equal. Left out: DSA, partial participation, recovery from a diverged matching.
"""

import hashlib
import json
import sys
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Generator, Tensor, nn
from torch.func import functional_call

Data = tuple[Tensor, Tensor]
Auxiliary = tuple[Tensor, Tensor, Tensor]  # X, y, β


class Settings(NamedTuple):
    lr: float = 0.05  # η_l, of local training
    momentum: float = 0.5  # ρ, of local training
    batch: int = 32
    m: int = 2  # the matched trajectory is w^{t−m} → w^t
    H: int = 5  # outer steps of matching, on X and β
    R: int = 5  # inner steps of matching, of the student
    ipc: int = 5  # auxiliary images per class
    beta: float = 0.01  # β before the first matching
    lr_img: float = 1000.0
    lr_beta: float = 1e-5
    mtt_momentum: float = 0.5
    K: int = 5  # projection steps
    eta: float = 0.01  # η, of the projection
    lam: float = 0.05  # λ


def seed_stream(*name: int | str) -> Generator:
    """Random numbers by name: a draw does not depend on the draws before it."""
    digest = hashlib.blake2b(json.dumps(name).encode(), digest_size=8).digest()
    return Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def loss_gradient(model: nn.Module, w: Tensor, x: Tensor, y: Tensor, create_graph: bool = False) -> Tensor:
    w = w if create_graph else w.detach().requires_grad_()
    parts = w.split([p.numel() for p in model.parameters()])
    named = {name: part.view_as(p) for (name, p), part in zip(model.named_parameters(), parts, strict=True)}
    loss = nn.functional.cross_entropy(functional_call(model, named, (x,)), y)
    return torch.autograd.grad(loss, w, create_graph=create_graph)[0]


def make_auxiliary(x: Tensor, y: Tensor, classes: int, s: Settings, noise: Generator) -> Auxiliary:
    """D̃_i at the start: client i's own images of the classes it has, noise for the others."""
    X = torch.randn(classes * s.ipc, *x.shape[1:], generator=noise).to(x)
    for k in y.unique().tolist():
        own = x[y == k]
        X[k * s.ipc : (k + 1) * s.ipc] = own[torch.randint(len(own), (s.ipc,), generator=noise)]
    return X, torch.arange(classes).repeat_interleave(s.ipc), x.new_tensor(s.beta)


def match_trajectory(model: nn.Module, w_start: Tensor, w_end: Tensor, aux: Auxiliary, s: Settings) -> Auxiliary:
    """MTT: H steps on X and β, so that R steps of the student lead from w_start to w_end."""
    X, y, beta = aux[0].clone().requires_grad_(), aux[1], aux[2].clone().requires_grad_()
    sgd = torch.optim.SGD([{"params": X, "lr": s.lr_img}, {"params": beta, "lr": s.lr_beta}], momentum=s.mtt_momentum)
    for _ in range(s.H):
        w = w_start.clone().requires_grad_()
        for _ in range(s.R):
            w = w - beta * loss_gradient(model, w, X, y, create_graph=True)
        L = (w - w_end).square().sum() / (w_start - w_end).square().sum()
        X.grad, beta.grad = torch.autograd.grad(L, (X, beta))
        sgd.step()
        beta.data.clamp_(min=1e-6)  # a negative step size would make the student climb
    return X.detach(), y, beta.detach()


def project_model(model: nn.Module, w: Tensor, aux: Auxiliary, s: Settings) -> Tensor:
    """w̃: K steps of gradient descent from the global model on D̃_i."""
    for _ in range(s.K):
        w = w - s.eta * loss_gradient(model, w, aux[0], aux[1])
    return w


def local_sgd(model: nn.Module, w: Tensor, target: Tensor | None, data: Data, order: Generator, s: Settings) -> Tensor:
    """One epoch of the client's SGD on L_i(w) + Σ_j (λ_j/2)‖w_j − w̃_j‖², from w̃ once there is one."""
    w, velocity, sizes = w if target is None else target, torch.zeros_like(w), [p.numel() for p in model.parameters()]
    for rows in torch.randperm(len(data[1]), generator=order).split(s.batch):
        g = loss_gradient(model, w, data[0][rows], data[1][rows])
        if target is not None:  # λ_j d_j, λ_j = λ/max(‖d_j‖, ε); with ε = η_l·λ one plain step never goes past w̃_j
            d = (w - target).split(sizes)
            g = g + torch.cat([d_j * (s.lam / d_j.norm().clamp(min=s.lr * s.lam)) for d_j in d])
        velocity = s.momentum * velocity + g
        w = w - s.lr * velocity
    return w


def run_fedptr(clients: list[Data], test: Data, model: nn.Module, rounds: int, seed: int, s: Settings) -> list[Tensor]:
    """The global models w^0 … w^T."""
    w = [nn.utils.parameters_to_vector(model.parameters()).detach()]
    classes, total = int(test[1].max()) + 1, sum(len(y) for _, y in clients)
    aux = [make_auxiliary(*xy, classes, s, seed_stream(seed, "client", i, "aux-init")) for i, xy in enumerate(clients)]
    for t in range(rounds):
        w.append(torch.zeros_like(w[t]))
        for i, data in enumerate(clients):
            aux[i] = match_trajectory(model, w[t - s.m], w[t], aux[i], s) if t > s.m else aux[i]
            target = project_model(model, w[t], aux[i], s) if t > s.m else None
            w_i = local_sgd(model, w[t], target, data, seed_stream(seed, "round", t, "client", i, "batch-order"), s)
            w[t + 1] += len(data[1]) / total * w_i
        nn.utils.vector_to_parameters(w[t + 1], model.parameters())
        print(f"round {t + 1:2}  accuracy {(model(test[0]).argmax(1) == test[1]).float().mean():.1%}", flush=True)
    return w


def load_data() -> tuple[Data, Data]:
    """Training and test set, normalised; 36 images of each class are test images."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.RandomState(0)
    test = np.sort(np.concatenate([rng.permutation(np.flatnonzero(labels == k))[:36] for k in range(10)]))
    train = np.setdiff1d(np.arange(len(labels)), test)
    x, y = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels)
    x = (x - images[train].mean()) / images[train].std()
    return (x[train], y[train]), (x[test], y[test])


def draw_split(labels: Tensor, clients: int, alpha: float, min_size: int, seed: int) -> list[Tensor]:
    """Rows by client: one draw splits one class; all are drawn again until no client is too small."""
    rng, y, owner = np.random.RandomState(seed), labels.numpy(), np.zeros(len(labels), int)
    while np.bincount(owner, minlength=clients).min() < min_size:
        for k, n in enumerate(np.bincount(y)):
            counts = (rng.dirichlet(np.full(clients, alpha)) * n).astype(int)
            if counts.sum() < n:  # what truncation left over
                counts[rng.randint(clients)] += n - counts.sum()
            owner[y == k] = np.repeat(np.arange(clients), counts)
    return [torch.tensor(np.flatnonzero(owner == i)) for i in range(clients)]


def make_mlp(seed: int) -> nn.Module:
    torch.manual_seed(seed_stream(seed, "init").initial_seed())
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


if __name__ == "__main__":
    torch.set_num_threads(1)  # with a model this small more threads only wait for each other
    (x, y), test = load_data()
    clients = [(x[rows], y[rows]) for rows in draw_split(y, clients=10, alpha=0.1, min_size=10, seed=0)]
    run_fedptr(clients, test, make_mlp(seed=0), int(sys.argv[1]) if len(sys.argv) > 1 else 20, 0, Settings())
