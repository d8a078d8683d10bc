"""Exchange of tensors without a copy: the DLPack protocol, version 1.1 and the older unversioned one.

Source: the header ``dlpack.h`` 1.1 and the Array API standard's ``__dlpack__`` and ``from_dlpack``.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from nbxtensor import shape as _shape
from nbxtensor.backend import runtime
from nbxtensor.dtype import from_dlpack as _dtype_of
from nbxtensor.errors import ArgumentError, DTypeError
from nbxtensor.tensor import DeviceLike, NBXTensor, empty_for, from_address, from_numpy, spec

_VERSION = (1, 1)
_READ_ONLY, _IS_COPIED = 1, 2
#: DLDeviceType of our device types; the pinned host memory of CUDA (3) and ROCm (11) is read as the host's.
_DEVICE_TYPES = {"cpu": 1, "cuda": 2, "metal": 8, "hip": 10, "xpu": 14}
#: The stream that producers are asked to order their work before: the vendors' legacy default one.
_LEGACY_STREAMS = {"cuda": 1, "hip": 0}
_TYPES_OF = {**{code: name for name, code in _DEVICE_TYPES.items()}, 3: "cpu", 11: "cpu"}


class _DLDevice(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Legacy(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_NAMES = {_Legacy: b"dltensor", _Versioned: b"dltensor_versioned"}
_USED = {_Legacy: b"used_dltensor", _Versioned: b"used_dltensor_versioned"}

_api = ctypes.pythonapi
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(
    ("PyCapsule_New", _api)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))

# What exported tensors keep alive, by the address of their managed tensor: until its deleter is called, once.
_exported: dict[int, Any] = {}
_lock = threading.RLock()  # letting go of a tensor may let go of another one, from which it was imported


def _delete(address: int, exported: dict[int, Any] = _exported, lock: Any = _lock) -> None:
    with lock:
        exported.pop(address, None)


# Consumers may call it when the interpreter ends and this module's names are gone: it holds what it uses as defaults,
# and is never freed.
_deleter = _Deleter(_delete)
_api.Py_IncRef(ctypes.py_object(_deleter))

# Capsules that nobody is known to have consumed: (address, its name while unused, capsule). They have no destructor:
# one in Python would run with the error of a consumer that refuses the capsule, and lose it.
_pending: list[tuple[int, bytes, Any]] = []
_HELD = 3  # references to a capsule that only this module holds: in the list, in the loop, in the call that counts


def sweep() -> None:
    """Lets go of exported tensors whose capsule was dropped without a consumer; every export begins with it."""
    with _lock:
        waiting = []
        for entry in _pending:
            address, name, capsule = entry
            if not _is_valid(capsule, name):
                continue  # consumed: its deleter will be called
            if sys.getrefcount(capsule) > _HELD:
                waiting.append(entry)
            else:
                _exported.pop(address, None)
        _pending[:] = waiting


def device_of(tensor: NBXTensor) -> tuple[int, int]:
    """``tensor.__dlpack_device__()``: (DLDeviceType, device number)."""
    device = tensor.spec.device
    code = _DEVICE_TYPES.get(device.type)
    if code is None:
        raise BufferError(f"__dlpack_device__: device {device.name} has no memory that DLPack describes")
    return code, device.index


def export(
    tensor: NBXTensor,
    stream: Any,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> Any:
    """``tensor.__dlpack__``: a capsule of this tensor's memory, which it keeps alive until the consumer deletes it.

    ``max_version`` of (1, 0) or later gives a versioned capsule, which says that a tensor is read-only; without it a
    read-only tensor is a `BufferError`, as is everything else that cannot be exported as asked. ``dl_device`` (1, 0)
    gives a copy on the host of a tensor of another device. The device's stream is waited for unless ``stream`` is -1.
    """
    here = device_of(tensor)
    flags = 0
    if dl_device is not None and tuple(int(n) for n in dl_device) != here:
        if tuple(int(n) for n in dl_device) != (_DEVICE_TYPES["cpu"], 0):
            raise BufferError(
                f"__dlpack__: dl_device={dl_device!r}: the tensor is on {here}, and only the host is another choice"
            )
        if copy is False:
            raise BufferError(
                f"__dlpack__: copy=False: the tensor is on {here} and dl_device={dl_device!r} needs a copy"
            )
        tensor, flags = tensor.to("cpu"), _IS_COPIED
    elif copy:
        tensor, flags = tensor.clone(), _IS_COPIED
    if tensor.spec.device.type == "cpu" and stream is not None and dl_device is None:
        raise BufferError(f"__dlpack__: stream={stream!r}: must be None for a tensor on the host")
    if stream != -1:
        tensor.spec.device.synchronize()
    versioned = max_version is not None and tuple(max_version) >= (1, 0)
    if tensor.storage.readonly:
        if not versioned:
            raise BufferError(
                "__dlpack__: the tensor is read-only, which a capsule without a version cannot say: pass max_version"
            )
        flags |= _READ_ONLY
    managed: Any = _Versioned() if versioned else _Legacy()
    if versioned:
        managed.major, managed.minor, managed.flags = (*_VERSION, flags)
    _describe(managed.tensor, tensor)
    managed.deleter = ctypes.cast(_deleter, ctypes.c_void_p)
    address = ctypes.addressof(managed)
    name = _NAMES[type(managed)]
    capsule = _new_capsule(address, name, _Destructor())
    sweep()
    with _lock:
        _exported[address] = (managed, tensor)
        _pending.append((address, name, capsule))
    return capsule


def _describe(target: Any, tensor: NBXTensor) -> None:
    s = tensor.spec
    shape = s.shape
    # Consumers disagree on the strides of dimensions of size 1 and of empty tensors: give the canonical ones.
    strides = (
        _shape.contiguous_strides(shape)
        if s.contiguous
        else tuple(1 if n == 1 else k for n, k in zip(shape, s.strides))
    )
    target.data, target.byte_offset, target.ndim = tensor.ptr, 0, len(shape)
    target.device = _DLDevice(*device_of(tensor))
    code, bits = s.dtype.dlpack
    target.dtype = _DLDataType(code, bits, 1)
    target.shape = (ctypes.c_int64 * len(shape))(*shape)
    target.strides = (ctypes.c_int64 * len(shape))(*strides)


def from_dlpack(x: Any, device: DeviceLike = None, *, copy: bool | None = None) -> NBXTensor:
    """A tensor of another library, by the DLPack protocol: on its device without a copy, or moved to ``device``.

    ``copy`` True always copies, False raises `BufferError` where a copy is needed. Memory of the host is used by the
    ``cpu`` device; it stays alive with the tensor, and a read-only producer gives a read-only tensor."""
    for method in ("__dlpack__", "__dlpack_device__"):
        if not hasattr(x, method):
            raise ArgumentError("from_dlpack", "x", type(x).__name__, f"has no {method} method")
    kind, index = x.__dlpack_device__()
    type_name = _TYPES_OF.get(int(kind))
    if type_name is None:
        raise BufferError(
            f"from_dlpack: the producer's device ({int(kind)}, {index}) is of a type that no driver serves"
        )
    home = runtime.device("cpu" if type_name == "cpu" else f"{type_name}:{int(index)}")
    target = home if device is None else runtime.device(device)
    if copy is False and target is not home:
        raise BufferError(f"from_dlpack: copy=False: the data is on {home.name} and device {target.name} needs a copy")
    tensor = _consume(_capsule(x, type_name), home, copy)
    if target is not home:
        return tensor.to(target)
    return tensor.clone() if copy else tensor


def _capsule(x: Any, type_name: str) -> Any:
    """The producer's capsule; producers older than version 1 do not know ``max_version``."""
    stream = _LEGACY_STREAMS.get(type_name)
    given = {} if stream is None else {"stream": stream}
    try:
        return x.__dlpack__(max_version=_VERSION, **given)
    except TypeError:
        return x.__dlpack__(**given)


