"""Every file in this folder that defines a method is found by its name: adding the file adds the method.

>>> sorted(all_methods())[:3]
['fedadagrad', 'fedadam', 'fedagm']
>>> make("fedprox", mu=0.1)
FedProx(weighting='samples', mu=0.1)
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from fedptr.core.method import Method
from fedptr.errors import UserError
from fedptr.settings import build_settings, unknown_name_error

if TYPE_CHECKING:  # so that editors and mypy know the hyper-parameters of `methods.FedPTR(…)`
    from fedptr.methods.fedadagrad import FedAdagrad as FedAdagrad
    from fedptr.methods.fedadam import FedAdam as FedAdam
    from fedptr.methods.fedagm import FedAGM as FedAGM
    from fedptr.methods.fedams import FedAMS as FedAMS
    from fedptr.methods.fedavgm import FedAvgM as FedAvgM
    from fedptr.methods.fedcm import FedCM as FedCM
    from fedptr.methods.feddc import FedDC as FedDC
    from fedptr.methods.feddyn import FedDyn as FedDyn
    from fedptr.methods.fedpd import FedPD as FedPD
    from fedptr.methods.fedprox import FedProx as FedProx
    from fedptr.methods.fedptr import FedPTR as FedPTR
    from fedptr.methods.fedptr_s import FedPTRS as FedPTRS
    from fedptr.methods.fedsam import FedSAM as FedSAM
    from fedptr.methods.fedyogi import FedYogi as FedYogi
    from fedptr.methods.mime import Mime as Mime
    from fedptr.methods.mimelite import MimeLite as MimeLite
    from fedptr.methods.mofedsam import MoFedSAM as MoFedSAM
    from fedptr.methods.moon import Moon as Moon
    from fedptr.methods.naive import Naive as Naive
    from fedptr.methods.scaffold import Scaffold as Scaffold

PTR = "+ptr"  # NAME+ptr: the method with FedPTR beside it


@functools.cache
def all_methods() -> dict[str, type[Method]]:
    """Method classes by name: those of the paper's Table 1 in its order, then the others by name."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and issubclass(value, Method)
                and "name" in vars(value)
                and value.__module__ == module.__name__
            ):
                found[value.name] = value
    return dict(sorted(found.items(), key=lambda item: (item[1].paper_column or len(found), item[0])))


def paper_methods() -> list[str]:
    """The methods of the paper's Table 1, in its order."""
    return [name for name, method in all_methods().items() if method.paper_column]


def known(name: str) -> bool:
    return name.removesuffix(PTR) in all_methods()


def missing(what: str, name: str) -> UserError:
    """That there is no such method; `what` names it in its place."""
    for method in all_methods().values():
        if name in method.aliases:
            return UserError(f"{what} is called {method.name} here")
    return unknown_name_error(what, name, all_methods(), "a method")


@functools.cache
def get(name: str) -> type[Method]:
    """A method by its name; `NAME+ptr` is NAME with FedPTR beside it."""
    if not known(name):
        raise missing(name, name)
    method = all_methods()[name.removesuffix(PTR)]
    if not name.endswith(PTR):
        return method
    from fedptr.methods.ptr.combine import with_ptr  # which is made of methods

    return with_ptr(method)


def make(name: str, **settings: Any) -> Method:
    """A method with checked hyper-parameters; what is not given has its default."""
    return build_settings(get(name), settings, "method")


def __getattr__(name: str) -> Any:
    """`methods.FedPTR` without an import per method."""
    for method in all_methods().values():
        if method.__name__ == name:
            return method
    raise AttributeError(name)
