"""Code of the user's own, given as `module:name`: a model, or a method."""

from __future__ import annotations

import importlib
import operator
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedptr.errors import UserError


@contextmanager
def current_folder_first() -> Iterator[None]:
    """Modules are looked for in the current folder first, as with `python -m`."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def import_own(address: str, what: str, form: str) -> Any:
    """What `module:name` names; `what` begins the sentence that says why it cannot be had.

    >>> import_own("collections:OrderedDict", "model.name", "module:factory").__name__
    'OrderedDict'
    """
    module, _, name = address.partition(":")
    try:
        with current_folder_first():
            return operator.attrgetter(name)(importlib.import_module(module))
    except Exception as error:  # whatever is wrong in that file
        raise UserError(f"{what} {address!r} cannot be imported ({error}); give it as {form}") from error
