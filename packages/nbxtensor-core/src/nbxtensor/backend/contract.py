"""The driver contract: what a backend provides, and all that the rest of the library may ask of it.

A driver is found through the entry-point group ``nbxtensor.drivers``. The value of the entry point names a `Driver`
object whose import is cheap: no library is opened, Triton is not imported, no device is probed.

Addresses are plain integers. A stream or an event is an integer that the context made; stream ``None`` is the context's
own ordered stream, never a vendor's legacy one. Sizes are bytes, times milliseconds. Every verb raises a typed error of
`nbxtensor.errors`; nothing is retried in silence."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

DRIVER_API = 1

Reason = Literal["no library", "no device", "no permission", "driver too old", "no Triton backend", "broken"]
REASONS: tuple[Reason, ...] = get_args(Reason)

#: Addresses that `Context.allocate` returns are multiples of this.
ALIGNMENT = 256


class DeviceInfo(NamedTuple):
    """One device as its driver sees it. ``ordinal`` counts the devices of this driver from 0."""

    ordinal: int
    name: str
    architecture: str
    memory_bytes: int
    pci_id: str | None = None
    uuid: str | None = None
    profile: str | None = None  # the device file that states its facts, as "nvidia/hopper"


class Capabilities(NamedTuple):
    """What a context can do. Declared by the driver; nobody guesses it from the presence of a method."""

    executes: bool  # False: kernels are accepted and nothing runs (tracing)
    binds_by_extent: bool  # the driver needs each tensor's (block address, block bytes), not only its address
    host_addressable: bool  # device addresses can be read and written by the host
    pinned_host: bool
    timed_events: bool
    graph_capture: bool
    cooperative: bool
    max_grid: tuple[int, int, int]
    max_threads: int
    max_shared: int  # bytes of shared memory a block may use
    dtypes: frozenset[str]  # names of `nbxtensor.dtype`


class Parameter(NamedTuple):
    """A non-constexpr kernel parameter; an element i of a tuple parameter is named ``name.i``.

    ``type`` is Triton's spelling: "*fp16", "i32", "i64", "fp32", "fp64", "u1". ``kept`` False: the value was
    specialised away (an integer equal to 1); it stands in the launch values and not in the binary's parameters."""

    name: str
    type: str
    kept: bool


class TensorDescriptor(NamedTuple):
    """The launch value of a parameter of type "tensordesc<fp16[64, 32]>": a tensor that the kernel moves by tiles of
    that shape. ``shape`` and ``strides`` count elements; the last stride is 1. What lies outside reads as zero, or as
    NaN with ``nan``. A driver takes it where its compiler does."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    nan: bool = False


class KernelSource(Protocol):
    """A kernel as it is declared, before Triton is imported. See `nbxtensor.backend.kernel_source.Kernel`."""

    name: str
    parameters: Mapping[str, str]

    def jit(self) -> Any:
        """The ``triton.jit`` function; imports Triton."""


class Variant(NamedTuple):
    """One specialisation of a kernel; hashable.

    ``constants`` are (parameter name, value) for constexpr parameters; a value that is itself a Triton function is a
    `nbxtensor.backend.kernel_source.KernelFunction`. ``attributes`` are (parameter name, attribute, value), as
    ("a", "tt.divisibility", 16). ``options`` are compile options: num_warps, num_stages, enable_fp_fusion, ...
    """

    kernel: KernelSource
    parameters: tuple[Parameter, ...]
    constants: tuple[tuple[str, Hashable], ...]
    attributes: tuple[tuple[str, str, int], ...]
    options: tuple[tuple[str, Hashable], ...]


class Artifact(NamedTuple):
    """A compiled kernel. ``payload`` is bytes ("cubin", "hsaco", "spirv", ...), or the variant itself for kind
    "python"."""

    kind: str
    entry: str
    payload: Any
    parameters: tuple[Parameter, ...]
    metadata: Mapping[str, Any]


class Bound(Protocol):
    """What a launch sees of a tensor."""

    @property
    def ptr(self) -> int:
        """Address of the first element."""

    @property
    def extent(self) -> tuple[int, int]:
        """(address, bytes) of the whole allocation that holds the tensor."""


@runtime_checkable
class Driver(Protocol):
    """A backend. ``device_type`` is what a device string starts with; several drivers may serve one type, the one of
    the highest ``priority`` that opens wins. ``device_files`` is a folder of device files the driver brings, or
    None."""

    name: str
    device_type: str
    api_version: int
    priority: int
    device_files: str | None

    def probe(self) -> Sequence[DeviceInfo]:
        """The usable devices, at least one; or raises `Unavailable`. Opens the vendor's library, never a context."""

    def open(self, ordinal: int) -> Context:
        """A new context on the device. Raises `Unavailable` or `DriverError`."""


