"""NBXTensor: a strided view of device memory.

A tensor is an address, a `Spec` (device, dtype, shape, strides in elements) and the `Storage` that keeps the memory
alive. Views share the storage. Nothing here launches a kernel: operators and operator methods are bound by
`nbxtensor.ops` from the operator table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nbxtensor import shape as _shape
from nbxtensor.backend import runtime
from nbxtensor.dtype import DType
from nbxtensor.dtype import dtype as _dtype
from nbxtensor.errors import ArgumentError, DeviceError, DTypeError, ShapeError

if TYPE_CHECKING:
    from nbxtensor.memory.pool import Bin
    from nbxtensor.operator_methods import OperatorMethods
else:
    OperatorMethods = object  # the operator methods are bound at run time; type checkers read them in a generated stub

DeviceLike = str | runtime.Device | None
_SPEC_CACHE_LIMIT = 1 << 16
_PYTHON: dict[str, Any] = {"bool": bool, "uint": int, "int": int, "float": float, "complex": complex}


class Storage:
    """A block of a device's pool. It returns to its size class when the last tensor on it dies."""

    __slots__ = ("device", "address", "bin", "__weakref__")
    device: runtime.Device
    address: int
    bin: Bin
    readonly = False

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return self.bin.size

    def __del__(self) -> None:
        self.bin.append(self.address)


class ForeignStorage:
    """Memory that somebody else owns: ``base`` is kept alive as long as a tensor uses it. ``release`` is called
    once."""

    __slots__ = ("device", "address", "nbytes", "readonly", "base", "_release", "__weakref__")

    def __init__(
        self, device: runtime.Device, address: int, nbytes: int, base: Any, readonly: bool, release: Any = None
    ):
        self.device, self.address, self.nbytes, self.readonly = device, address, nbytes, readonly
        self.base, self._release = base, release

    def __del__(self) -> None:
        if self._release is not None:
            self._release()