def _consume(capsule: Any, device: runtime.Device, copy: bool | None) -> NBXTensor:
    kind: Any = next((k for k, name in _NAMES.items() if _is_valid(capsule, name)), None)
    if kind is None:
        raise ArgumentError(
            "from_dlpack", "x", capsule, "its __dlpack__ must give a capsule that was not consumed before"
        )
    address = _pointer(capsule, _NAMES[kind])
    managed = kind.from_address(address)
    if kind is _Versioned and managed.major != _VERSION[0]:
        raise BufferError(
            f"from_dlpack: the producer speaks version {managed.major}.{managed.minor}, this library {_VERSION[0]}"
        )
    _set_name(capsule, _USED[kind])  # from here on the deleter is ours to call
    _follow(device)
    release = _once(managed.deleter, address, device)
    try:
        return _adopt(managed, device, copy, release)
    except BaseException:
        release()
        raise


def _follow(device: runtime.Device) -> None:
    """Orders the device's stream after the stream that the producer ordered its work before."""
    stream = _LEGACY_STREAMS.get(device.type)
    if stream is not None:
        context = device.context
        event = context.create_event()
        context.record(event, stream)
        context.wait(event, device.stream)
        context.destroy_event(event)


def _once(deleter: int | None, address: int, device: runtime.Device) -> Callable[[], None]:
    """Calls the producer's deleter, once, and not before work that may still use the memory is done."""
    called: list[bool] = []

    def release() -> None:
        if not called:
            called.append(True)
            if not device.closed and not device.context.capabilities.host_addressable:
                device.context.synchronize(device.stream)
            if deleter:
                _Deleter(deleter)(address)

    return release


def _adopt(managed: Any, device: runtime.Device, copy: bool | None, release: Callable[[], None]) -> NBXTensor:
    given, readonly = managed.tensor, isinstance(managed, _Versioned) and bool(managed.flags & _READ_ONLY)
    try:
        dtype = _dtype_of(given.dtype.code, given.dtype.bits, given.dtype.lanes)
    except DTypeError as error:
        raise BufferError(f"from_dlpack: {error}") from error
    shape = tuple(given.shape[: given.ndim])
    strides = tuple(given.strides[: given.ndim]) if given.strides else None
    view = spec(device, dtype, shape, None if _shape.numel(shape) == 0 else strides)
    if view.numel == 0:
        release()
        return empty_for(view)
    ptr, size = (given.data or 0) + given.byte_offset, dtype.itemsize
    first, nbytes = ptr + view.lowest * size, (view.highest - view.lowest + 1) * size
    component = size // 2 if dtype.kind == "complex" else size
    if ptr % component == 0:
        return from_address(ptr, view, (first, nbytes), base=None, readonly=readonly, release=release)
    if copy is False or not device.context.capabilities.host_addressable:
        raise BufferError(f"from_dlpack: the data at {ptr:#x} is not aligned to its items of {size} bytes")
    flat = np.frombuffer(ctypes.string_at(first, nbytes), dtype.numpy)[-view.lowest :]
    host = np.lib.stride_tricks.as_strided(flat, shape, [n * size for n in view.strides])
    made = from_numpy(host, device)
    release()
    return made
