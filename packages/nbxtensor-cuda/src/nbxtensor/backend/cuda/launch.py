"""Kernels: loading a cubin, checking it against its artifact, and the launch function generated for it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from nbxtensor.backend.contract import ALIGNMENT, Artifact, Bound, Parameter
from nbxtensor.backend.cuda import cubin, errors, ffi
from nbxtensor.backend.cuda.memory import MemoryVerbs
from nbxtensor.backend.cuda.session import SLOTS
from nbxtensor.errors import DeviceError, DriverError, LaunchRefused, NBXError

_UNASKED_SHARED = 48 << 10  # bytes of dynamic shared memory that a kernel may have without opting in
_PORTABLE_CLUSTER = 8  # blocks

#: struct's code and the size of a parameter by Triton's type; pointers are addresses.
_FORMATS = {
    "i1": ("B", 1), "u1": ("B", 1), "i8": ("b", 1), "u8": ("B", 1), "i16": ("h", 2), "u16": ("H", 2), "fp16": ("e", 2),
    "i32": ("i", 4), "u32": ("I", 4), "fp32": ("f", 4), "i64": ("q", 8), "u64": ("Q", 8), "fp64": ("d", 8),
}  # fmt: skip

# Why a launch fails by what was asked of it, and not by what the kernel does.
_REFUSALS = {
    ffi.CUDA_ERROR_INVALID_VALUE: "the driver calls the launch invalid",
    ffi.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: "a block needs more registers than the GPU has",
    ffi.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: "a cooperative grid must fit on the GPU all at once",
}


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
        return self.cluster > 1 or self.cooperative or self.dependent


class LoadedKernel:
    """A kernel on the device. ``start(grid, values, stream)`` launches it; ``registers`` are those of a thread."""

    __slots__ = ("name", "module", "function", "parameters", "shape", "registers", "start", "__weakref__")

    def __init__(self, name: str, module: int, function: int, parameters: tuple[Parameter, ...], shape: Shape):
        self.name, self.module, self.function, self.parameters, self.shape = name, module, function, parameters, shape
        self.registers = 0
        self.start: Callable[[tuple[int, int, int], tuple[int | float, ...], int | None], None] = self._not_ready

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
        _check_parameters(artifact)
        image = self._ffi.from_buffer(artifact.payload)
        out = self._ffi.new("CUmodule *")
        code = self._raw.cuModuleLoadData(out, image)
        if code:
            raise self._load_failure(artifact, code)
        module = int(out[0])
        try:
            function = self._cuda.integer(self._cuda.cuModuleGetFunction, module, name.encode(), type="CUfunction")
            kernel = LoadedKernel(name, module, function, artifact.parameters, shape)
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
        values: tuple[int | float, ...],
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
        if shape.cluster > _PORTABLE_CLUSTER:
            asked = ffi.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            self._cuda.cuFuncSetAttribute(kernel.function, asked, 1)

    def _launch_function(self, kernel: LoadedKernel) -> Callable[..., None]:
        """Generates ``start``: checks the grid, packs the values into the thread's arena, calls the driver once.

        The driver has copied the arguments when its call returns, so the arena is free for the next launch.
        """
        shape, kept = kernel.shape, [p.kept for p in kernel.parameters]
        x, y, z = (limit // n for limit, n in zip(self._max_grid, (shape.cluster, 1, 1), strict=True))
        names = [f"v{i}" for i in range(len(kept))]
        packed = ", ".join(name for name, keep in zip(names, kept, strict=True) if keep)
        scratch = f", scratch(x * y * z * {shape.scratch * shape.cluster}, stream)" if shape.scratch else ""
        # Padding is written as zeros: the two scratch pointers, where there is no scratch memory.
        layout = "".join(_slot(p) for p in kernel.parameters if p.kept) + ("Q8x" if shape.scratch else "16x")
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
    try:
        {f"{', '.join(names)}, = values" if names else "() = values"}
        pack(buffer, 0, {packed}{scratch})
    except ERRORS as error: refuse_values(values, error)
    code = {call}
    if code: failed(code, grid)
"""
        scope: dict[str, Any] = {
            "own_stream": self.stream,
            "threads": self._threads,
            "attach": self._attach,
            "set_current": self._cuda.cuCtxSetCurrent,
            "context": self._context,
            "pack": struct.Struct("=" + layout).pack_into,
            "scratch": self._scratch_for,
            "launch": self._raw.cuLaunchKernel,
            "extended": self._extended_launch(kernel) if shape.extended else None,
            "NULL": self._ffi.NULL,
            "ERRORS": (struct.error, OverflowError, TypeError, ValueError),
            "refuse_grid": lambda grid: self._refuse_grid(kernel, (x, y, z), grid),
            "refuse_values": lambda values, error: _refuse_values(kernel, values, error),
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
        raise DriverError(call, code, failure.name, f"{failure.text} (kernel {kernel.name})")


def _slot(parameter: Parameter) -> str:
    """struct's format of a parameter in a slot of 8 bytes."""
    code, size = ("Q", 8) if parameter.type.startswith("*") else _FORMATS[parameter.type]
    return code + (f"{8 - size}x" if size < 8 else "")


def _check_parameters(artifact: Artifact) -> None:
    """Refuses an artifact whose kept parameters, with the two scratch pointers of Triton, are not the binary's."""
    name = artifact.entry
    try:
        binary = cubin.parameters(artifact.payload, name)
    except ValueError as error:
        raise LaunchRefused(name, str(error)) from error
    kept = [p for p in artifact.parameters if p.kept]
    unknown = sorted({p.type for p in kept if not p.type.startswith("*")} - _FORMATS.keys())
    if unknown:
        raise LaunchRefused(name, f"parameters of type {', '.join(unknown)} cannot be passed by value")
    if len(binary) != len(kept) + 2:
        why = f"the binary has {len(binary)} parameters; the artifact keeps {len(kept)}, and 2 are for scratch memory"
        raise LaunchRefused(name, why)
    if len(binary) > SLOTS:
        raise LaunchRefused(name, f"it has {len(binary)} parameters, at most {SLOTS} can be passed")
    for parameter, found in zip(kept, binary[:-2], strict=True):
        size = 8 if parameter.type.startswith("*") else _FORMATS[parameter.type][1]
        if size != found.size:
            why = f"{parameter.name} is {parameter.type}, {size} bytes; the binary's parameter has {found.size}"
            raise LaunchRefused(name, why)


def _refuse_values(kernel: LoadedKernel, values: tuple[int | float, ...], error: Exception) -> NoReturn:
    """Names the value for which packing failed. An error of another kind passes."""
    if isinstance(error, NBXError):
        raise error
    if len(values) != len(kernel.parameters):
        why = f"{len(values)} values for {len(kernel.parameters)} parameters"
        raise LaunchRefused(kernel.name, why) from error
    for parameter, value in zip(kernel.parameters, values, strict=True):
        if parameter.kept:
            try:
                struct.pack("=" + _slot(parameter), value)
            except (struct.error, OverflowError, TypeError, ValueError) as refusal:
                why = f"{parameter.name}={value!r} is not a value of type {parameter.type}: {refusal}"
                raise LaunchRefused(kernel.name, why) from refusal
    raise error
