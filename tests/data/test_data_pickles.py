"""A hostile pickle is refused before any of it runs."""

import os
import pickle

import numpy as np
import pytest

from fedptr.data import safe_pickle
from fedptr.data.readers import read_cifar10_python
from fedptr.errors import UserError


class Call:
    """Pickles as the call of a function."""

    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


def hostile(marker):
    touch = f"touch {marker}"
    write = f"open({str(marker)!r}, 'w').close()"
    bad = Call(os.system, touch)
    inside = np.empty(1, object)
    inside[0] = bad
    return {
        "system": bad,
        "eval": Call(eval, write),
        "exec": Call(exec, write),
        "getattr": Call(getattr, bad, "x"),
        "nested in a dictionary": {"data": [{"labels": (1, bad)}]},
        "nested in a call": Call(np.dtype, bad),
        "nested calls": Call(Call, Call(eval, write)),
        "object array": {"data": inside, "labels": [0]},
        "harmless object array": {"data": np.array([1, "a"], object), "labels": [0]},
        "other dtype": {"data": np.zeros(3072), "labels": [0]},
        "numpy function": Call(np.load, str(marker)),
        "method of an allowed class": Call(np.ndarray.tofile, np.zeros(1, np.uint8), str(marker)),
    }


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("kind", sorted(hostile("x")))
def test_hostile_pickles_are_refused(tmp_path, kind, protocol):
    marker = tmp_path / "executed"
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(hostile(marker)[kind], protocol=protocol))
    with pytest.raises(UserError, match=r"data_batch_1 asks for .*so it was not read"):
        read_cifar10_python(tmp_path)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["numpy\nndarray", "_codecs\nencode", "numpy\ndtype"])
def test_the_stand_ins_cannot_be_changed(tmp_path, name):
    """BUILD on the class itself would set its attributes for the rest of the process."""
    before = {kind: dict(vars(kind)) for kind in safe_pickle.ALLOWED.values()}
    program = b"\x80\x02c" + name.encode() + b"\n}U\x03fooK\x01sb."
    (tmp_path / "data_batch_1").write_bytes(program)
    with pytest.raises(UserError):
        read_cifar10_python(tmp_path)
    assert {kind: dict(vars(kind)) for kind in safe_pickle.ALLOWED.values()} == before


@pytest.mark.parametrize("content", [[1, 2], {"labels": [0]}, {"data": 3, "labels": [0]}, {"data": b"", "labels": "a"}])
def test_pickles_of_something_else(tmp_path, content):
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(content))
    with pytest.raises(UserError, match="cannot be read as a CIFAR python batch"):
        read_cifar10_python(tmp_path)