class Context(Protocol):
    """An open device. Thread-safe."""

    info: DeviceInfo
    capabilities: Capabilities

    @property
    def target(self) -> Any:
        """What the compiler compiles for (a ``GPUTarget`` or None); asking for it may import Triton."""

    def close(self) -> None:
        """Frees what the context holds; idempotent. Any other verb after it raises `DeviceError`."""

    # memory
    def allocate(self, nbytes: int) -> int:
        """A device address aligned to `ALIGNMENT`; ``nbytes`` > 0. Raises `OutOfMemory`."""

    def free(self, address: int) -> None:
        """Returns what `allocate` gave; another address raises `DeviceError`."""

    def allocate_host(self, nbytes: int) -> int:
        """Page-locked host memory where the device has it, else plain host memory."""

    def free_host(self, address: int) -> None:
        """Returns what `allocate_host` gave; another address raises `DeviceError`."""

    def copy_in(self, device: int, host: int, nbytes: int, stream: int | None = None) -> None:
        """Host to device. The host memory may be reused when the call returns."""

    def copy_out(self, host: int, device: int, nbytes: int, stream: int | None = None) -> None:
        """Device to host, after all earlier work of the stream; complete when the call returns."""

    def copy(self, to: int, source: int, nbytes: int, stream: int | None = None) -> None:
        """Device to device, in stream order; the two ranges do not overlap."""

    def fill(self, address: int, byte: int, nbytes: int, stream: int | None = None) -> None:
        """Sets ``nbytes`` bytes to ``byte`` (0 to 255), in stream order."""

    def memory_info(self) -> tuple[int, int]:
        """(free, total) in bytes."""

    # streams and events
    def create_stream(self) -> int:
        """A new ordered stream. Work of different streams is ordered by events alone."""

    def destroy_stream(self, stream: int) -> None:
        """Frees the stream once its work is done."""

    def synchronize(self, stream: int | None = None) -> None:
        """Waits for the stream's work; reports faults of its kernels."""

    def create_event(self) -> int:
        """A new event, not yet recorded."""

    def destroy_event(self, event: int) -> None:
        """Frees the event."""

    def record(self, event: int, stream: int | None = None) -> None:
        """Makes the event complete when the stream's work so far is done."""

    def wait(self, event: int, stream: int | None = None) -> None:
        """Makes the stream wait for the event; the host goes on."""

    def elapsed_ms(self, start: int, end: int) -> float:
        """Time between two recorded events; waits for the second."""

    # kernels
    def compile(self, variant: Variant) -> Artifact:
        """Raises `CompileError`."""

    def load(self, artifact: Artifact) -> Any:
        """Counts the binary's own parameters and raises `LaunchRefused` when they are not the artifact's kept ones."""

    def unload(self, loaded: Any) -> None:
        """Frees what `load` gave; none of its launches is still running."""

    def launch(
        self,
        loaded: Any,
        grid: tuple[int, int, int],
        values: tuple[int | float, ...],
        stream: int | None,
        tensors: tuple[Bound, ...],
    ) -> None:
        """Starts the kernel. ``values`` holds one plain number for every entry of the artifact's ``parameters`` (a
        pointer's is its address), which the driver packs; a float beyond the range of an "fp32" is packed as infinity.
        ``tensors`` are the tensors behind the pointers, in the pointers' order, for drivers that bind by extent; others
        may get none. No size of ``grid`` is 0."""


@runtime_checkable
class GraphContext(Protocol):
    """The further verbs of a context whose capabilities declare ``graph_capture``."""

    def graph_begin(self, stream: int) -> None:
        """What the stream is given from here on is kept, not run."""

    def graph_end(self, stream: int) -> Any:
        """Ends the capture; an executable graph."""

    def graph_launch(self, graph: Any, stream: int | None = None) -> None:
        """Runs the captured work again, in the stream's order."""


@runtime_checkable
class HostAddressableContext(Protocol):
    """The further verbs of a context whose capabilities declare ``host_addressable``: host memory used in place."""

    def register(self, address: int, nbytes: int, writable: bool = True) -> None:
        """Lets kernels use host memory that the context did not allocate; its owner keeps it alive until `unregister`.
        Ranges may repeat and overlap."""

    def unregister(self, address: int, nbytes: int) -> None:
        """Ends one registration of exactly these bytes."""