class Spec:
    """What a tensor is besides its memory: ``device``, ``dtype``, ``shape``, ``strides`` (elements). Immutable and
    interned, so that equal specs are one object and a launch is found by identity; make one with `spec`."""

    __slots__ = ("device", "dtype", "shape", "strides", "numel", "nbytes", "contiguous", "lowest", "highest")

    def __init__(self, device: runtime.Device, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...]):
        self.device, self.dtype, self.shape, self.strides = device, dtype, shape, strides
        self.numel = _shape.numel(shape)
        self.nbytes = self.numel * dtype.itemsize
        self.contiguous = _shape.is_contiguous(shape, strides)
        self.lowest, self.highest = _shape.extent(shape, strides)

    def with_strides(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> Spec:
        """The spec of a view: the same device and dtype."""
        return spec(self.device, self.dtype, shape, strides)

    def __repr__(self) -> str:
        layout = "" if self.contiguous else f", strides={self.strides}"
        return f"Spec({self.dtype}{list(self.shape)} on {self.device}{layout})"


_specs: dict[tuple[Any, ...], Spec] = {}


def spec(device: runtime.Device, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Spec:
    """The interned `Spec`; ``strides`` None means contiguous in C order."""
    key = (id(device), dtype, shape, strides)
    found = _specs.get(key)
    if found is None or found.device is not device:
        found = Spec(device, dtype, shape, _shape.contiguous_strides(shape) if strides is None else strides)
        if len(_specs) >= _SPEC_CACHE_LIMIT:
            _specs.clear()  # equal specs may then be two objects, whose launches are prepared once more
        found = _specs.setdefault((id(device), dtype, shape, found.strides), found)
        _specs[key] = found
    return found


class NBXTensor(OperatorMethods):
    """An n-dimensional array on a device. Create one with `from_numpy` or the creation operators.

    ``ptr`` is the address of the first element, ``spec`` its `Spec`, ``storage`` what owns the memory.
    """

    __slots__ = ("ptr", "spec", "storage", "__weakref__")
    __array_ufunc__ = None  # numpy leaves `array + tensor` to the tensor, which refuses it by name
    ptr: int
    spec: Spec
    storage: Storage | ForeignStorage

    # what it is

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return self.spec.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements."""
        return self.spec.strides

    @property
    def dtype(self) -> DType:
        """The dtype of the elements: its name, a string."""
        return self.spec.dtype

    @property
    def device(self) -> runtime.Device:
        """The device that holds the memory."""
        return self.spec.device

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.spec.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.spec.numel

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, ``size * itemsize``."""
        return self.spec.nbytes

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.spec.dtype.itemsize

    @property
    def storage_offset(self) -> int:
        """Elements from the start of the storage to the first element."""
        return (self.ptr - self.storage.address) // self.spec.dtype.itemsize

    @property
    def extent(self) -> tuple[int, int]:
        """(address, bytes) of the whole allocation."""
        return self.storage.address, self.storage.nbytes

    def numel(self) -> int:
        """Number of elements."""
        return self.spec.numel

    def dim(self) -> int:
        """Number of dimensions."""
        return len(self.spec.shape)

    def data_ptr(self) -> int:
        """Address of the first element."""
        return self.ptr

    def element_size(self) -> int:
        """Bytes of an element."""
        return self.spec.dtype.itemsize

    def stride(self, dim: int | None = None) -> int | tuple[int, ...]:
        """The strides in elements, or that of one dimension."""
        if dim is None:
            return self.spec.strides
        return self.spec.strides[_shape.normalize_axis(dim, self.ndim, where="stride", argument="dim")]

    def is_contiguous(self) -> bool:
        """Whether the elements follow each other in C order; strides of dimensions of size 1 do not count."""
        return self.spec.contiguous

    def is_floating_point(self) -> bool:
        """Whether the dtype is a float of any width."""
        return self.spec.dtype.kind == "float"

    def is_complex(self) -> bool:
        """Whether the dtype is complex."""
        return self.spec.dtype.kind == "complex"

    # views: they share the storage and never copy

    def view(self, *shape: Any) -> NBXTensor:
        """The same elements under another shape (one size may be -1), or, given a dtype of the same width, under that
        dtype.

        Raises `ShapeError` when the strides do not allow it; ``reshape`` copies then.
        """
        if len(shape) == 1 and isinstance(shape[0], str):
            return self._view_dtype(_dtype(shape[0], where="view"))
        s = self.spec
        new = _shape.resolve_shape(_sizes(shape), s.numel, where="view")
        strides = _shape.view_strides(s.shape, s.strides, new)
        if strides is None:
            rule = f"not possible without a copy for shape {s.shape} and strides {s.strides}; use reshape"
            raise ShapeError("view", "shape", new, rule)
        return _alias(self, s.with_strides(new, strides))

    def _view_dtype(self, dtype: DType) -> NBXTensor:
        if dtype.itemsize != self.spec.dtype.itemsize:
            rule = f"must have the {self.spec.dtype.itemsize}-byte items of {self.spec.dtype}"
            raise DTypeError("view", "dtype", dtype, rule)
        return _alias(self, spec(self.spec.device, dtype, self.spec.shape, self.spec.strides))

    def view_as_real(self) -> NBXTensor:
        """A complex tensor as pairs of floats: a last dimension of size 2 with the real and the imaginary part."""
        s = self.spec
        half = self._half("view_as_real")
        return _alias(self, spec(s.device, half, (*s.shape, 2), (*(2 * n for n in s.strides), 1)))

    @property
    def real(self) -> NBXTensor:
        """The real part, a view; a tensor of real numbers itself."""
        return self.view_as_real()[..., 0] if self.is_complex() else self

    @property
    def imag(self) -> NBXTensor:
        """The imaginary part of a complex tensor, a view."""
        return self.view_as_real()[..., 1]

    def _half(self, where: str) -> DType:
        if not self.is_complex():
            raise DTypeError(where, "self", self.dtype, "must be complex")
        return _dtype("float32" if self.dtype == "complex64" else "float64")

    def permute(self, *dims: Any) -> NBXTensor:
        """Dimensions in the given order; every dimension once."""
        order = _shape.normalize_axes(_sizes(dims), self.ndim, where="permute", argument="dims")
        if len(order) != self.ndim:
            raise ShapeError("permute", "dims", dims, f"must name each of the {self.ndim} dimensions once")
        s = self.spec
        return _alias(self, s.with_strides(tuple(s.shape[d] for d in order), tuple(s.strides[d] for d in order)))

    def transpose(self, dim0: int, dim1: int) -> NBXTensor:
        """Two dimensions exchanged."""
        a = _shape.normalize_axis(dim0, self.ndim, where="transpose", argument="dim0")
        b = _shape.normalize_axis(dim1, self.ndim, where="transpose", argument="dim1")
        order = list(range(self.ndim))
        order[a], order[b] = order[b], order[a]
        return self.permute(order)

    def t(self) -> NBXTensor:
        """A matrix transposed; vectors and 0-d tensors as they are."""
        if self.ndim > 2:
            raise ShapeError("t", "self", self.shape, "must have at most 2 dimensions; use transpose or mT")
        return self if self.ndim < 2 else self.transpose(0, 1)

    @property
    def T(self) -> NBXTensor:
        """The transpose of a matrix."""
        if self.ndim != 2:
            raise ShapeError("T", "self", self.shape, "must have 2 dimensions; use mT or permute")
        return self.transpose(0, 1)

    @property
    def mT(self) -> NBXTensor:
        """The last two dimensions exchanged."""
        if self.ndim < 2:
            raise ShapeError("mT", "self", self.shape, "must have at least 2 dimensions")
        return self.transpose(-2, -1)

    def movedim(self, source: int | Sequence[int], destination: int | Sequence[int]) -> NBXTensor:
        """Dimensions moved to other places, the others in their order."""
        one = isinstance(source, int)
        src = _shape.normalize_axes((source,) if one else source, self.ndim, where="movedim", argument="source")
        one = isinstance(destination, int)
        dst = _shape.normalize_axes(
            (destination,) if one else destination, self.ndim, where="movedim", argument="destination"
        )
        if len(src) != len(dst):
            raise ShapeError("movedim", "destination", destination, f"must name as many dimensions as source {source}")
        rest = iter([d for d in range(self.ndim) if d not in src])
        place = dict(zip(dst, src))
        return self.permute([place[d] if d in place else next(rest) for d in range(self.ndim)])

    def unsqueeze(self, dim: int) -> NBXTensor:
        """A dimension of size 1 inserted before ``dim`` (from -ndim - 1 to ndim)."""
        at = _shape.normalize_axis(dim, self.ndim + 1, where="unsqueeze", argument="dim")
        s = self.spec
        step = s.shape[at] * s.strides[at] if at < self.ndim else 1
        return _alias(self, s.with_strides((*s.shape[:at], 1, *s.shape[at:]), (*s.strides[:at], step, *s.strides[at:])))

    def squeeze(self, dim: int | Sequence[int] | None = None) -> NBXTensor:
        """Without the dimensions of size 1: all, or those of ``dim`` (others named there stay, as ATen has it)."""
        s = self.spec
        if dim is None:
            drop = set(range(self.ndim))
        else:
            dims = (dim,) if isinstance(dim, int) else dim
            drop = set(_shape.normalize_axes(dims, self.ndim, where="squeeze", argument="dim"))
        keep = [d for d in range(self.ndim) if d not in drop or s.shape[d] != 1]
        return _alias(self, s.with_strides(tuple(s.shape[d] for d in keep), tuple(s.strides[d] for d in keep)))

    def expand(self, *shape: Any) -> NBXTensor:
        """Broadcast to ``shape`` without a copy; -1 keeps a size."""
        s = self.spec
        return _alias(self, s.with_strides(*_shape.expand(s.shape, s.strides, _sizes(shape))))

    def expand_as(self, other: NBXTensor) -> NBXTensor:
        """Broadcast to the shape of another tensor."""
        return self.expand(*other.shape)

    def view_as(self, other: NBXTensor) -> NBXTensor:
        """The same elements under the shape of another tensor."""
        return self.view(*other.shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> NBXTensor:
        """Dimensions ``start_dim`` to ``end_dim`` merged into one; a view where the strides allow, else a copy."""
        if self.ndim == 0:
            return self.view(1)
        a = _shape.normalize_axis(start_dim, self.ndim, where="flatten", argument="start_dim")
        b = _shape.normalize_axis(end_dim, self.ndim, where="flatten", argument="end_dim")
        if a > b:
            raise ShapeError("flatten", "start_dim", start_dim, f"must not lie after end_dim={end_dim}")
        merged = _shape.numel(self.shape[a : b + 1])
        return self.reshape((*self.shape[:a], merged, *self.shape[b + 1 :]))

    def narrow(self, dim: int, start: int, length: int) -> NBXTensor:
        """``length`` elements of ``dim`` from ``start`` (which may be negative)."""
        d = _shape.normalize_axis(dim, self.ndim, where="narrow", argument="dim")
        s, size = self.spec, self.spec.shape[d]
        start = _shape.integer(start, where="narrow", argument="start")
        length = _shape.integer(length, where="narrow", argument="length")
        first = start + size if start < 0 else start
        if not 0 <= first <= size:
            raise ShapeError("narrow", "start", start, f"must lie within dimension {d} of size {size}")
        if not 0 <= length <= size - first:
            raise ShapeError(
                "narrow", "length", length, f"must be from 0 to {size - first} (dimension {d} has size {size})"
            )
        view = s.with_strides((*s.shape[:d], length, *s.shape[d + 1 :]), s.strides)
        return _alias(self, view, first * s.strides[d])

    def select(self, dim: int, index: int) -> NBXTensor:
        """The slice at ``index`` of ``dim``, without that dimension."""
        d = _shape.normalize_axis(dim, self.ndim, where="select", argument="dim")
        return self[(slice(None),) * d + (index,)]

    def unbind(self, dim: int = 0) -> tuple[NBXTensor, ...]:
        """All slices along ``dim``."""
        d = _shape.normalize_axis(dim, self.ndim, where="unbind", argument="dim")
        return tuple(self.select(d, i) for i in range(self.shape[d]))

    def as_strided(self, shape: Sequence[int], strides: Sequence[int], storage_offset: int | None = None) -> NBXTensor:
        """A view of the storage by shape, strides and offset (all in elements); it must stay inside of the storage."""
        new = _shape.check_shape(shape, where="as_strided")
        steps = tuple(_shape.integer(n, where="as_strided", argument="strides") for n in strides)
        if len(new) != len(steps):
            raise ShapeError("as_strided", "strides", steps, f"must have the {len(new)} entries of shape {new}")
        offset = self.storage_offset if storage_offset is None else storage_offset
        low, high = _shape.extent(new, steps)
        capacity = self.storage.nbytes // self.itemsize
        if _shape.numel(new) and (offset + low < 0 or offset + high >= capacity):
            rule = (
                f"elements {offset + low} to {offset + high} are not all inside of the storage of {capacity} elements"
            )
            raise ShapeError("as_strided", "storage_offset", offset, rule)
        return _alias(self, self.spec.with_strides(new, steps), offset - self.storage_offset)

    def __getitem__(self, key: Any) -> NBXTensor:
        """Basic indexing: integers, slices with any step, Ellipsis and None; always a view."""
        s = self.spec
        shape, strides, offset = _shape.basic_index(s.shape, s.strides, key)
        return _alias(self, s.with_strides(shape, strides), offset)

    def __iter__(self) -> Iterator[NBXTensor]:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d tensor")
        return iter(self.unbind(0))

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    # host

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy on the host, of the same dtype (bfloat16 and float8 as ml_dtypes have them); waits for the stream."""
        s = self.spec
        host = np.empty(s.shape, s.dtype.numpy)
        if s.numel == 0:
            return host
        span = s.highest - s.lowest + 1
        if s.contiguous:
            source, low, target = self, 0, host
        elif span <= 2 * s.numel:  # copy the span as it lies and pick the elements on the host
            source, low, target = self, s.lowest, np.empty(span * s.dtype.itemsize, np.uint8)
        else:
            source, low, target = self.contiguous(), 0, host
        size = s.dtype.itemsize
        context = s.device.context
        context.copy_out(target.ctypes.data, source.ptr + low * size, target.nbytes, s.device.stream)
        if s.device.suspect:
            s.device.check()
        if target is not host:
            steps = tuple(n * size for n in s.strides)
            host[...] = np.ndarray(s.shape, s.dtype.numpy, target, -low * size, steps)
        return host

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError(
                "a tensor cannot become a numpy array without a copy; use numpy.from_dlpack on a host device"
            )
        host = self.numpy()
        return host if dtype is None else host.astype(dtype, copy=False)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """See `nbxtensor.dlpack.export`."""
        from nbxtensor import dlpack

        return dlpack.export(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """(DLDeviceType, device number)."""
        from nbxtensor import dlpack

        return dlpack.device_of(self)

    def item(self) -> bool | int | float | complex:
        """The value of a tensor of one element, as a Python number."""
        if self.spec.numel != 1:
            raise ShapeError("item", "self", self.shape, "must have exactly one element")
        value = self.numpy().reshape(())[()]
        python: type[bool | int | float | complex] = _PYTHON[self.dtype.kind]
        return python(value)

    def tolist(self) -> Any:
        """Nested lists of Python numbers; a number for a 0-d tensor."""
        host = self.numpy()
        return (host.astype(np.float32) if self.dtype.kind == "float" and self.itemsize < 4 else host).tolist()

    def _scalar(self, kind: str) -> Any:
        if self.spec.numel != 1:
            raise ShapeError(kind, "self", self.shape, "only a tensor of one element converts to a Python number")
        return self.item()

    def __bool__(self) -> bool:
        return bool(self._scalar("bool"))

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        if self.dtype.kind not in ("int", "uint"):
            raise TypeError(f"a tensor of dtype {self.dtype} cannot be an index")
        return int(self._scalar("index"))

    def __repr__(self) -> str:
        from nbxtensor import printing

        return printing.text(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return from_numpy, (self.numpy(), self.device.name)

    __hash__ = object.__hash__  # `==` compares elements; a tensor is a key by identity


def _sizes(given: tuple[Any, ...]) -> tuple[int, ...]:
    """``f(2, 3)`` and ``f((2, 3))`` alike."""
    return tuple(given[0]) if len(given) == 1 and not hasattr(given[0], "__index__") else given


def _alias(base: NBXTensor, view: Spec, offset: int = 0) -> NBXTensor:
    """A tensor on the same storage, ``offset`` elements after the first element of ``base``."""
    tensor = NBXTensor.__new__(NBXTensor)
    tensor.ptr = base.ptr + offset * view.dtype.itemsize
    tensor.spec = view
    tensor.storage = base.storage
    return tensor


def empty_for(view: Spec) -> NBXTensor:
    """An uninitialised tensor of the spec in a block of its own. Raises `OutOfMemory`."""
    device = view.device
    if device.closed:
        raise DeviceError(f"device {device.name} is closed")
    bin = device.pool.bin(view.nbytes)
    try:
        address = bin.pop()
    except IndexError:
        address = device.pool.grow(bin)
    storage = Storage.__new__(Storage)
    storage.device, storage.address, storage.bin = device, address, bin
    tensor = NBXTensor.__new__(NBXTensor)
    tensor.ptr, tensor.spec, tensor.storage = address, view, storage
    return tensor


def from_numpy(array: Any, device: DeviceLike = None, *, copy: bool | None = True) -> NBXTensor:
    """A tensor with the elements, shape and dtype of a numpy array.

    ``copy`` True: the tensor has its own memory on any device. False: it uses the array's memory, which only a
    host-addressable device can, and only for an array aligned to its items; `ArgumentError` otherwise. None: without a
    copy where possible. An array without elements has no memory to share. A tensor on a read-only array is read-only.
    Raises `DTypeError` for a dtype that is not in the table (object arrays, strings, a byte order that is not the
    machine's)."""
    if not isinstance(array, (np.ndarray, np.generic)):
        raise ArgumentError("from_numpy", "array", type(array).__name__, "must be a numpy array")
    host = np.asarray(array)
    dtype, chosen = _dtype(host.dtype, where="from_numpy", argument="array"), runtime.device(device)
    if copy is not True and host.size:
        reason = _not_shareable(host, chosen)
        if reason is None:
            return _share(host, dtype, chosen)
        if copy is False:
            raise ArgumentError("from_numpy", "copy", False, f"not possible: {reason}")
    tensor = empty_for(spec(chosen, dtype, host.shape))
    if host.size:
        packed = np.ascontiguousarray(host)
        chosen.context.copy_in(tensor.ptr, packed.ctypes.data, packed.nbytes, chosen.stream)
    return tensor


def _not_shareable(host: np.ndarray[Any, Any], device: runtime.Device) -> str | None:
    if not device.context.capabilities.host_addressable:
        return f"{device.name} does not address host memory"
    if not host.flags.aligned or any(step % host.itemsize for step in host.strides):
        return "the array is not aligned to its items"
    return None


def _share(host: np.ndarray[Any, Any], dtype: DType, device: runtime.Device) -> NBXTensor:
    strides = tuple(step // host.itemsize for step in host.strides)
    view = spec(device, dtype, host.shape, strides)
    address, nbytes = host.ctypes.data + view.lowest * dtype.itemsize, (view.highest - view.lowest + 1) * dtype.itemsize
    return from_address(host.ctypes.data, view, (address, nbytes), base=host, readonly=not host.flags.writeable)


def from_address(
    ptr: int, view: Spec, extent: tuple[int, int], base: Any, readonly: bool = False, release: Any = None
) -> NBXTensor:
    """A tensor on memory that ``base`` owns and keeps alive: ``ptr`` is the first element, ``extent`` (address, bytes)
    the whole allocation. Host memory is registered with a host-addressable device. ``release()`` is called when the
    last tensor on the memory is gone."""
    context, (address, nbytes) = view.device.context, extent
    if context.capabilities.host_addressable:
        context.register(address, nbytes, not readonly)  # type: ignore[attr-defined]

        def done() -> None:
            if not view.device.closed:
                context.unregister(address, nbytes)  # type: ignore[attr-defined]
            if release is not None:
                release()
    else:
        done = release
    tensor = NBXTensor.__new__(NBXTensor)
    tensor.ptr, tensor.spec = ptr, view
    tensor.storage = ForeignStorage(view.device, address, nbytes, base, readonly, done)
    return tensor
