"""Exchange by DLPack on the host: both protocols, lifetimes, refusals, against numpy and by hand-made capsules."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbxtensor as nbx
from nbxtensor import dlpack
from nbxtensor.errors import ArgumentError

NUMPY_DTYPES = (
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
    "complex64", "complex128", "bool",
)  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    gc.collect()
    dlpack.sweep()
    before = len(dlpack._exported)
    yield
    gc.collect()
    dlpack.sweep()
    assert len(dlpack._exported) == before and not dlpack._pending


def tensor(*shape: int, dtype: str = "float32") -> nbx.Tensor:
    return nbx.from_numpy(np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype), "cpu")


class Producer:
    """A producer whose answers are the test's."""

    def __init__(self, capsule: Callable[..., Any], device: tuple[int, int] = (1, 0)):
        self._capsule, self._device = capsule, device

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


class Managed:
    """A managed tensor made by hand, which counts the calls of its deleter."""

    def __init__(self, array: np.ndarray[Any, Any], versioned: bool, **changes: Any):
        self.array, self.deleted, kind = array, 0, dlpack._Versioned if versioned else dlpack._Legacy
        self.managed = kind()
        if versioned:
            self.managed.major, self.managed.minor, self.managed.flags = changes.pop("version", (1, 1)) + (
                changes.pop("flags", 0),
            )
        t = self.managed.tensor
        t.data, t.byte_offset, t.ndim = array.ctypes.data, 0, array.ndim
        t.device = dlpack._DLDevice(1, 0)
        t.dtype = dlpack._DLDataType(*changes.pop("dtype", (2, 32, 1)))
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.strides = (ctypes.c_int64 * array.ndim)(*(n // array.itemsize for n in array.strides))
        t.shape, t.strides = self.shape, self.strides
        for name, value in changes.items():
            setattr(t, name, value)
        self.deleter = dlpack._Deleter(self._delete)
        self.managed.deleter = ctypes.cast(self.deleter, ctypes.c_void_p)
        self.name = dlpack._NAMES[kind]

    def _delete(self, address: int) -> None:
        self.deleted += 1

    def capsule(self, **options: Any) -> Any:
        return dlpack._new_capsule(ctypes.addressof(self.managed), self.name, dlpack._Destructor())

    def producer(self) -> Producer:
        return Producer(self.capsule)


# to numpy


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_numpy_shares_the_memory(dtype: str) -> None:
    x = tensor(3, 4, dtype=dtype)
    array = np.from_dlpack(x)
    assert array.dtype == dtype and array.__array_interface__["data"][0] == x.ptr
    array[1, 2] = 1
    assert x[1, 2].item() == 1


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1, 77), (1,), (2, 1, 3), (1,) * 25])
def test_shapes(shape: tuple[int, ...]) -> None:
    array = np.from_dlpack(tensor(*shape))
    assert array.shape == shape
    np.testing.assert_array_equal(array, tensor(*shape).numpy())


@pytest.mark.parametrize("key", [np.s_[::-1], np.s_[1:, ::2], np.s_[..., None, 1], np.s_[::-2, ::-1]])
def test_strided_views(key: Any) -> None:
    x = tensor(5, 6)
    np.testing.assert_array_equal(np.from_dlpack(x[key]), x.numpy()[key])


@pytest.mark.parametrize("version", [None, (0, 0), (0, 8)])
def test_an_old_consumer_gets_an_unversioned_capsule(version: Any) -> None:
    assert "dltensor_versioned" not in repr(tensor(3).__dlpack__(max_version=version))


@pytest.mark.parametrize("version", [(1, 0), (1, 1), (100, 3)])
def test_a_new_consumer_gets_a_versioned_capsule(version: Any) -> None:
    assert "dltensor_versioned" in repr(tensor(3).__dlpack__(max_version=version))


def test_a_copy_is_told_apart() -> None:
    x = tensor(3)
    copied = np.from_dlpack(x, copy=True)
    copied[0] = 9
    assert x[0].item() == 0
    shared = np.from_dlpack(x, copy=False)
    assert shared.ctypes.data == x.ptr


