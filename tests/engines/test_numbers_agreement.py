"""Server and nodes agree on what labels are, and on the moments of numbers."""

from __future__ import annotations

import numpy as np
import pytest

from fedptr.data.dataset import Dataset
from fedptr.engines.flower.server.deploy_plan import DeployRules
from fedptr.engines.flower.server.first_agreement import sift_offers
from fedptr.engines.flower.wire.agreement import (
    Agreement,
    Offer,
    check_offer_fits,
    make_agreement,
    make_empty_dataset,
    translate_dataset,
)
from fedptr.engines.flower.wire.schema import read_hello
from fedptr.errors import ReplyError, UserError

SHAPE, MEAN, STD = (2, 1, 1), (0.0, 0.0), (1.0, 1.0)
HELLO = {
    "name": "north", "number": 0, "data": "0" * 64, "shape": [2, 1, 1], "mean": [0.0, 0.0], "std": [1.0, 1.0],
    "size": 5, "tests": 1, "classes": [], "target": "number", "label_mean": 3.0, "label_std": 2.0,
}  # fmt: skip


def offer(name: str, labels: np.ndarray) -> Offer:
    return Offer(name, len(labels), (), SHAPE, MEAN, STD, "number", float(labels.mean()), float(labels.std()))


CLASSES = Offer("odd", 9, ("cat", "dog"), SHAPE, MEAN, STD)


def test_moments_are_those_of_all_labels_together() -> None:
    parts = [np.array([1.0, 2.0, 6.0]), np.array([4.0, 8.0])]
    agreed = make_agreement([offer("a", parts[0]), offer("b", parts[1])])
    everyone = np.concatenate(parts)
    assert (agreed.target, agreed.classes) == ("number", ())
    assert agreed.label_mean == pytest.approx(everyone.mean())
    assert agreed.label_std == pytest.approx(everyone.std())
    assert Agreement.from_words(agreed.to_words()) == agreed
    assert make_empty_dataset(agreed).outputs == 1


def test_an_agreement_on_classes_has_the_words_it_always_had() -> None:
    assert set(make_agreement([CLASSES]).to_words()) == {"classes", "shape", "mean", "std", "images"}


def test_a_node_with_classes_does_not_join_those_with_numbers() -> None:
    a, b = offer("a", np.arange(5.0)), offer("b", np.arange(4.0))
    found = sift_offers([a, CLASSES, b], DeployRules(min_nodes=2), None)
    assert found.refused == {1: "it has classes as labels, not fitting: others have numbers"}
    assert found.agreed == make_agreement([a, b])
    with pytest.raises(UserError, match="node odd has classes as labels, and the run numbers; make them alike"):
        check_offer_fits(CLASSES, make_agreement([a, b]))


def test_labels_in_other_units_are_refused() -> None:
    found = sift_offers(
        [offer("a", np.arange(5.0)), offer("b", np.arange(5.0)), offer("c", 1e6 * np.arange(5.0))],
        DeployRules(min_nodes=2), None,
    )  # fmt: skip
    assert list(found.refused) == [2]
    assert "numbers as labels of" in found.refused[2]


def test_label_columns_are_translated() -> None:
    x, y = np.zeros((2, 2, 1, 1), np.float32), np.array([[1, 0], [0, 1]], np.float32)
    data = Dataset("own", x, y, x, y, MEAN, STD, ("sea", "sky"), "here", target="labels")
    agreed = Agreement(("sand", "sky", "sea"), SHAPE, MEAN, STD, 2, "labels")
    assert translate_dataset(data, agreed).train_y.tolist() == [[0, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target": "dance"}, "'target'"),
        ({"target": ["number"]}, "'target'"),
        ({"label_std": 0.0}, "'label_std'"),
        ({"label_mean": float("nan")}, "'label_mean'"),
        ({"classes": ["cat"]}, "'classes'"),
        ({"target": "class"}, "'classes'"),
    ],
)
def test_a_hello_is_checked(change: dict[str, object], words: str) -> None:
    assert read_hello(HELLO, 10, 10)["label_mean"] == 3.0
    with pytest.raises(ReplyError, match=words):
        read_hello({**HELLO, **change}, 10, 10)
