"""Every file in this folder that defines a method is found by its name: adding the file adds the method.

So is a method of another package that the entry points `fedptr.methods` name, and any class as `module:Class`.

>>> [name for name in sorted(all_methods()) if "ptr" in name]
['fedptr', 'fedptr-linear', 'fedptr-s']
>>> make_method("fedprox", mu=0.1)
FedProx(weighting='samples', mu=0.1)
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from fedptr.core.method import Method
from fedptr.errors import UserError
from fedptr.messages import print_notice
from fedptr.own_code import import_own
from fedptr.settings import build_settings, unknown_name_error

if TYPE_CHECKING:  # so that editors and mypy know the hyper-parameters of `methods.FedPTR(…)`
    from fedptr.methods._classes import *  # noqa: F403

PTR = "+ptr"  # NAME+ptr: the method with FedPTR beside it
PLUG_INS = "fedptr.methods"  # the group of entry points
DECLARED = ("name", "idea", "cite")  # which every method must declare


@functools.cache
def all_methods() -> dict[str, type[Method]]:
    """Method classes by name: those of the paper's Table 1 in its order, then the others by name."""
    found = {method.name: method for method in built_in_methods()}
    for point in sorted(set(importlib.metadata.entry_points(group=PLUG_INS))):
        try:
            method = check_class(point.load(), point.value)
            if found.setdefault(method.name, method) is not method:
                raise UserError(f"there is another method of the name {method.name}")
        except Exception as error:  # whatever is wrong in that package
            print_notice(f"the plug-in {point.name} ({point.value}) is left out: {error}")
    return dict(sorted(found.items(), key=lambda item: (item[1].paper_column or len(found), item[0])))


def built_in_methods() -> Iterator[type[Method]]:
    """The classes with a name of their own in the files of this folder."""
    for info in pkgutil.iter_modules(__path__):  # noqa: F405
        yield from methods_in_file(info.name)


def methods_in_file(file: str) -> Iterator[type[Method]]:
    module = importlib.import_module(f"{__name__}.{file}")
    for value in vars(module).values():
        own = isinstance(value, type) and value.__module__ == module.__name__
        if own and issubclass(value, Method) and "name" in vars(value):
            yield value


@functools.cache
def method_in_its_own_file(name: str) -> type[Method] | None:
    """A method whose file has its name: a run that needs one method loads no other."""
    file = name.replace("-", "_")
    files = {info.name for info in pkgutil.iter_modules(__path__)}  # noqa: F405
    found = methods_in_file(file) if file in files else iter(())
    return next((method for method in found if method.name == name), None)


def check_class(value: Any, where: str) -> type[Method]:
    """Whether something that was imported is a method's class; `where` says what was imported."""
    if not (isinstance(value, type) and issubclass(value, Method) and is_dataclass(value)):
        raise UserError(f"{where} is no method; let it be a frozen dataclass that extends fedptr.core.method.Method")
    missing = [entry for entry in DECLARED if not isinstance(getattr(value, entry, None), str)]
    if missing or "name" not in vars(value):
        raise UserError(f"{where} does not declare {(missing or ['name'])[0]}, which every method has as text")
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", value.name):
        raise UserError(f"{where} has the name {value.name!r}; use small letters, digits, '-', '_' and '.'")
    return value


def paper_methods() -> list[str]:
    """The methods of the paper's Table 1, in its order."""
    return [name for name, method in all_methods().items() if method.paper_column]


def is_known(name: str) -> bool:
    """Whether it is a method's name, or has the form `module:Class`."""
    alone = name.removesuffix(PTR)
    return ":" in name or method_in_its_own_file(alone) is not None or alone in all_methods()


def unknown_method_error(what: str, name: str) -> UserError:
    """That there is no such method; `what` names it in its place."""
    for method in all_methods().values():
        if name in method.aliases:
            return UserError(f"{what} is called {method.name} here")
    return unknown_name_error(what, name, all_methods(), "a method")


@functools.cache
def find_method(name: str) -> type[Method]:
    """A method by its name, or as `module:Class`; `NAME+ptr` is NAME with FedPTR beside it."""
    if not is_known(name):
        raise unknown_method_error(name, name)
    alone = name.removesuffix(PTR)
    method = import_method(alone) if ":" in alone else method_in_its_own_file(alone) or all_methods()[alone]
    if not name.endswith(PTR):
        return method
    from fedptr.methods.ptr.combine import with_ptr  # which is made of methods

    return with_ptr(method)


def import_method(address: str) -> type[Method]:
    """A class of the user's own, as `module:Class`."""
    method = check_class(import_own(address, "method", "module:Class"), f"method {address}")
    if all_methods().get(method.name, method) is not method:
        raise UserError(f"method {address} has the name {method.name}, which another method has; rename it")
    return method


def method_address(method: type[Method]) -> str:
    """What `find_method` finds a class by: its name, or `module:Class` where it is found by nothing else."""
    if is_known(method.name):
        return method.name
    alone = getattr(method, "alone", method)
    return f"{alone.__module__}:{alone.__qualname__}{PTR if alone is not method else ''}"


def make_method(name: str, **settings: Any) -> Method:
    """A method with checked hyper-parameters; what is not given has its default."""
    return build_settings(find_method(name), settings, "method")


def __getattr__(name: str) -> Any:
    """`methods.FedPTR` without an import per method."""
    for method in all_methods().values():
        if method.__name__ == name:
            return method
    raise AttributeError(name)


def __dir__() -> list[str]:
    """Also the method classes, so that `fedptr.methods.<TAB>` lists them."""
    return sorted({*globals(), *(method.__name__ for method in all_methods().values())})