def test_a_read_only_tensor_stays_read_only() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    x = nbx.from_numpy(array, "cpu", copy=False)
    assert not np.from_dlpack(x).flags.writeable
    with pytest.raises(BufferError, match="read-only"):
        x.__dlpack__()


def test_the_array_keeps_the_memory_alive() -> None:
    array = np.from_dlpack(nbx.full((1000,), 7.0, device="cpu"))
    gc.collect()
    for _ in range(10):
        nbx.zeros((1000,), device="cpu")
    assert (array == 7).all()


@pytest.mark.parametrize("options", [{"dl_device": (2, 0)}, {"stream": 1}, {"dl_device": (1, 1)}])
def test_what_cannot_be_exported_is_a_buffer_error(options: dict[str, Any]) -> None:
    with pytest.raises(BufferError):
        tensor(3).__dlpack__(**options)


def test_a_device_without_memory_is_refused() -> None:
    x = nbx.empty((3,), device="meta")
    with pytest.raises(BufferError, match="meta"):
        x.__dlpack_device__()
    with pytest.raises(BufferError, match="meta"):
        x.__dlpack__()


# from others


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_numpy_arrays_are_used_in_place(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    x = nbx.from_dlpack(array)
    assert x.dtype == dtype and x.ptr == array.ctypes.data
    x[0, 0] = 1
    assert array[0, 0] == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats_pass_between_tensors(dtype: str) -> None:
    x = nbx.from_numpy(np.array([1, -2, 0.5]).astype(getattr(ml_dtypes, dtype)), "cpu")
    y = nbx.from_dlpack(x)
    assert y.dtype == dtype and y.ptr == x.ptr
    assert y.tolist() == [1, -2, 0.5]


@given(st.data())
def test_any_view_of_an_array(data: Any) -> None:
    array = np.arange(60).reshape(3, 4, 5)
    for axis in range(3):
        step = data.draw(st.sampled_from([1, 2, -1, -2]))
        array = array[(slice(None),) * axis + (slice(None, None, step),)]
    array = array.transpose(data.draw(st.permutations(range(3))))
    x = nbx.from_dlpack(array)
    np.testing.assert_array_equal(x.numpy(), array)
    np.testing.assert_array_equal(np.from_dlpack(x), array)


def test_a_read_only_array_gives_a_read_only_tensor() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    x = nbx.from_dlpack(array)
    with pytest.raises(ArgumentError, match="read-only"):
        x[0] = 1.0
    assert x.numpy().tolist() == [0, 1, 2]


@pytest.mark.parametrize("versioned", [False, True])
def test_the_deleter_is_called_once(versioned: bool) -> None:
    made = Managed(np.arange(6, dtype=np.float32).reshape(2, 3), versioned)
    x = nbx.from_dlpack(made.producer())
    assert made.deleted == 0
    view = x[1:]
    del x
    gc.collect()
    assert made.deleted == 0 and view.numpy().tolist() == [[3, 4, 5]]
    del view
    gc.collect()
    assert made.deleted == 1


def test_missing_strides_are_those_of_c() -> None:
    made = Managed(np.arange(6, dtype=np.float32).reshape(2, 3), True, strides=None)
    assert nbx.from_dlpack(made.producer()).numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_an_offset_in_bytes_is_added() -> None:
    array = np.arange(8, dtype=np.float32)
    made = Managed(array[:6], True, byte_offset=8)
    assert nbx.from_dlpack(made.producer()).numpy().tolist() == [2, 3, 4, 5, 6, 7]


def test_no_data_for_no_elements() -> None:
    made = Managed(np.empty((0, 3), np.float32), True, data=None)
    assert nbx.from_dlpack(made.producer()).shape == (0, 3)
    assert made.deleted == 1


def test_misaligned_data_is_copied() -> None:
    raw = np.zeros(17, np.uint8)
    raw[1:13] = np.arange(3, dtype=np.float32).view(np.uint8)
    made = Managed(np.arange(3, dtype=np.float32), True, data=raw.ctypes.data + 1)
    x = nbx.from_dlpack(made.producer())
    assert x.numpy().tolist() == [0, 1, 2] and made.deleted == 1
    refused = Managed(np.arange(3, dtype=np.float32), True, data=raw.ctypes.data + 1)
    with pytest.raises(BufferError, match="aligned"):
        nbx.from_dlpack(refused.producer(), copy=False)
    assert refused.deleted == 1


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"version": (2, 0)}, "version 2.0"), ({"dtype": (2, 32, 4)}, "lanes"), ({"dtype": (9, 32, 1)}, "9")],
)
def test_what_is_not_understood_is_refused(changes: dict[str, Any], match: str) -> None:
    made = Managed(np.arange(3, dtype=np.float32), True, **changes)
    with pytest.raises(BufferError, match=match):
        nbx.from_dlpack(made.producer())


