"""Memory of the device and of the host, copies, fills, and copies between devices."""

from __future__ import annotations

from typing import Any

from nbxtensor.backend.cuda import ffi
from nbxtensor.backend.cuda.streams import StreamVerbs
from nbxtensor.errors import ArgumentError, DeviceError, OutOfMemory


class MemoryVerbs(StreamVerbs):
    """Device memory comes from the device's stream-ordered pool where there is one, on a stream that does nothing else.

    An allocation waits for that stream, so that its memory can be used on any; a release waits for the device, as
    cuMemFree does, for work of any stream may still use the memory. Caching is left to the pool above.
    """

    def __init__(self, *arguments: Any):
        self._allocations: dict[int, int] = {}
        self._live = 0
        self._host_blocks: set[int] = set()
        self._captured: set[int] = set()  # streams under capture
        self._memory_stream: int | None = None
        super().__init__(*arguments)
        pools = self._attribute(ffi.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)
        if pools and self._cuda.provides("stream-ordered memory"):
            self._memory_stream = self._create_stream()

    def _attribute(self, attribute: int) -> int:
        return self._cuda.integer(self._cuda.cuDeviceGetAttribute, attribute, self._device)

    def allocate(self, nbytes: int) -> int:
        self._enter()
        _check_positive("allocate", nbytes)
        out = self._ffi.new("CUdeviceptr *")
        if self._memory_stream is None:
            call, code = "cuMemAlloc_v2", self._raw.cuMemAlloc_v2(out, nbytes)
        else:
            call, code = "cuMemAllocAsync", self._raw.cuMemAllocAsync(out, nbytes, self._memory_stream)
        if code == ffi.CUDA_ERROR_OUT_OF_MEMORY:
            raise OutOfMemory(nbytes, *self.memory_info(), self._live)
        if code:
            raise self._cuda.failure(call, code)
        address = int(out[0])
        if self._memory_stream is not None:
            try:
                self._cuda.cuStreamSynchronize(self._memory_stream)
            except BaseException:
                self._raw.cuMemFreeAsync(address, self._memory_stream)
                raise
        with self._lock:
            self._allocations[address] = nbytes
            self._live += nbytes
        return address

    def free(self, address: int) -> None:
        self._enter()
        with self._lock:
            nbytes = self._allocations.pop(address, None)
            if nbytes is None:
                raise DeviceError(f"free: address={address:#x}: is not a live allocation of this context")
            try:
                self._release(address)
            except BaseException:
                self._allocations[address] = nbytes
                raise
            self._live -= nbytes

    def _release(self, address: int) -> None:
        if self._memory_stream is None:
            self._cuda.cuMemFree_v2(address)
        else:
            self._cuda.cuCtxSynchronize()
            self._cuda.cuMemFreeAsync(address, self._memory_stream)
            self._cuda.cuStreamSynchronize(self._memory_stream)  # now the pool returns the memory to the system

    def allocate_host(self, nbytes: int) -> int:
        self._enter()
        _check_positive("allocate_host", nbytes)
        out = self._ffi.new("void **")
        self._cuda.cuMemHostAlloc(out, nbytes, ffi.CU_MEMHOSTALLOC_PORTABLE)
        address = int(self._ffi.cast("uintptr_t", out[0]))
        self._host_blocks.add(address)
        return address

    def free_host(self, address: int) -> None:
        self._enter()
        with self._lock:
            if address not in self._host_blocks:
                raise DeviceError(f"free_host: address={address:#x}: is not a live host block of this context")
            self._cuda.cuMemFreeHost(self._ffi.cast("void *", address))
            self._host_blocks.discard(address)

    def copy_in(self, device: int, host: int, nbytes: int, stream: int | None = None) -> None:
        """From pageable memory the driver has read every byte when its call returns; page-locked memory it reads later,
        and for that this waits."""
        self._enter()
        if _check_size("copy_in", nbytes):
            handle = self._uncaptured("copy_in", stream)
            self._cuda.cuMemcpyHtoDAsync_v2(device, self._ffi.cast("void *", host), nbytes, handle)
            if self._is_page_locked(host):
                self._cuda.cuStreamSynchronize(handle)

    def copy_out(self, host: int, device: int, nbytes: int, stream: int | None = None) -> None:
        self._enter()
        if _check_size("copy_out", nbytes):
            handle = self._uncaptured("copy_out", stream)
            self._cuda.cuMemcpyDtoHAsync_v2(self._ffi.cast("void *", host), device, nbytes, handle)
            self._cuda.cuStreamSynchronize(handle)

    def copy(self, to: int, source: int, nbytes: int, stream: int | None = None) -> None:
        self._enter()
        if _check_size("copy", nbytes):
            self._cuda.cuMemcpyDtoDAsync_v2(to, source, nbytes, self._handle(stream))

    def fill(self, address: int, byte: int, nbytes: int, stream: int | None = None) -> None:
        self._enter()
        if not 0 <= byte <= 255:
            raise ArgumentError("fill", "byte", byte, "must be from 0 to 255")
        if _check_size("fill", nbytes):
            self._cuda.cuMemsetD8Async(address, byte, nbytes, self._handle(stream))

    def memory_info(self) -> tuple[int, int]:
        """Of the whole device: other processes count."""
        self._enter()
        free, total = self._ffi.new("size_t *"), self._ffi.new("size_t *")
        self._cuda.cuMemGetInfo_v2(free, total)
        return int(free[0]), int(total[0])

    def enable_peer(self, other: MemoryVerbs) -> bool:
        """Lets kernels and copies of this context reach the other's device memory; False where the hardware cannot."""
        self._enter()
        if not self._cuda.integer(self._cuda.cuDeviceCanAccessPeer, self._device, other._device):
            return False
        code = self._raw.cuCtxEnablePeerAccess(other._context, 0)
        if code and code != ffi.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:
            raise self._cuda.failure("cuCtxEnablePeerAccess", code)
        if other._memory_stream is not None:  # the memory of a pool has access rights of its own
            pool = self._cuda.integer(self._cuda.cuDeviceGetDefaultMemPool, other._device, type="CUmemoryPool")
            location = {"type": ffi.CU_MEM_LOCATION_TYPE_DEVICE, "id": self._device}
            access = {"location": location, "flags": ffi.CU_MEM_ACCESS_FLAGS_PROT_READWRITE}
            self._cuda.cuMemPoolSetAccess(pool, self._ffi.new("CUmemAccessDesc *", access), 1)
        return True

    def copy_from(self, to: int, other: MemoryVerbs, source: int, nbytes: int, stream: int | None = None) -> None:
        """Copies from another device, in the order of this context's stream, with or without peer access."""
        self._enter()
        if _check_size("copy_from", nbytes):
            self._cuda.cuMemcpyPeerAsync(to, self._context, source, other._context, nbytes, self._handle(stream))

    def _uncaptured(self, verb: str, stream: int | None) -> int:
        handle = self._handle(stream)
        if handle in self._captured:
            raise DeviceError(f"{verb}: the stream is being captured: a graph cannot exchange data with the host")
        return handle

    def _is_page_locked(self, host: int) -> bool:
        out = self._ffi.new("unsigned int *")
        return bool(self._raw.cuPointerGetAttribute(out, ffi.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host) == 0 and out[0])


def _check_positive(verb: str, nbytes: int) -> None:
    if not 0 < nbytes < 1 << 63:
        raise ArgumentError(verb, "nbytes", nbytes, "must be from 1 to 2**63 - 1")


def _check_size(verb: str, nbytes: int) -> bool:
    """Whether there is anything to move."""
    if nbytes < 0:
        raise ArgumentError(verb, "nbytes", nbytes, "must not be negative")
    return nbytes > 0
