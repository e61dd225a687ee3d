"""How a dataset is split over clients: the published splits exactly, and what must hold for every split."""

import hashlib
import io
import json
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from rich.console import Console

from fedptr.data.partition import KINDS, SplitPlan, partition
from fedptr.data.split import Split, measure_heterogeneity
from fedptr.data.split_plot import plot_split
from fedptr.data.split_table import build_split_table
from fedptr.errors import UserError

# name: samples, classes, clients, alpha, smallest client; draws, hash of the class x client counts, sizes or smallest
GOLDEN = {
    "fmnist-10-.01": (60000, 10, 10, 0.01, 2500, 108, "e7844e22ddd5190e",
                      "12032 4244 6003 6037 6002 6165 5963 5760 2602 5192"),
    "cifar10-10-.01": (50000, 10, 10, 0.01, 2500, 1833, "5a43ab533e8454dd",
                       "2972 9419 2936 5779 4111 5003 4949 4979 5615 4237"),
    "cifar100-10-.01": (50000, 100, 10, 0.01, 2500, 1, "6e5f0df07889752d",
                        "2690 5209 4764 6463 4467 5679 3983 5910 5497 5338"),
    "cifar100-40-.01": (50000, 100, 40, 0.01, 500, 92, "7bba47977f676b8f",
                        "735 1371 1365 761 1123 2194 2399 531 848 1549 2378 569 2007 984 518 608 1250 780 2601 2784 "
                        "1408 1831 1108 2166 523 814 1281 579 1067 1172 803 1085 902 2603 1237 940 588 683 1246 609"),
    "cifar10-40-.01": (50000, 10, 40, 0.01, 0, 1, "ff7f9682c99f8aa4",
                       "0 3133 0 274 373 0 296 1709 1114 4636 5287 0 1469 1684 0 415 3 3950 718 46 3355 29 7318 1033 "
                       "0 0 918 0 1342 0 1 0 4979 101 1397 1615 5 2798 2 0"),
    "fmnist-10-.04": (60000, 10, 10, 0.04, 2500, 163, "98f09b3319217f56",
                      "6767 9455 3435 5129 3763 5003 8384 9043 4713 4308"),
    "cifar10-10-.04": (50000, 10, 10, 0.04, 2500, 163, "39538b9354f21158",
                       "5638 7878 2863 4274 3138 4169 6987 7535 3928 3590"),
    "cifar100-10-.04": (50000, 100, 10, 0.04, 2500, 1, "f974d6c3f3df8332",
                        "5177 4113 5406 5005 5793 4826 5434 5026 3931 5289"),
    "cifar100-40-.04": (50000, 100, 40, 0.04, 500, 4, "fe6cd487099cd4b6", 502),
    "fmnist-40-.04": (60000, 10, 40, 0.04, 25, 57, "d8471749211c84e2", 26),
    "cifar10-40-.04": (50000, 10, 40, 0.04, 25, 2261, "b5446ec48d44771a", 32),
    "tiny-10-.01": (100000, 200, 10, 0.01, 2500, 1, "b191ba45ab6d34b9",
                    "7460 9583 8892 11421 10840 10466 9040 11189 9774 11335"),
}  # fmt: skip


