"""The front door: `from fedptr import …` and `fedptr.methods.<TAB>` list what there is, all of it with a docstring."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import fedptr
from fedptr import methods
from fedptr.core.federation import Run
from fedptr.core.method import Method
from fedptr.methods.fedavg import FedAvg

PUBLIC = {name: getattr(fedptr, name) for name in fedptr._HOME}


def own_docstring(value: Any) -> str:
    """A docstring that somebody wrote: not inherited, and not the signature that `dataclass` puts there."""
    words = str(vars(value).get("__doc__") or "") if isinstance(value, type) else inspect.getdoc(value) or ""
    return "" if words.startswith(f"{value.__name__}(") else words


def test_the_front_door_lists_its_names() -> None:
    assert set(PUBLIC) <= set(dir(fedptr))
    assert Run in PUBLIC.values()


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_have_docstrings(name: str) -> None:
    value = PUBLIC[name]
    assert own_docstring(value), name
    for part, member in vars(value).items() if isinstance(value, type) else ():
        if not part.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            assert inspect.getdoc(member), f"{name}.{part}"


def test_tab_completion_lists_the_methods() -> None:
    classes = [method.__name__ for method in methods.all_methods().values()]
    assert {"FedAvg", "FedPTR", "Scaffold"} <= set(classes) <= set(dir(methods))
    assert "all_methods" in dir(methods)
    assert all(hasattr(methods, name) for name in dir(methods))


@pytest.mark.parametrize("name", [*methods.all_methods(), "scaffold+ptr"])
def test_a_method_explains_itself(name: str) -> None:
    """`methods.FedPTR?` in a notebook: the idea, the rule, what every setting means, and whom to cite."""
    method = methods.find_method(name)
    words = own_docstring(method)
    assert method.idea[1:] in words
    assert method.cite in words
    assert all(line in words for line in (method.rule.in_words() if method.rule else ()))
    for field in method.__dataclass_fields__.values():
        assert "doc" not in field.metadata or f"{field.name}: {field.metadata['doc']}" in words


def test_a_method_may_have_a_docstring_of_its_own() -> None:
    class Explained(FedAvg):
        """My own words."""

    class Bare(FedAvg):
        pass

    assert own_docstring(Explained) == "My own words."
    assert "weighting: how the clients' models are averaged" in own_docstring(Bare)
    assert own_docstring(Method)
