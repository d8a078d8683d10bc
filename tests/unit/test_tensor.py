"""NBXTensor: to and from the host, numbers, what it prints, identity, copies, pickles."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.dtype import DTYPES, convert
from nbxtensor.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from nbxtensor.tensor import NBXTensor, from_numpy, spec

NAN, INF = float("nan"), float("inf")


def filled(d: str, shape: tuple[int, ...] = (4, 5, 6)) -> np.ndarray[Any, Any]:
    """An array of the dtype with many different bit patterns."""
    count = int(np.prod(shape)) * DTYPES[d].itemsize
    if d == "bool":
        return np.arange(count).reshape(shape) % 3 == 0
    return (np.arange(count, dtype=np.uint32) * 37 % 251).astype(np.uint8).view(DTYPES[d].numpy).reshape(shape)


# from numpy


@pytest.mark.parametrize("how", [True, None, False])
@pytest.mark.parametrize("d", DTYPES)
def test_round_trip(d: str, how: bool | None) -> None:
    host = filled(d)
    views: list[Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = [
        lambda a: a, lambda a: a[::-1, :, ::2], lambda a: a.T, lambda a: a[1, 2, 3:4].reshape(()), lambda a: a[:, :1],
        lambda a: np.broadcast_to(a[:1], a.shape), lambda a: a[:0], lambda a: a[2:, ::-3].transpose(2, 0, 1),
    ]  # fmt: skip
    for view in views:
        array = view(host)
        x = from_numpy(array, "cpu", copy=how)
        assert x.dtype is DTYPES[d] and x.shape == array.shape and x.device == "cpu"
        back = x.numpy()
        assert back.dtype == array.dtype and back.flags.writeable
        assert back.tobytes() == array.tobytes()
        if how is True:
            assert x.is_contiguous()
        elif array.size:
            assert x.data_ptr() == array.ctypes.data
            assert [n * x.itemsize for n in x.strides] == list(array.strides)


def test_a_copy_does_not_follow_the_array_and_a_shared_tensor_does() -> None:
    host = np.arange(6.0)
    apart, shared, either = (from_numpy(host, "cpu", copy=how) for how in (True, False, None))
    host[2] = 9
    assert apart.tolist()[2] == 2 and shared.tolist()[2] == 9 and either.tolist()[2] == 9
    shared[1:3] = 7
    assert host.tolist() == [0, 7, 7, 3, 4, 5]
    back = shared.numpy()
    back[0] = 5
    assert shared[0].item() == 0


def test_a_shared_array_lives_as_long_as_its_tensors() -> None:
    host = np.arange(1000.0)
    x = from_numpy(host, "cpu", copy=False)[::-1]
    del host
    assert (x + 1).tolist()[:2] == [1000.0, 999.0]


@pytest.mark.parametrize("array, rule", [
    (np.array(["a"]), "strings are not numbers"), (np.array([object()]), "Python objects have no fixed layout"),
    (np.array(["2020-01-01"], "M8[D]"), "dates are not numbers"), (np.array([3], "m8[s]"), "time spans are not"),
    (np.arange(3, dtype=np.dtype("f4").newbyteorder()), "not in this machine's byte order"),
    (np.zeros(2, "f4,i4"), "structured types"), (np.array([b"x"]), "strings are not numbers"),
    (np.longdouble(1), "long double differs"), (np.clongdouble(1), "long double differs"),
])  # fmt: skip
def test_arrays_without_an_equivalent_are_refused(array: Any, rule: str) -> None:
    with pytest.raises(DTypeError, match=rf"from_numpy: array=.*{rule}"):
        from_numpy(array)


@pytest.mark.parametrize("given", [[1, 2], 3.0, None, "text", memoryview(b"abc")])
def test_only_arrays_are_taken(given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"from_numpy: array='\w+': must be a numpy array"):
        from_numpy(given)


def test_what_cannot_be_shared() -> None:
    odd = np.frombuffer(b"x" * 9, np.uint8)[1:].view(np.float32)
    assert not odd.flags.aligned
    with pytest.raises(ArgumentError, match=r"from_numpy: copy=False: not possible: the array is not aligned"):
        from_numpy(odd, "cpu", copy=False)
    assert from_numpy(odd, "cpu", copy=None).numpy().tobytes() == odd.tobytes()
    packed = np.zeros(3, "i1,f4")["f1"]
    with pytest.raises(ArgumentError, match=r"not aligned to its items"):
        from_numpy(packed, "cpu", copy=False)
    with pytest.raises(ArgumentError, match=r"meta does not address host memory"):
        from_numpy(np.zeros(3), "meta", copy=False)


def test_more_dimensions_than_anybody_needs() -> None:
    host = np.arange(2**5.0).reshape((2, 1) * 5 + (1,) * 20)
    x = from_numpy(host)
    assert x.ndim == 30 and (x + 1).numpy().tobytes() == (host + 1).tobytes()
    assert x.permute(tuple(reversed(range(30)))).contiguous().numpy().tobytes() == host.T.tobytes()


# to the host


def test_numpy_copies_no_more_than_it_needs() -> None:
    """A view with large gaps is packed on the device first; one without is picked from what lies there."""
    host = np.arange(10_000.0)
    x = from_numpy(host)
    for view in (slice(None, None, 997), slice(None, None, -2), slice(5, 6), slice(3, 3)):
        assert x[view].numpy().tobytes() == host[view].tobytes()
    assert x.view(100, 100)[:, 7].numpy().tobytes() == host.reshape(100, 100)[:, 7].tobytes()
    assert x[:3].expand(4, 3).numpy().tobytes() == np.broadcast_to(host[:3], (4, 3)).tobytes()


def test_array_protocol() -> None:
    x = from_numpy(np.arange(4.0))
    assert np.asarray(x).tolist() == [0, 1, 2, 3] and np.array(x, dtype=np.int8).dtype == np.int8
    assert np.mean(np.asarray(x)) == 1.5
    with pytest.raises(ValueError, match=r"without a copy"):
        x.__array__(copy=False)
    with pytest.raises(TypeError, match=r"does not support ufuncs"):
        np.add(x, 1)  # type: ignore[call-overload]


@pytest.mark.parametrize("d", DTYPES)
def test_item_of_every_dtype(d: str) -> None:
    kinds = {
        "bool": (bool, True),
        "uint": (int, 3),
        "int": (int, -3),
        "float": (float, -1.5),
        "complex": (complex, 1.5 - 2j),
    }
    python, value = kinds[DTYPES[d].kind]
    for shape in ((), (1,), (1, 1, 1)):
        item = from_numpy(np.full(shape, value, DTYPES[d].numpy)).item()
        assert type(item) is python and item == value
    assert from_numpy(np.array([0, value], DTYPES[d].numpy))[1].item() == value


def test_extreme_items() -> None:
    for value, d in (
        (2**64 - 1, "uint64"),
        (-(2**63), "int64"),
        (2.0**-149, "float32"),
        (65504.0, "float16"),
        (INF, "float8_e5m2"),
    ):
        assert from_numpy(np.array(value, DTYPES[d].numpy)).item() == value
    assert np.isnan(from_numpy(np.array(NAN, DTYPES["bfloat16"].numpy)).item())


def test_python_numbers() -> None:
    one = from_numpy(np.array([[2]], np.int16))
    assert (int(one), float(one), complex(one), bool(one), range(5)[one]) == (2, 2.0, 2 + 0j, True, 2)
    assert [10, 20, 30][from_numpy(np.array(1, np.uint8))] == 20
    assert bool(from_numpy(np.array(NAN))) and not from_numpy(np.array(-0.0))
    with pytest.raises(TypeError, match=r"dtype float64 cannot be an index"):
        range(5)[from_numpy(np.array(1.0))]
    with pytest.raises(TypeError, match=r"dtype bool cannot be an index"):
        range(5)[from_numpy(np.array(True))]
    many = from_numpy(np.arange(2))
    for call in (bool, int, float, complex):
        with pytest.raises(ShapeError, match=rf"{call.__name__}: self=\(2,\): only a tensor of one element"):
            call(many)
    for tensor in (many, many[:0]):
        with pytest.raises(ShapeError, match=r"item: self=.*must have exactly one element"):
            tensor.item()
    with pytest.raises(ValueError, match=r"only a tensor of one element"):
        assert many == many


def test_tolist() -> None:
    assert from_numpy(np.arange(6).reshape(2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert from_numpy(np.float32(1.5)).tolist() == 1.5 and from_numpy(np.zeros((2, 0))).tolist() == [[], []]
    small = from_numpy(convert(np.array([0.5, 1.0]), "float8_e4m3fn")).tolist()
    assert small == [0.5, 1.0] and type(small[0]) is float


# what it says


def test_facts() -> None:
    x = from_numpy(np.zeros((2, 3, 4), np.float16))[:, ::2]
    assert (x.shape, x.strides, x.stride(), x.stride(1), x.stride(-1)) == ((2, 2, 4), (12, 8, 1), (12, 8, 1), 8, 1)
    assert (x.ndim, x.dim(), x.size, x.numel(), x.itemsize, x.element_size(), x.nbytes) == (3, 3, 16, 16, 2, 2, 32)
    assert x.is_floating_point() and not x.is_complex() and not x.is_contiguous() and x[0, 0].is_contiguous()
    assert x[1, 1].storage_offset == 20 and x[1, 1].data_ptr() == x.data_ptr() + 40
    assert x.extent[0] == x.storage.address and x.extent[1] >= 48
    assert len(x) == 2 and [row.shape for row in x] == [(2, 4)] * 2
    scalar = x[0, 0, 0]
    for call in (len, iter):
        with pytest.raises(TypeError, match=r"0-d tensor"):
            call(scalar)
    with pytest.raises(ShapeError, match=r"stride: dim=3: must lie in -3..2"):
        x.stride(3)


def test_strides_of_dimensions_of_size_1_do_not_count() -> None:
    x = from_numpy(np.zeros((3, 1, 4)))
    assert x.transpose(0, 1).is_contiguous() and x[:, :, :1].transpose(1, 2).is_contiguous() is False
    assert x[:1].is_contiguous() and x[:0].permute(2, 0, 1).is_contiguous()


def test_facts_cannot_be_set() -> None:
    x = from_numpy(np.zeros(3))
    for name in ("dtype", "shape", "strides", "device", "anything"):
        with pytest.raises(AttributeError):
            setattr(x, name, "float16")
    with pytest.raises(AttributeError, match=r"constant"):
        x.dtype.name = "int8"


@pytest.mark.parametrize("x, text", [
    (np.float32(1.5), "tensor(1.5, dtype=float32, device='cpu')"),
    (np.array([1, -2], np.int8), "tensor([ 1, -2], dtype=int8, device='cpu')"),
    (np.array([True, False]), "tensor([ True, False], dtype=bool, device='cpu')"),
    (np.zeros((0, 3)), "tensor([], shape=(0, 3), dtype=float64, device='cpu')"),
    (np.array([1 + 2j], np.complex64), "tensor([1.+2.j], dtype=complex64, device='cpu')"),
    (convert(np.array([[0.1, NAN], [INF, -2]]), "bfloat16"),
     "tensor([[ 0.10009766,         nan],\n        [        inf, -2.        ]], dtype=bfloat16, device='cpu')"),
    (np.arange(3.0)[::-1], "tensor([2., 1., 0.], dtype=float64, device='cpu')"),
])  # fmt: skip
def test_repr(x: Any, text: str) -> None:
    assert repr(from_numpy(x, "cpu")) == str(from_numpy(x, "cpu")) == text


def test_repr_of_a_large_tensor_shows_the_edges_and_the_shape() -> None:
    x = from_numpy(np.arange(40_000).reshape(200, 200), "cpu")
    text = repr(x)
    assert text.startswith("tensor([[    0,     1,     2, ...,   197,   198,   199],\n        [  200,")
    assert text.endswith("39998, 39999]], shape=(200, 200), dtype=int64, device='cpu')")
    assert text.count("\n") < 12 and len(repr(x.view(-1))) < 200


def test_repr_where_nothing_executes() -> None:
    assert repr(nbx.zeros((2, 3), "float16", "meta")) == "tensor(..., shape=(2, 3), dtype=float16, device='meta')"


def test_specs_are_interned() -> None:
    a, b = from_numpy(np.zeros((2, 3))), from_numpy(np.ones((2, 3)))
    assert a.spec is b.spec and a.mT.spec is b.mT.spec and a.mT.mT.spec is a.spec
    assert a.spec is spec(a.device, a.dtype, (2, 3)) and a.float().spec is not a.spec
    assert repr(a.spec) == "Spec(float64[2, 3] on cpu)"
    assert repr(a.mT.spec) == "Spec(float64[3, 2] on cpu, strides=(1, 3))"


# identity and copies


def test_a_tensor_is_a_key_by_identity() -> None:
    x, y = from_numpy(np.ones(2)), from_numpy(np.ones(2))
    assert {x: 1, y: 2}[x] == 1 and hash(x) == hash(x) and len({x, y, x}) == 2


@pytest.mark.parametrize("d", DTYPES)
def test_pickles_and_copies(d: str) -> None:
    x = from_numpy(filled(d))[::2, :, ::-1]
    for made in (pickle.loads(pickle.dumps(x)), copy.copy(x), copy.deepcopy(x)):
        assert made.dtype is x.dtype and made.shape == x.shape and made.device is x.device
        assert made.numpy().tobytes() == x.numpy().tobytes() and made.storage is not x.storage


# devices


def test_moving_between_devices() -> None:
    x = from_numpy(np.arange(3.0), "cpu")
    assert x.to("cpu") is x
    with pytest.raises(DeviceError, match=r"meta device holds no data"):
        x.to("meta")
    with pytest.raises(DeviceError, match=r"meta device holds no data"):
        nbx.zeros(3, device="meta").numpy()


def test_tensors_in_a_module_at_exit() -> None:
    """Tensors, views and routines that outlive the device's close do no harm, in whatever order they go."""
    code = """
import numpy as np, nbxtensor as nbx
kept = [nbx.from_numpy(np.arange(8.0), copy=how) for how in (True, False)]
view = (kept[0] + 1)[::2]
class Holder:
    def __init__(self): self.cycle, self.tensor = self, nbx.ones((3, 3)) @ nbx.ones((3, 3))
holder = Holder()
print(view.tolist(), holder.tensor.sum().item(), flush=True)
{end}
"""
    for end, status in (("", 0), ("raise SystemExit(3)", 3), ("raise ValueError('the program')", 1)):
        result = subprocess.run([sys.executable, "-c", code.replace("{end}", end)], capture_output=True, text=True)
        assert result.returncode == status, result.stderr
        assert result.stdout == "[1.0, 3.0, 5.0, 7.0] 27.0\n"
        wanted = "ValueError: the program\n" if status == 1 else ""
        assert result.stderr.endswith(wanted) and ("Exception ignored" not in result.stderr)
        assert status == 1 or not result.stderr


def test_new_tensors_have_no_dictionary() -> None:
    with pytest.raises(AttributeError):
        from_numpy(np.zeros(1)).note = "kept"  # type: ignore[attr-defined]
    assert not hasattr(NBXTensor, "__dict__") or "__dict__" not in dir(from_numpy(np.zeros(1)))