@pytest.mark.parametrize("row", GOLDEN.values(), ids=GOLDEN.keys())
def test_published_dirichlet_splits(row):
    samples, classes, clients, alpha, min_size, draws, digest, sizes = row
    labels = np.random.RandomState(1).permutation(np.repeat(np.arange(classes), samples // classes))
    split = partition(labels, classes, SplitPlan(clients=clients, alpha=alpha, min_size=min_size))
    counts = split.counts(labels, classes)
    assert split.draws == draws
    assert hashlib.sha256(counts.T.astype("<i4").tobytes()).hexdigest()[:16] == digest
    if isinstance(sizes, int):
        assert min(split.sizes) == sizes
    else:
        assert split.sizes == tuple(map(int, sizes.split()))
    for label in range(classes):  # each class is dealt in file order, client after client
        dealt = np.concatenate([indices[labels[indices] == label] for indices in split.clients])
        assert (dealt == np.flatnonzero(labels == label)).all()


# pinned when they were first right: a change here changes everybody's splits
PINNED = {
    "dirichlet": "decafb6c7564a0d5",
    "dirichlet-by-client": "666223949e7f2684",
    "shards": "609faf6b8f686e6e",
    "classes": "e62bd73ccc1703f7",
    "quantity": "8330da8eb28aa0a3",
    "iid": "babff00191aa12a5",
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_keeps_its_split(kind):
    labels = np.minimum(np.arange(1000) % 11, 6)  # a large class
    plan = SplitPlan(kind=kind, clients=5, alpha=0.3, seed=3, min_size=20)
    assert partition(labels, 7, plan).sha256[:16] == PINNED[kind]
    assert partition(labels, 7, replace(plan, seed=4)).sha256[:16] != PINNED[kind]


@st.composite
def cases(draw):
    """Labels, balanced or not, with classes that may be empty, and a plan that can be met by repair."""
    classes = draw(st.integers(1, 6))
    labels = np.array(draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=120)))
    clients = draw(st.integers(1, min(9, len(labels))))
    plan = SplitPlan(
        kind=draw(st.sampled_from(sorted(KINDS))),
        clients=clients,
        alpha=draw(st.sampled_from([1e-6, 0.01, 0.3, 10, 1e6])),
        min_size=draw(st.integers(0, len(labels) // clients)),
        policy=draw(st.sampled_from(["redraw", "repair"])),
        max_draws=30,
        shards=draw(st.integers(1, len(labels) // clients)),
        classes=draw(st.integers(-(-classes // clients), classes)),
        sigma=draw(st.sampled_from([0.0, 1.0, 10.0])),
        seed=draw(st.integers(0, 2**32 - 1)),
    )
    return labels, classes, plan


@given(cases())
@settings(max_examples=400, deadline=None)
def test_every_split_is_whole_and_repeatable(tmp_path_factory, case):
    labels, classes, plan = case
    try:
        split = partition(labels, classes, plan)
    except UserError as error:
        if plan.policy == "repair" or "none of 30 draws" not in str(error):
            raise
        reject()
    assert np.array_equal(np.sort(np.concatenate(split.clients)), np.arange(len(labels)))
    assert all((np.diff(indices) > 0).all() for indices in split.clients)
    assert len(split.clients) == plan.clients
    assert min(split.sizes) >= plan.min_size
    assert split.counts(labels, classes).sum(axis=0).tolist() == np.bincount(labels, minlength=classes).tolist()
    assert split.draws == 1 or (plan.policy == "redraw" and split.draws <= 30)
    assert partition(labels, classes, plan).sha256 == split.sha256
    path = tmp_path_factory.getbasetemp() / "split.json"
    split.save(path)
    again = Split.load(path, samples=len(labels))
    assert again.sha256 == split.sha256
    assert (again.draws, again.moved, again.origin) == (split.draws, split.moved, split.origin)
    assert partition(labels, classes, SplitPlan(clients=plan.clients, file=str(path))).sha256 == split.sha256


@given(cases())
@settings(max_examples=150, deadline=None)
def test_repair_moves_only_what_is_missing(case):
    labels, classes, plan = case
    before = partition(labels, classes, replace(plan, policy="repair", min_size=0))
    after = partition(labels, classes, replace(plan, policy="repair"))
    old, new = np.array(before.sizes), np.array(after.sizes)
    assert before.moved == 0
    assert after.moved == np.maximum(plan.min_size - old, 0).sum()
    assert (new[old < plan.min_size] == plan.min_size).all()
    assert (new[old >= plan.min_size] >= plan.min_size).all()
    gained = after.counts(labels, classes) - before.counts(labels, classes)
    assert (gained[old < plan.min_size] >= 0).all()
    assert (gained[old >= plan.min_size] <= 0).all()


def skew(labels, classes, **plan):
    return measure_heterogeneity(partition(labels, classes, SplitPlan(min_size=0, **plan)).counts(labels, classes))


@pytest.mark.parametrize("kind", ["dirichlet", "dirichlet-by-client"])
def test_alpha_sets_the_skew(kind):
    labels = np.repeat(np.arange(10), [900, 100, 500, 500, 500, 50, 450, 500, 1000, 500])
    skews = [skew(labels, 10, kind=kind, alpha=alpha) for alpha in (1e-6, 0.1, 1, 10, 1e5)]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 0.6
    assert skews[-1] < 0.02


def test_clients_with_their_own_mix_have_equal_sizes_and_follow_it():
    labels = np.arange(10_000) % 10
    split = partition(labels, 10, SplitPlan(kind="dirichlet-by-client", clients=30, alpha=0.2))
    assert set(split.sizes) == {333, 334}
    shares = split.counts(labels, 10) / np.array(split.sizes)[:, None]
    # a share of Dir(alpha, ten times) has this variance; the last clients take what is left, which lessens it
    assert shares.var() == pytest.approx(9 / (100 * (10 * 0.2 + 1)), rel=0.3)


def test_shards_hold_few_labels():
    labels = np.random.RandomState(0).permutation(np.arange(6000) % 10)
    split = partition(labels, 10, SplitPlan(kind="shards", clients=10, shards=2))
    counts = split.counts(labels, 10)
    assert set(split.sizes) == {600}
    assert set(counts.ravel()) <= {0, 300, 600}
    assert (counts > 0).sum(axis=1).max() == 2


def test_classes_have_balanced_owners_with_equal_shares():
    labels = np.repeat(np.arange(7), [70, 700, 71, 72, 7, 300, 100])
    counts = partition(labels, 7, SplitPlan(kind="classes", clients=11, classes=3, min_size=0)).counts(labels, 7)
    owners = (counts > 0).sum(axis=0)
    assert ((counts > 0).sum(axis=1) == 3).all()
    assert owners.sum() == 33
    assert owners.max() - owners.min() <= 1
    for column in counts.T:
        held = column[column > 0]
        assert held.max() - held.min() <= 1


def test_quantity_skews_sizes_and_not_labels():
    labels = np.repeat(np.arange(4), 5000)
    split = partition(labels, 4, SplitPlan(kind="quantity", clients=100, sigma=1.0))
    assert np.log(split.sizes).std() == pytest.approx(1.0, abs=0.2)
    assert measure_heterogeneity(split.counts(labels, 4)) < 0.08
    assert set(partition(labels, 4, SplitPlan(kind="iid", clients=3)).sizes) == {6666, 6667}


def test_heterogeneity_counts_samples_not_clients():
    assert measure_heterogeneity([[10, 0, 0, 0], [0, 10, 0, 0], [0, 0, 10, 0], [0, 0, 0, 10]]) == 0.75
    assert measure_heterogeneity([[3, 1], [0, 0]]) == 0
    assert measure_heterogeneity([[0, 0]]) == 0
    # pooled (1/2, 1/2): the large client is iid, the small ones are 1/2 away
    assert measure_heterogeneity([[40, 40], [10, 0], [0, 10]]) == pytest.approx(0.5 * 20 / 100)


LABELS = np.arange(100) % 10


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (SplitPlan(min_size=11), "split.min_size = 11 for 10 clients needs 110 samples and the dataset has 100"),
        (SplitPlan(min_size=11, policy="repair"), "lower split.min_size or split.clients"),
        (SplitPlan(min_size=9, max_draws=7), r"none of 7 draws .*best smallest client: 3\).* raise split.alpha or set"),
        (SplitPlan(kind="quantity", min_size=10, max_draws=7), 'lower split.sigma or set split.policy = "repair"'),
        (SplitPlan(kind="shards", shards=11, min_size=0), "cuts 110 shards and the dataset has 100 samples"),
        (SplitPlan(kind="classes", clients=4, classes=2), "choose split.classes from 3 to 10"),
        (SplitPlan(kind="classes", classes=11), "choose split.classes from 1 to 10"),
        (SplitPlan(clients=0), "split.clients must be at least 1, not 0"),
        (SplitPlan(alpha=0.0), "split.alpha must be more than 0"),
        (SplitPlan(alpha=float("nan")), "split.alpha must be a number"),
        (SplitPlan(kind="iid", seed=-1), "split.seed must be at least 0"),
        (SplitPlan(file="/nowhere/split.json"), "/nowhere/split.json cannot be read .No such file"),
        (SplitPlan(file="\0"), "cannot be read"),
    ],
)
def test_impossible_requests_are_explained(plan, words):
    with pytest.raises(UserError, match=words):
        partition(LABELS, 10, plan)


@pytest.mark.parametrize("labels", [[], [0.5, 1.0], [[0, 1]], [0, 1, 10], [0, -1], ["cat"]])
def test_labels_are_checked(labels):
    with pytest.raises(UserError, match="check the dataset"):
        partition(np.array(labels), 10, SplitPlan(clients=1, min_size=0))


def test_more_clients_than_samples_leaves_some_empty():
    for kind in ("dirichlet", "dirichlet-by-client", "quantity", "iid", "classes"):
        split = partition([0, 1, 1], 2, SplitPlan(kind=kind, clients=50, min_size=0, classes=1))
        assert sum(split.sizes) == 3
        assert len(split.clients) == 50


def test_a_file_for_another_number_of_clients_is_refused(tmp_path):
    partition(LABELS, 10, SplitPlan(kind="iid", clients=4)).save(tmp_path / "s.json")
    with pytest.raises(UserError, match=r"set split\.clients = 4"):
        partition(LABELS, 10, SplitPlan(file=str(tmp_path / "s.json")))


GOOD = partition(LABELS, 10, SplitPlan(kind="iid", clients=4))


def edited(**changes):
    content = {"format": 1, "origin": "by hand", "samples": 3, "draws": 1, "moved": 0, "clients": [[0, 2], [1]]}
    content["sha256"] = Split(content["clients"], 3).sha256
    return json.dumps({name: value for name, value in (content | changes).items() if value is not None})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"format": ' + "9" * 5000 + "}", "is not JSON"),
        ("[1]", "is not a split"),
        ("{}", "does not say which samples clients have"),
        (edited(format=2), "is not of format 1"),
        (edited(format=[1]), "is not of format 1"),
        (edited(sha256=None), "has no entry 'sha256'"),
        (edited(extra=1), "has an unknown entry 'extra'"),
        (edited(samples=True), "has a wrong entry 'samples'"),
        (edited(samples=-3), "has a wrong entry 'samples'"),
        (edited(draws="1"), "has a wrong entry 'draws'"),
        (edited(origin=3), "has a wrong entry 'origin'"),
        (edited(clients=[0, 1, 2]), "has a wrong entry 'clients'"),
        (edited(clients=[[0, 2], [1.0]]), "has a wrong entry 'clients'"),
        (edited(clients=[[0, 2], [2**63]]), "has a wrong entry 'clients'"),
        (edited(clients=[]), "has no clients"),
        (edited(clients=[[0, 2], [-1]]), "names sample -1 but the samples are 0 to 2"),
        (edited(clients=[[0, 3], [1]]), "names sample 3 but the samples are 0 to 2"),
        (edited(clients=[[0, 2], [2]]), "gives sample 2 to more than one client"),
        (edited(clients=[[0], [1]]), "uses 2 of 3 samples"),
        (edited(samples=4), "for 4 samples but the dataset has 3"),
        (edited(sha256="0" * 64), "its sha256 does not match"),
        (edited(clients=[[0], [1, 2]]), "its sha256 does not match"),
    ],
)
def test_a_bad_split_file_is_one_sentence(tmp_path, text, words):
    path = tmp_path / "split.json"
    path.write_text(edited())
    assert Split.load(path, 3).sizes == (2, 1)
    path.write_text(text)
    with pytest.raises(UserError, match=words) as caught:
        Split.load(path, 3)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_rubbish_never_gives_another_error(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "rubbish.json"
    GOOD.save(path)
    whole = path.read_bytes()
    start = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.sampled_from([start, start + 1, start + 5, len(whole)]))
    path.write_bytes(whole[:start] + data.draw(st.binary(max_size=8)) + whole[end:])
    try:
        split = Split.load(path, data.draw(st.sampled_from([None, 100])))
    except UserError:
        return
    assert split.sha256 == GOOD.sha256  # only what is not part of the split can have changed


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "split.json"
    GOOD.save(path)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UserError, match=r"cannot be written \(No space left"):
        partition(LABELS, 10, SplitPlan(kind="iid", clients=5)).save(path)
    assert Split.load(path).sha256 == GOOD.sha256
    assert os.listdir(path.parent) == ["split.json"]
    with pytest.raises(UserError, match="cannot be written"):
        GOOD.save(path / "below-a-file.json")


def test_the_hash_is_that_of_sizes_and_indices():
    split = Split((np.array([2, 0]), np.array([], dtype=int), np.array([1])), 3)
    assert split.sha256 == hashlib.sha256(np.array([2, 0, 1, 0, 2, 1], dtype="<i8").tobytes()).hexdigest()


def printed(split, labels, names):
    console = Console(width=80, file=io.StringIO())
    console.print(build_split_table(split, labels, names))
    return console.file.getvalue()


def test_the_table_shows_all_counts_in_80_columns():
    labels = np.arange(60_000) % 12
    split = partition(labels, 12, SplitPlan(min_size=2500))
    text = printed(split, labels, ["[red]", *(f"long name {i}" for i in range(11))])
    rows = [line.split() for line in text.splitlines()]
    for client, counts in enumerate(split.counts(labels, 12)):
        assert [str(client), str(counts.sum()), *(str(n) if n else "·" for n in counts)] in rows
    assert ["all", "60000", *["5000"] * 12] in rows
    assert "dirichlet(alpha=0.04, min_size=2500, seed=0)" in text
    assert f"draw {split.draws} " in text
    assert "[re" in text  # names fold to keep the numbers whole, and are not taken for markup


def test_the_table_of_many_classes_names_the_largest():
    labels = np.repeat(np.arange(20), np.arange(1, 21))
    text = printed(Split((np.arange(200), np.arange(200, 210)), 210), labels, [f"c{i}" for i in range(20)])
    assert "0  200      20 c18 19, c17 18, c16 17, c15 16, …" in text
    assert "1   10       1 c19 10  " in text


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (10, 10), (40, 100)])
def test_the_picture_is_written_twice_and_is_reproducible(tmp_path, clients, classes):
    counts = np.random.RandomState(0).poisson(2, (clients, classes))
    title, names = "alpha = 0.04, $\\5$", [f"$\\name$ {i}" for i in range(classes)]  # not formulas
    png, svg = plot_split(counts, names, title, tmp_path / "split-0.04")
    again = plot_split(counts, names, title, tmp_path / "again" / "split.png")
    assert (png.name, svg.name) == ("split-0.04.png", "split-0.04.svg")
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert svg.read_bytes() == again[1].read_bytes()
    for words in (names[0], title, "class", "client", "client size", "samples in cell (log scale, blank = 0)"):
        assert f"<!-- {words}" in svg.read_text()
    with pytest.raises(UserError, match="cannot be written"):
        plot_split(counts, names, "", png / "below-a-file")
