"""Split files that people write themselves, as JSON and as .csv: what is taken, and the sentence for each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedptr.cli.main import main
from fedptr.data.split import Split
from fedptr.errors import UserError
from fedptr.runs.plan import load_plan

LISTS = {"clients": [[0, 5, 3], [1, 2, 4]]}


def load(path: Path, content: object, samples: int | None = 6) -> Split:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return Split.load(path, samples)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mine.json", LISTS),
        ("mine.json", {"clients": {"anna": [0, 5, 3], "ben": [1, 2, 4]}}),
        ("mine.json", {**LISTS, "names": ["anna", "ben"]}),
        ("mine.csv", "sample,client\n0,anna\n1,ben\n2,ben\n3,anna\n4,ben\n5,anna\n"),
        ("mine.csv", "\ufeffSample, Client\r\n5,2\r\n0,2\r\n3,2\r\n1,10\r\n2,10\r\n4,10\r\n"),
    ],
)
def test_all_forms_mean_the_same_split(name: str, content: object, tmp_path: Path) -> None:
    split = load(tmp_path / name, content)
    assert [part.tolist() for part in split.clients] == [[0, 3, 5], [1, 2, 4]]
    assert split.sha256 == Split(tuple(map(list, LISTS["clients"])), 6).sha256  # type: ignore[arg-type]
    assert split.names in ((), ("anna", "ben"), ("2", "10"))
    split.save(tmp_path / "saved.json")
    again = Split.load(tmp_path / "saved.json", 6)
    assert (again.sha256, again.names, again.origin) == (split.sha256, split.names, name)


def test_samples_may_be_dropped_and_held_out(tmp_path: Path) -> None:
    split = load(tmp_path / "a.json", {"clients": {"a": [0, 1], "b": [2]}, "tests": {"b": [3, 5]}, "dropped": 1})
    assert split.dropped == 1
    assert split.tests is not None
    assert (split.tests.kind, split.tests.sizes) == ("holdout", (0, 2))
    assert load(tmp_path / "b.json", {**LISTS, "clients": [[0], [1]], "tests": [[2, 3], [4, 5]]}).tests is not None
    assert load(tmp_path / "c.csv", "sample,client\n0,a\n1,b\n2,\n3,\n4,\n5,b\n").dropped == 3
    shares = {"kind": "shares", "samples": 9, "clients": [[8], [8, 0]]}
    assert load(tmp_path / "d.json", {**LISTS, "tests": shares}).tests is not None


def test_the_dataset_is_not_needed_to_count_clients(tmp_path: Path) -> None:
    assert load(tmp_path / "a.json", {"clients": [[0], [1]], "tests": [[2], []], "dropped": 4}, None).samples == 7
    assert load(tmp_path / "a.csv", "sample,client\n0,a\n1,b\n", None).samples == 2


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", {"clients": [[0, 1], [2, 3]]}, "uses 4 of 6 samples; .*or say how many are dropped"),
        ("a.json", {"clients": [[0, 1, 2], [2, 3, 4, 5]]}, "gives sample 2 to more than one client"),
        ("a.json", {"clients": [[0, 1, 2], [3, 4, 5, 6]]}, "names sample 6 but the samples are 0 to 5"),
        ("a.json", {"clients": [[0, 1, 2], [3, 4, "5"]]}, "has a wrong entry 'clients'; write it as"),
        ("a.json", {"clients": 3}, "has a wrong entry 'clients'"),
        ("a.json", {"clients": []}, "has no clients"),
        ("a.json", {**LISTS, "names": ["anna"]}, "2 clients and 1 names"),
        ("a.json", {**LISTS, "names": ["anna", "anna"]}, "2 clients and 1 names"),
        ("a.json", {**LISTS, "names": ["anna", 3]}, "has a wrong entry 'names'"),
        ("a.json", {**LISTS, "dropped": "some"}, "has a wrong entry 'dropped'"),
        ("a.json", {**LISTS, "tests": 3}, "has a wrong entry 'tests'"),
        ("a.json", {**LISTS, "tests": [[0], []]}, "sample 0 is trained on and tested on"),
        ("a.json", {"clients": {"a": [0]}, "tests": {"c": [1]}}, "has tests for 'c'"),
        ("a.json", {"clients": {"a": [0]}, "names": ["a"]}, "names its clients twice"),
        ("a.json", {**LISTS, "client": 1}, "has an unknown entry 'client'"),
        ("a.csv", "", "cannot be read as a table"),
        ("a.csv", "id,owner\n0,a\n", "begin it with the line sample,client"),
        ("a.csv", "sample,client\n0\n", "row 2 of split file"),
        ("a.csv", "sample,client\n0,a\n-1,a\n", "row 3 of split file"),
        ("a.csv", "sample,client\n0,a\n1.5,a\n", "row 3 of split file"),
        ("a.csv", "sample,client\n0,a\n0,b\n", "gives sample 0 to more than one client"),
        ("a.csv", "sample,client\n", "has no clients"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(name: str, content: object, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words) as caught:
        load(tmp_path / name, content)
    assert "\n" not in str(caught.value)
    assert "damaged" not in str(caught.value)


def test_the_command_line_takes_the_number_of_clients_from_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "mine.csv", tmp_path / "run"
    owners = ["sample,client", *(f"{i},{'anna' if i % 3 else 'ben'}" for i in range(300))]
    path.write_text("\n".join(owners) + "\n")
    asked = ["--dataset", "digits", "--set", "data.subset=300", "--split", str(path)]
    assert main(["partition", *asked]) == 0
    shown = capsys.readouterr().out
    assert "anna" in shown
    assert "mine.csv" in shown
    few = ["--rounds", "1", "--method", "fedavg", "--model", "linear", "--threads", "1", "--out", str(out)]
    assert main(["run", *asked, *few]) == 0
    assert load_plan(out).split.clients == 2
    assert Split.load(out / "split.json").names == ("anna", "ben")
    assert main(["partition", *asked, "--clients", "3"]) == 2
    assert "set split.clients = 2" in capsys.readouterr().err
