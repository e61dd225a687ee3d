"""The loss attack (Yeom et al., CSF 2018, arXiv:1709.01604): what is trained on has a smaller loss.

    ℓ   cross-entropy of an example          τ   threshold: a member if ℓ ≤ τ

It needs no model but the target. Yeom's own threshold is the target's mean training loss, which a server may know.
"""

from __future__ import annotations

import numpy as np

from fedptr.audit.metrics import Measures, accuracy_at, measure_attack
from fedptr.audit.roc import Flags, Floats


def run_loss_attack(losses: Floats, member: Flags, training_loss: float, rng: np.random.Generator) -> Measures:
    """The attack's numbers; `yeom` has those at Yeom's τ, where nothing is calibrated."""
    called = losses <= training_loss
    yeom = {
        "threshold": training_loss,
        "accuracy": accuracy_at(-losses, member, -training_loss),
        "tpr": float(called[member].mean()),
        "fpr": float(called[~member].mean()),
    }
    return {**measure_attack(-losses, member, rng), "yeom": yeom}
