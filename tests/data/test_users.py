"""Natural users: whose each sample is, in files and in the cache, and splits that give clients whole users."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedptr.cli.main import main
from fedptr.data import cache
from fedptr.data.client_tests import add_client_tests
from fedptr.data.dataset import Dataset, pool_parts, take_subset
from fedptr.data.load import load_dataset
from fedptr.data.partition import SplitPlan, partition
from fedptr.data.split import Split
from fedptr.errors import UserError

N = 120
LABELS = np.arange(N) % 3
USERS = np.repeat(np.arange(6), N // 6)  # 20 samples each
NAMES = ("ann", "bob", "eve", "kim", "lee", "max")
PLAN = SplitPlan(kind="users", clients=0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPTR_CACHE", str(tmp_path / "cache"))


def make_dataset() -> Dataset:
    """Pixel k of a sample is its user in every part, so that a mistake shows."""
    x, test_x = (users[:, None, None, None].astype(np.float32) for users in (USERS, USERS[::2]))
    return Dataset(
        "made", x, LABELS, test_x, LABELS[::2], (0.0,), (1.0,), ("a", "b", "c"), "here",
        users=USERS, user_names=NAMES, test_users=USERS[::2],
    )  # fmt: skip


def write_csv(path: Path, head: str = "user,width,depth,label") -> Path:
    rows = [
        f"{NAMES[user]},{k},{k * k},{'xyz'[label]}" for k, (user, label) in enumerate(zip(USERS, LABELS, strict=True))
    ]
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def test_a_client_is_a_user_and_has_its_name() -> None:
    split = partition(LABELS, 3, PLAN, USERS, NAMES)
    assert split.names == NAMES
    assert split.sizes == (20,) * 6
    for user, rows in enumerate(split.clients):
        np.testing.assert_array_equal(rows, np.flatnonzero(user == USERS))


def test_fewer_clients_get_whole_users_at_random_and_as_many_each() -> None:
    plans = [replace(PLAN, clients=4, seed=seed) for seed in (0, 0, 1)]
    first, again, other = (partition(LABELS, 3, plan, USERS, NAMES) for plan in plans)
    assert first.sha256 == again.sha256
    assert first.sha256 != other.sha256
    owned = [set(USERS[rows]) for rows in first.clients]
    assert sorted(map(len, owned)) == [1, 1, 2, 2]
    assert set.union(*owned) == set(range(6))
    assert sum(map(len, owned)) == 6, "no user is at two clients"
    assert first.names[0] == ", ".join(NAMES[user] for user in sorted(owned[0]))


def test_a_draw_is_repeated_until_every_client_is_large_enough() -> None:
    users = np.repeat(np.arange(4), [60, 50, 5, 5])  # the two small ones may not be together
    splits = [partition(LABELS, 3, SplitPlan(kind="users", clients=2, min_size=40, seed=s), users) for s in range(20)]
    assert all(min(split.sizes) >= 40 for split in splits)
    assert max(split.draws for split in splits) > 1
    assert splits[0].names[0].replace(", ", "").isdigit(), "users without names are numbered"


@pytest.mark.parametrize(
    ("plan", "users", "words"),
    [
        (PLAN, None, "this dataset does not say; add a column `user`"),
        (replace(PLAN, clients=7), USERS, "split.clients is 7 but the samples are of 6 users"),
        (replace(PLAN, min_size=21), USERS, "user ann has 20 samples, fewer than split.min_size = 21"),
        (replace(PLAN, clients=5, min_size=30, max_draws=9), USERS, "none of 9 draws of whole users .* client: 20"),
        (replace(PLAN, policy="repair"), USERS, "would move samples from user to user"),
        (PLAN, USERS[:-1], "users must be 120 numbers"),
        (PLAN, USERS / 2, "users must be 120 numbers"),
        (SplitPlan(kind="iid", clients=0), USERS, "split.clients must be at least 1, not 0, unless"),
    ],
)
def test_what_cannot_be_is_said(plan: SplitPlan, users: np.ndarray | None, words: str) -> None:
    with pytest.raises(UserError, match=words):
        partition(LABELS, 3, plan, users, NAMES)


def test_names_are_saved_and_do_not_change_the_checksum(tmp_path: Path) -> None:
    split = partition(LABELS, 3, PLAN, USERS, NAMES)
    split.save(tmp_path / "split.json")
    again = Split.load(tmp_path / "split.json")
    assert again.names == NAMES
    assert again.sha256 == replace(split, names=()).sha256
    content = json.loads((tmp_path / "split.json").read_text())
    for wrong in ([1] * 6, "ann", ["ann"]):
        (tmp_path / "wrong.json").write_text(json.dumps({**content, "names": wrong}))
        with pytest.raises(UserError, match="names"):
            Split.load(tmp_path / "wrong.json")


def test_subsets_and_pools_keep_whose_a_sample_is() -> None:
    data = take_subset(make_dataset(), 30, 12, seed=5)
    assert data.users is not None
    assert data.test_users is not None
    np.testing.assert_array_equal(data.users, data.train_x[:, 0, 0, 0])
    np.testing.assert_array_equal(data.test_users, data.test_x[:, 0, 0, 0])
    pooled = pool_parts(data)
    assert pooled.users is not None
    np.testing.assert_array_equal(pooled.users, pooled.train_x[:, 0, 0, 0])
    assert pool_parts(replace(data, test_users=None)).users is None, "nobody knows whose the test samples are"


def test_clients_are_tested_on_their_own_users_where_there_are_such_samples() -> None:
    data = make_dataset()
    split = partition(LABELS, 3, replace(PLAN, clients=4), USERS, NAMES)
    for plan in (replace(PLAN, clients=4, test="users"), replace(PLAN, clients=4)):
        tests = add_client_tests(split, data, plan, personalised=True).tests
        assert tests is not None
        for rows, tested in zip(split.clients, tests.clients, strict=True):
            assert set(data.test_users[tested]) == set(USERS[rows])  # type: ignore[index]
        assert sum(tests.sizes) == len(data.test_y)
    assert add_client_tests(split, data, replace(PLAN, test="auto")).tests is None
    strangers = replace(data, test_users=np.full(len(data.test_y), 9))
    by_class = add_client_tests(split, strangers, PLAN, personalised=True).tests
    assert by_class is not None
    assert min(by_class.sizes) > 0
    with pytest.raises(UserError, match=r'split\.test to "shares"'):
        add_client_tests(split, strangers, replace(PLAN, test="users"))
    with pytest.raises(UserError, match=r"cannot be tested on them"):
        add_client_tests(split, pool_parts(data), replace(PLAN, test="users"), pooled=True)
    held = add_client_tests(split, data, replace(PLAN, test="holdout"))
    assert held.names == split.names
    for rows, kept, out in zip(split.clients, held.clients, held.tests.clients, strict=True):  # type: ignore[union-attr]
        np.testing.assert_array_equal(np.sort(np.concatenate([kept, out])), rows)


@pytest.mark.parametrize("head", ["user,width,depth,label", "Client,width,depth,last", "group,width,depth,y"])
def test_a_column_of_a_table_names_the_users(head: str, tmp_path: Path) -> None:
    data = load_dataset(str(write_csv(tmp_path / "mine.csv", head)))
    assert data.user_names == NAMES
    assert data.train_x.shape == (96, 2, 1, 1), "it is no feature"
    for x, users in ((data.train_x, data.users), (data.test_x, data.test_users)):
        np.testing.assert_array_equal(users, USERS[x[:, 0, 0, 0].astype(int)])


def test_the_last_column_may_be_the_user(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("a,kind,user\n" + "".join(f"{k},{'xy'[k % 2]},u{k % 3}\n" for k in range(20)))
    data = load_dataset(str(path))
    assert (data.classes, data.user_names) == (("x", "y"), ("u0", "u1", "u2"))
    path.write_text("user,label\n1,2\n")
    with pytest.raises(UserError, match="a table needs features too"):
        load_dataset(str(path))
    path.write_text("a,user,label\n1,,2\n")
    with pytest.raises(UserError, match=r"row 2 of .* has no 'user', which is whose row it is"):
        load_dataset(str(path))


def test_two_tables_name_users_together(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("user,a,label\nann,1,x\nbob,2,y\n")
    (tmp_path / "test.csv").write_text("user,a,label\nabe,1,x\nbob,2,y\n")
    data = load_dataset(str(tmp_path))
    assert data.user_names == ("abe", "ann", "bob")
    assert (data.users.tolist(), data.test_users.tolist()) == ([1, 2], [0, 2])  # type: ignore[union-attr]
    assert partition(data.train_y, 2, replace(PLAN, min_size=1), data.users, data.user_names).names == ("ann", "bob")


@pytest.mark.parametrize("names", [np.array(NAMES)[USERS], USERS + 10, USERS.astype(np.uint8)])
def test_an_npz_file_may_have_users(names: np.ndarray, tmp_path: Path) -> None:
    x = np.arange(N, dtype=np.float32)[:, None]
    path = tmp_path / "mine.npz"
    np.savez(path, train_x=x, train_y=LABELS, test_x=x, test_y=LABELS, train_user=names)
    data = load_dataset(str(path))
    assert data.user_names == tuple(dict.fromkeys(map(str, names)))
    np.testing.assert_array_equal(data.users, USERS)
    assert data.test_users is None
    np.savez(path, train_x=x, train_y=LABELS, test_x=x, test_y=LABELS, train_user=names, test_user=names[::-1])
    np.testing.assert_array_equal(load_dataset(str(path)).test_users, USERS[::-1])
    for wrong in (names[1:], np.ones(N)):
        np.savez(path, train_x=x, train_y=LABELS, test_x=x, test_y=LABELS, train_user=wrong)
        with pytest.raises(
            UserError, match=r"train_user in .* must be a whole number or a word for each of 120 samples"
        ):
            load_dataset(str(path))


@pytest.mark.parametrize("labels", [LABELS + 0.5, np.eye(3, dtype=int)[LABELS]])
def test_numbers_and_several_labels_may_have_users_too(labels: np.ndarray, tmp_path: Path) -> None:
    x = np.arange(N, dtype=np.float32)[:, None]
    path = tmp_path / "mine.npz"
    np.savez(path, train_x=x, train_y=labels, test_x=x, test_y=labels, train_user=USERS, test_user=USERS)
    data = load_dataset(str(path))
    np.testing.assert_array_equal(data.users, USERS)
    np.testing.assert_array_equal(data.test_users, USERS)


def test_the_cache_keeps_users_and_notices_others(tmp_path: Path) -> None:
    data = make_dataset()
    opened = cache.load_or_build(tmp_path / "one", lambda: data)
    assert opened is not data
    assert opened.user_names == NAMES
    np.testing.assert_array_equal(opened.users, USERS)
    np.testing.assert_array_equal(opened.test_users, USERS[::2])
    assert cache.cache_matches(tmp_path / "one", data)
    assert not cache.cache_matches(tmp_path / "one", replace(data, users=USERS[::-1]))
    assert not cache.cache_matches(tmp_path / "one", replace(data, users=None))
    assert not cache.cache_matches(tmp_path / "one", replace(data, user_names=NAMES[::-1]))


def test_as_a_new_user_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "mine.csv")
    assert main(["partition", "--dataset", str(path), "--partition", "users", "--out", str(tmp_path / "s.json")]) == 0
    shown = capsys.readouterr().out
    assert "users(6 users" in shown
    assert "4 lee" in shown
    out = tmp_path / "run"
    options = ["--method", "finetune", "--rounds", "2", "--width", "4", "--out", str(out)]
    assert main(["run", "--dataset", str(path), "--partition", "users", *options]) == 0
    assert Split.load(out / "split.json").names == NAMES
    assert main(["report", str(out), "--out", str(tmp_path / "page.html")]) == 0
    assert (
        "split by user" in (tmp_path / "page.html").read_text() or "whole users" in (tmp_path / "page.html").read_text()
    )
    assert main(["partition", "--dataset", "digits", "--partition", "users"]) == 2
    assert "this dataset does not say" in capsys.readouterr().err
