"""NVIDIA GPUs through the CUDA driver API."""

from __future__ import annotations

import functools
import importlib.util
import os
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from nbxtensor.backend import device_files
from nbxtensor.backend.contract import DRIVER_API, Artifact, Capabilities, DeviceInfo, Variant
from nbxtensor.backend.cuda import ffi, library
from nbxtensor.backend.cuda.graphs import GraphVerbs
from nbxtensor.backend.cuda.library import Library
from nbxtensor.errors import DriverError, MissingFact, MissingSymbol, Unavailable

_DTYPES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float8_e5m2", "float16",
    "float32", "float64",
)  # fmt: skip
_DTYPES_SINCE = {"bfloat16": (8, 0), "float8_e4m3fn": (8, 9)}  # the first compute capability that has the type


class CudaContext(GraphVerbs):
    """An open GPU: `nbxtensor.backend.contract.Context` with graphs, and `enable_peer` and `copy_from` between GPUs.

    It shares the device's primary context with every other library of the process. ``stream`` is the handle of its own
    stream, which ``None`` stands for in every verb. ``capability`` is the compute capability, as (9, 0).
    """

    def __init__(self, cuda: Library, info: DeviceInfo):
        try:
            super().__init__(cuda, info, info.ordinal)
            self.capability = _capability(cuda, self._device)
            self.capabilities = self._capabilities()
        except BaseException:
            self._let_go()
            raise

    def _capabilities(self) -> Capabilities:
        cooperative = bool(self._attribute(ffi.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH))
        newer = {name for name, since in _DTYPES_SINCE.items() if self.capability >= since}
        return Capabilities(
            executes=True,
            binds_by_extent=False,
            host_addressable=False,
            pinned_host=True,
            timed_events=True,
            graph_capture=self._cuda.provides("graphs"),
            cooperative=cooperative and self._cuda.provides("launch attributes"),
            max_grid=self._max_grid,
            max_threads=self._max_threads,
            max_shared=self._max_shared,
            dtypes=frozenset({*_DTYPES, *newer}),
        )

    @functools.cached_property
    def target(self) -> Any:
        """Triton's ``GPUTarget``, made at the first use: it imports Triton."""
        from nbxtensor.backend import compiler

        major, minor = self.capability
        return compiler.gpu_target("cuda", 10 * major + minor, 32)

    def compile(self, variant: Variant) -> Artifact:
        self._enter()
        from nbxtensor.backend import compiler

        return compiler.compile_gpu(variant, self.target)

    def close(self) -> None:
        with self._lock:
            lost = self._cuda.lost  # what was reported before is not reported again
            failure = self._let_go()
        if failure is not None and failure.code != lost and not self._cuda.gone_at_exit(failure.code):
            raise failure

    def _let_go(self) -> DriverError | None:
        """Frees everything, whatever fails on the way; the first failure. Nothing on a context that has ended."""
        if getattr(self, "_ended", "") is not None:
            return None
        failures: list[DriverError] = []

        def free(function: Callable[..., None], *arguments: Any) -> None:
            try:
                function(*arguments)
            except DriverError as failure:
                failures.append(failure)

        cuda = self._cuda
        free(self._enter)
        for stream in [*self._streams, self.stream]:
            if stream not in self._captured:
                free(cuda.cuStreamSynchronize, stream)
        for graph in list(self._graphs):
            free(self.graph_destroy, graph)
        for stream in list(self._captured):
            free(lambda stream: cuda.cuGraphDestroy(self._end_capture("close", stream)[0]), stream)
        for kernel in list(self._kernels):
            free(self.unload, kernel)
            kernel.end("its context is closed")
        for event in list(self._events):
            free(cuda.cuEventDestroy_v2, event)
        for address in list(self._allocations):
            free(self.free, address)
        for address in list(self._host_blocks):
            free(self.free_host, address)
        memory_stream = [] if self._memory_stream is None else [self._memory_stream]
        for stream in [*self._streams, *memory_stream, self.stream]:
            free(cuda.cuStreamDestroy_v2, stream)
        free(cuda.cuDevicePrimaryCtxRelease_v2, self._device)
        self._end(f"the context of device {self.info.ordinal}, {self.info.name}, is closed")
        return failures[0] if failures else None

    def _end(self, why: str) -> None:
        super()._end(why)
        for kernel in self._kernels:
            kernel.end(why)


class CudaDriver:
    """The driver. Nothing is opened before `probe` or `open`."""

    name = "cuda"
    device_type = "cuda"
    api_version = DRIVER_API
    priority = 100
    device_files: str | None = None

    def probe(self) -> Sequence[DeviceInfo]:
        cuda = _library()
        count = cuda.integer(cuda.cuDeviceGetCount)
        if count == 0:
            hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
            shown = "" if hidden is None else f"; CUDA_VISIBLE_DEVICES is {hidden!r}"
            detail = f"the driver at {cuda.path} shows no GPU to this process{shown}"
            raise Unavailable("no device", detail, "nvidia-smi -L  # lists the GPUs of the machine")
        if not _has_triton():
            detail = "Triton with its NVIDIA backend is not installed"
            raise Unavailable("no Triton backend", detail, "pip install 'triton>=3.6'")
        return [_info(cuda, ordinal) for ordinal in range(count)]

    def open(self, ordinal: int) -> CudaContext:
        infos = self.probe()
        if not 0 <= ordinal < len(infos):
            raise Unavailable("no device", f"the driver shows {len(infos)} GPUs, numbered from 0; asked for {ordinal}")
        return CudaContext(_library(), infos[ordinal])


def _library() -> Library:
    try:
        return library.load()
    except MissingSymbol as error:
        raise Unavailable("driver too old", str(error), "install a newer NVIDIA driver") from error


def _has_triton() -> bool:
    spec = importlib.util.find_spec("triton")
    places = (spec.submodule_search_locations or []) if spec is not None else []
    return any(os.path.isdir(os.path.join(place, "backends", "nvidia")) for place in places)


def _info(cuda: Library, ordinal: int) -> DeviceInfo:
    device = cuda.integer(cuda.cuDeviceGet, ordinal, type="CUdevice")
    major, minor = _capability(cuda, device)
    architecture = f"sm_{major}{minor}"
    identity = cuda.ffi.new("CUuuid *")
    (cuda.cuDeviceGetUuid_v2 if cuda.provides("slice UUIDs") else cuda.cuDeviceGetUuid)(identity, device)
    return DeviceInfo(
        ordinal=ordinal,
        name=_text(cuda, cuda.cuDeviceGetName, device),
        architecture=architecture,
        memory_bytes=cuda.integer(cuda.cuDeviceTotalMem_v2, device, type="size_t"),
        pci_id=_text(cuda, cuda.cuDeviceGetPCIBusId, device).lower(),
        uuid=f"GPU-{uuid.UUID(bytes=bytes(cuda.ffi.buffer(identity)))}",
        profile=_profile(architecture),
    )


def _capability(cuda: Library, device: int) -> tuple[int, int]:
    major = cuda.integer(cuda.cuDeviceGetAttribute, ffi.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
    return major, cuda.integer(cuda.cuDeviceGetAttribute, ffi.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)


def _text(cuda: Library, function: Callable[..., None], device: int) -> str:
    out = cuda.ffi.new("char[]", 256)
    function(out, 256, device)
    return str(cuda.ffi.string(out).decode())


def _profile(architecture: str) -> str | None:
    try:
        return device_files.for_arch(architecture).profile
    except MissingFact:
        return None


driver = CudaDriver()