def test_a_capsule_serves_once() -> None:
    capsule = tensor(3).__dlpack__(max_version=(1, 1))
    first = nbx.from_dlpack(Producer(lambda **_: capsule))
    with pytest.raises(ArgumentError, match="consumed"):
        nbx.from_dlpack(Producer(lambda **_: capsule))
    assert first.tolist() == [0, 1, 2]


def test_a_producer_that_knows_no_version() -> None:
    def old(stream: Any = None) -> Any:
        return tensor(3).__dlpack__()

    assert nbx.from_dlpack(Producer(old)).tolist() == [0, 1, 2]


def test_a_producers_own_error_is_its_own() -> None:
    def failing(**_: Any) -> Any:
        raise TypeError("shape is no sequence")

    with pytest.raises(TypeError, match="shape is no sequence"):
        nbx.from_dlpack(Producer(failing))


def test_unknown_devices_are_refused() -> None:
    with pytest.raises(BufferError, match="no driver serves"):
        nbx.from_dlpack(Producer(lambda **_: None, (99, 0)))


@pytest.mark.parametrize("thing", [3, [1, 2], "text", None])
def test_what_is_no_producer_is_refused(thing: Any) -> None:
    with pytest.raises(ArgumentError, match="has no __dlpack"):
        nbx.from_dlpack(thing)


# lifetimes


def test_many_round_trips_leave_nothing() -> None:
    x = tensor(100)
    device = x.device
    live = device.pool.statistics().live
    for _ in range(10_000):
        nbx.from_dlpack(x)
    gc.collect()
    assert device.pool.statistics().live == live


def test_a_capsule_that_nobody_takes_lets_go() -> None:
    x = tensor(100)
    for version in (None, (1, 0)):
        for _ in range(100):
            x.__dlpack__(max_version=version)
            assert len(dlpack._pending) == 1
    dlpack.sweep()
    assert not [kept for _, kept in dlpack._exported.values() if kept is x]


def test_a_consumer_that_refuses_keeps_its_error() -> None:
    x = tensor(3)

    class Elsewhere:
        """A tensor that says it is on a device that numpy does not know, as the capsule does."""

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, **_: Any) -> Any:
            capsule = x.__dlpack__(max_version=(1, 0))
            dlpack._Versioned.from_address(dlpack._pointer(capsule, b"dltensor_versioned")).tensor.device.type = 2
            return capsule

    with pytest.raises((BufferError, RuntimeError), match=r"[Uu]nsupported device"):
        np.from_dlpack(Elsewhere())


def test_an_error_while_a_capsule_is_alive() -> None:
    def fail() -> None:
        capsule = tensor(3).__dlpack__()
        raise RuntimeError(repr(capsule))

    with pytest.raises(RuntimeError):
        fail()


def test_an_interpreter_may_end_with_arrays_and_capsules_alive() -> None:
    program = """
import numpy as np, nbxtensor as nbx
x = nbx.ones((3,), device="cpu")
array, capsule, back = np.from_dlpack(x), x.__dlpack__(), nbx.from_dlpack(np.arange(3.0))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
