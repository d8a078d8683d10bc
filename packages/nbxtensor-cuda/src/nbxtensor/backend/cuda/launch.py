"""Kernels: loading a cubin, raising its limits, and the launch function generated for it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from nbxtensor.backend.contract import ALIGNMENT, Artifact, Bound, TensorDescriptor
from nbxtensor.backend.cuda import arguments, errors, ffi
from nbxtensor.backend.cuda.arguments import Layout
from nbxtensor.backend.cuda.memory import MemoryVerbs
from nbxtensor.errors import DeviceError, DriverError, LaunchRefused

_UNASKED_SHARED = 48 << 10  # bytes of dynamic shared memory that a kernel may have without opting in
_PORTABLE_CLUSTER = 8  # blocks

# Why a launch fails by what was asked of it, and not by what the kernel does.
_REFUSALS = {
    ffi.CUDA_ERROR_INVALID_VALUE: "the driver calls the launch invalid",
    ffi.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: "a block needs more registers than the GPU has",
    ffi.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: "a cooperative grid must fit on the GPU all at once",
}

_OF_CONTEXTS = (ffi.CUDA_ERROR_INVALID_CONTEXT, ffi.CUDA_ERROR_INVALID_HANDLE)


class Shape(NamedTuple):
    """What the metadata of an artifact say of a launch: threads of a block, blocks of a cluster, bytes."""

    threads: int
    cluster: int
    shared: int
    scratch: int  # bytes of global scratch for each block
    cooperative: bool
    dependent: bool  # programmatic dependent launch

    @property
    def extended(self) -> bool:
        """Whether a launch needs attributes, hence ``cuLaunchKernelEx``."""
        return self.cluster > 1 or self.cooperative or self.dependent


class LoadedKernel:
    """A kernel on the device. ``start(grid, values, stream)`` launches it; ``registers`` are those of a thread."""

    __slots__ = ("name", "module", "function", "layout", "shape", "registers", "start", "__weakref__")

    def __init__(self, name: str, module: int, function: int, layout: Layout, shape: Shape):
        self.name, self.module, self.function, self.layout, self.shape = name, module, function, layout, shape
        self.registers = 0
        self.start: Callable[[tuple[int, int, int], tuple[Any, ...], int | None], None] = self._not_ready

    def _not_ready(self, *_: Any) -> NoReturn:
        raise LaunchRefused(self.name, "the kernel is not loaded")

    def end(self, why: str) -> None:
        """From here on a launch raises `DeviceError` with ``why``."""

        def refuse(*_: Any) -> NoReturn:
            raise DeviceError(f"{self.name}: {why}")

        self.start = refuse


class Scratch:
    """Global scratch memory of a stream. Blocks that became too small stay: work under way still uses them."""

    __slots__ = ("address", "nbytes", "older")

    def __init__(self) -> None:
        self.address, self.nbytes = 0, 0
        self.older: list[int] = []

    def blocks(self) -> list[int]:
        """The addresses of all blocks."""
        return [*self.older, self.address] if self.address else []


class KernelVerbs(MemoryVerbs):
    """Loading and launching. ``_max_grid``, ``_max_threads`` and ``_max_shared`` are the device's limits."""

    def __init__(self, *arguments: Any):
        self._kernels: set[LoadedKernel] = set()
        self._scratch: dict[int, Scratch] = {}
        super().__init__(*arguments)
        axes = (
            ffi.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
            ffi.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
            ffi.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z,
        )
        self._max_grid = (self._attribute(axes[0]), self._attribute(axes[1]), self._attribute(axes[2]))
        self._max_threads = self._attribute(ffi.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
        self._max_shared = self._attribute(ffi.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)

    def load(self, artifact: Artifact) -> LoadedKernel:
        self._enter()
        name = artifact.entry
        if artifact.kind != "cubin" or not isinstance(artifact.payload, bytes):
            raise LaunchRefused(name, f"CUDA loads a cubin, not an artifact of kind {artifact.kind!r}")
        shape = self._shape(artifact)
        layout = arguments.layout(self._cuda, artifact)
        image = self._ffi.from_buffer(artifact.payload)
        out = self._ffi.new("CUmodule *")
        code = self._raw.cuModuleLoadData(out, image)
        if code:
            raise self._load_failure(artifact, code)
        module = int(out[0])
        try:
            function = self._cuda.integer(self._cuda.cuModuleGetFunction, module, name.encode(), type="CUfunction")
            kernel = LoadedKernel(name, module, function, layout, shape)
            self._opt_in(kernel)
        except BaseException:
            self._raw.cuModuleUnload(module)
            raise
        kernel.start = self._launch_function(kernel)
        self._kernels.add(kernel)
        return kernel

    def unload(self, loaded: LoadedKernel) -> None:
        """Waits for the launches that are under way, as the driver does."""
        self._enter()
        if loaded not in self._kernels:
            raise DeviceError(f"unload: {loaded.name}: is not a kernel of this context")
        self._cuda.cuModuleUnload(loaded.module)
        self._kernels.discard(loaded)
        loaded.end("the kernel was unloaded")

    def launch(
        self,
        loaded: LoadedKernel,
        grid: tuple[int, int, int],
        values: tuple[int | float | TensorDescriptor, ...],
        stream: int | None,
        tensors: tuple[Bound, ...],
    ) -> None:
        loaded.start(grid, values, stream)

    def _shape(self, artifact: Artifact) -> Shape:
        """Reads the metadata, and refuses what this device or this driver cannot launch."""
        data, name = artifact.metadata, artifact.entry
        shape = Shape(
            data["num_warps"] * data["warp_size"], data["num_ctas"], data["shared"], data["global_scratch_size"],
            data["launch_cooperative_grid"], data["launch_pdl"],
        )  # fmt: skip
        if shape.shared > self._max_shared:
            have = f"a block of {self.info.name} can have {self._max_shared}"
            raise LaunchRefused(name, f"it needs {shape.shared} bytes of shared memory, {have}")
        if shape.threads > self._max_threads:
            raise LaunchRefused(name, f"{shape.threads} threads a block, the device allows {self._max_threads}")
        if data["profile_scratch_size"]:
            raise LaunchRefused(name, "it was compiled with Triton's profiler, whose memory is not provided here")
        if shape.scratch and data["global_scratch_align"] > ALIGNMENT:
            raise LaunchRefused(name, f"its scratch memory must be aligned to {data['global_scratch_align']} bytes")
        if shape.scratch and shape.dependent:
            raise LaunchRefused(name, "scratch memory is one block a stream, which overlapping launches would share")
        if shape.extended and not self._cuda.provides("launch attributes"):
            raise LaunchRefused(name, f"the driver at {self._cuda.path} lacks cuLaunchKernelEx")
        return shape

    def _load_failure(self, artifact: Artifact, code: int) -> DriverError:
        failure = self._cuda.failure("cuModuleLoadData", code)
        why = errors.at_load(code, self._cuda.version, artifact.metadata)
        text = f"{failure.text} (kernel {artifact.entry})" + (f": {why}" if why else "")
        return DriverError("cuModuleLoadData", code, failure.name, text)

    def _opt_in(self, kernel: LoadedKernel) -> None:
        """Raises the kernel's limits to what its launches need, after checking them against the compiled code's own."""

        def attribute(which: int) -> int:
            return self._cuda.integer(self._cuda.cuFuncGetAttribute, which, kernel.function)

        shape = kernel.shape
        kernel.registers = attribute(ffi.CU_FUNC_ATTRIBUTE_NUM_REGS)
        most = attribute(ffi.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
        if shape.threads > most:
            why = f"{shape.threads} threads a block of {kernel.registers} registers each, the kernel allows {most}"
            raise LaunchRefused(kernel.name, why)
        if shape.shared > _UNASKED_SHARED:
            asked = ffi.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._cuda.cuFuncSetAttribute(kernel.function, asked, shape.shared)
            # Of the memory that shared memory and the first-level cache divide, as much as goes: more blocks fit.
            self._cuda.cuFuncSetAttribute(kernel.function, ffi.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100)
        if shape.cluster > _PORTABLE_CLUSTER:
            asked = ffi.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            self._cuda.cuFuncSetAttribute(kernel.function, asked, 1)

    def _launch_function(self, kernel: LoadedKernel) -> Callable[..., None]:
        """Generates ``start``: checks the grid, packs the values into the thread's arena, calls the driver once.

        The driver has copied the arguments when its call returns, so the arena is free for the next launch.
        """
        shape, layout = kernel.shape, kernel.layout
        x, y, z = (limit // n for limit, n in zip(self._max_grid, (shape.cluster, 1, 1), strict=True))
        scratch = f", scratch(x * y * z * {shape.scratch * shape.cluster}, stream)" if shape.scratch else ""
        # Padding is written as zeros: the two scratch pointers, where there is no scratch memory.
        packer = struct.Struct(f"={layout.format}{'Q8x' if shape.scratch else '16x'}")
        call = (
            "extended(x, y, z, stream, parameters)"
            if shape.extended
            else f"launch({kernel.function}, x, y, z, {shape.threads}, 1, 1, {shape.shared}, stream, parameters, NULL)"
        )
        source = f"""
def start(grid, values, stream):
    x, y, z = grid
    if not (0 < x <= {x} and 0 < y <= {y} and 0 < z <= {z}): refuse_grid(grid)
    if stream is None: stream = own_stream
    try: buffer, parameters = threads.arena
    except AttributeError: buffer, parameters = attach()
    {"set_current(context)" if self._several else ""}
    {"" if layout.plain else "parameters = pointers(slots)"}
    try:
        {layout.names} = values
        pack(buffer, 0, {layout.packed}{scratch})
    except ERRORS as error: refuse_values(values, error)
    code = {call}
    if code: failed(code, grid)
"""
        scope: dict[str, Any] = {
            **layout.scope,
            "own_stream": self.stream,
            "threads": self._threads,
            "attach": self._attach,
            "set_current": self._cuda.cuCtxSetCurrent,
            "context": self._context,
            "pointers": self._pointers,
            "slots": layout.slots,
            "pack": packer.pack_into,
            "scratch": self._scratch_for,
            "launch": self._raw.cuLaunchKernel,
            "extended": self._extended_launch(kernel) if shape.extended else None,
            "NULL": self._ffi.NULL,
            "ERRORS": (struct.error, OverflowError, TypeError, ValueError),
            "refuse_grid": lambda grid: self._refuse_grid(kernel, (x, y, z), grid),
            "refuse_values": layout.refuse,
            "failed": lambda code, grid: self._launch_failed(kernel, code, grid),
        }
        exec(compile(source, f"<launch of {kernel.name}>", "exec"), scope)
        start: Callable[..., None] = scope["start"]
        return start

    def _extended_launch(self, kernel: LoadedKernel) -> Callable[..., int]:
        """``cuLaunchKernelEx`` with the kernel's attributes, as a function of grid, stream and parameters."""
        shape, launch, new = kernel.shape, self._raw.cuLaunchKernelEx, self._ffi.new
        wanted: list[dict[str, Any]] = []
        value: dict[str, Any]
        if shape.cooperative:
            wanted.append({"id": ffi.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, "value": {"cooperative": 1}})
        if shape.dependent:
            value = {"programmaticStreamSerializationAllowed": 1}
            wanted.append({"id": ffi.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, "value": value})
        if shape.cluster > 1:
            value = {"clusterDim": [shape.cluster, 1, 1]}
            wanted.append({"id": ffi.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, "value": value})
            value = {"clusterSchedulingPolicyPreference": ffi.CU_CLUSTER_SCHEDULING_POLICY_SPREAD}
            wanted.append({"id": ffi.CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, "value": value})
        attributes, null = new("CUlaunchAttribute[]", wanted), self._ffi.NULL

        def extended(x: int, y: int, z: int, stream: int, parameters: Any) -> int:
            sizes = [x * shape.cluster, y, z, shape.threads, 1, 1, shape.shared]
            config = new("CUlaunchConfig *", [*sizes, stream, attributes, len(wanted)])
            return int(launch(config, kernel.function, parameters, null))

        return extended

    def _scratch_for(self, nbytes: int, stream: int) -> int:
        """Memory that launches on the stream use one after the other."""
        found = self._scratch.get(stream)
        if found is None or found.nbytes < nbytes:
            with self._lock:
                found = self._scratch.setdefault(stream, Scratch())
                if found.nbytes < nbytes:
                    size = max(nbytes, 2 * found.nbytes)
                    address = self.allocate(size)
                    if found.address:
                        found.older.append(found.address)
                    found.address, found.nbytes = address, size
        return found.address

    def destroy_stream(self, stream: int) -> None:
        super().destroy_stream(stream)
        self._free_scratch(self._scratch.pop(stream, None))

    def _free_scratch(self, scratch: Scratch | None) -> None:
        for address in scratch.blocks() if scratch is not None else ():
            self.free(address)

    def _refuse_grid(self, kernel: LoadedKernel, limits: tuple[int, int, int], grid: tuple[int, int, int]) -> NoReturn:
        raise LaunchRefused(kernel.name, f"grid {grid}: each size must be from 1 to {limits} on {self.info.name}")

    def _launch_failed(self, kernel: LoadedKernel, code: int, grid: tuple[int, int, int]) -> NoReturn:
        if code in _REFUSALS:
            shape = kernel.shape
            asked = f"grid {grid}, {shape.threads} threads of {kernel.registers} registers, {shape.shared} bytes shared"
            raise LaunchRefused(kernel.name, f"{_REFUSALS[code]} ({self._cuda.name(code)}): {asked}")
        call = "cuLaunchKernelEx" if kernel.shape.extended else "cuLaunchKernel"
        failure = self._cuda.failure(call, code)
        text = f"{failure.text} (kernel {kernel.name})"
        if code in _OF_CONTEXTS and self._cuda.integer(self._cuda.cuCtxGetCurrent, type="CUcontext") != self._context:
            del self._threads.arena
            text += ": this thread's current context is another library's; the next call changes that"
        raise DriverError(call, code, failure.name, text)
