"""What CUDA's error codes mean here, and what to do about them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from nbxtensor.backend.cuda import ffi
from nbxtensor.errors import Unavailable

#: The oldest CUDA version that a driver must support, as cuDriverGetVersion says it: the first of the release family of
#: the oldest assembler in use (Triton 3.6 brings ptxas 12.8).
MINIMUM_VERSION = 12000

_LOST = "The context is lost: every later call fails alike, and only a new process gets another"

#: Codes after which a context answers every call with the same code.
STICKY = {
    ffi.CUDA_ERROR_ECC_UNCORRECTABLE: "an uncorrectable memory error; see nvidia-smi -q -d ECC",
    ffi.CUDA_ERROR_ILLEGAL_ADDRESS: "a kernel accessed memory that it does not own; compute-sanitizer names the line",
    ffi.CUDA_ERROR_LAUNCH_TIMEOUT: "a kernel ran longer than a GPU that drives a display allows",
    ffi.CUDA_ERROR_ASSERT: "an assertion in a kernel failed; its text is on stderr",
    ffi.CUDA_ERROR_HARDWARE_STACK_ERROR: "a kernel's call stack overflowed or was corrupted",
    ffi.CUDA_ERROR_ILLEGAL_INSTRUCTION: "a kernel met an instruction that the GPU does not have",
    ffi.CUDA_ERROR_MISALIGNED_ADDRESS: "a kernel accessed memory at an address that is not aligned to the element",
    ffi.CUDA_ERROR_INVALID_ADDRESS_SPACE: "a kernel accessed memory of another address space than it said",
    ffi.CUDA_ERROR_INVALID_PC: "a kernel jumped out of its code",
    ffi.CUDA_ERROR_LAUNCH_FAILED: "a kernel failed; compute-sanitizer names the line",
}

ADVICE = {
    ffi.CUDA_ERROR_INVALID_HANDLE: "a stream, event or kernel was destroyed or belongs to another device",
    ffi.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: "a stream that is being captured cannot be waited for",
    ffi.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: "the capture was broken off by an earlier refused call",
} | {code: f"{text}. {_LOST}" for code, text in STICKY.items()}

# What cuInit answers where no device can be used: reason, what it means, what to do.
_AT_START = {
    ffi.CUDA_ERROR_NOT_INITIALIZED: (
        "broken",
        "the library refused to start",
        "nvidia-smi  # shows whether the driver works at all",
    ),
    ffi.CUDA_ERROR_DEVICE_UNAVAILABLE: (
        "no permission",
        "the GPU is in use by another process, in exclusive mode",
        "nvidia-smi -q -d COMPUTE  # shows the mode; sudo nvidia-smi -c DEFAULT ends it",
    ),
    ffi.CUDA_ERROR_NO_DEVICE: (
        "no device",
        "the driver shows no GPU to this process (CUDA_VISIBLE_DEVICES, or a container without one)",
        "nvidia-smi -L  # lists the GPUs; a container gets them with: docker run --gpus all ...",
    ),
    ffi.CUDA_ERROR_INVALID_DEVICE: (
        "broken",
        "the driver calls its own device invalid",
        "nvidia-smi  # shows the GPU's state; a GPU that fell off the bus needs a restart of the machine",
    ),
    ffi.CUDA_ERROR_OPERATING_SYSTEM: (
        "no permission",
        "the operating system refused a call of the driver",
        "ls -l /dev/nvidia*  # must be readable and writable for you",
    ),
    ffi.CUDA_ERROR_SYSTEM_NOT_READY: (
        "broken",
        "the system's interconnect is not ready: on machines with NVSwitch the fabric manager must run",
        "sudo systemctl start nvidia-fabricmanager",
    ),
    ffi.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: (
        "broken",
        "the library and the loaded kernel module are of different releases, as after an update without a restart",
        "sudo reboot  # or reload the modules; in a container, its own libcuda must not hide the host's",
    ),
    ffi.CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE: (
        "driver too old",
        "this is the forward-compatibility library, which serves data-centre GPUs only",
        "remove the cuda-compat directory from LD_LIBRARY_PATH",
    ),
    ffi.CUDA_ERROR_UNKNOWN: (
        "broken",
        "the driver does not say why: often the module nvidia_uvm is not loaded, or the machine woke from sleep",
        "sudo modprobe -r nvidia_uvm; sudo modprobe nvidia_uvm",
    ),
}

_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0")

# What cuModuleLoadData answers to a binary that this driver or GPU cannot take.
_AT_LOAD = {
    ffi.CUDA_ERROR_UNSUPPORTED_PTX_VERSION: "the driver is older than the assembler that made the binary",
    ffi.CUDA_ERROR_INVALID_PTX: "the driver does not accept the PTX text",
    ffi.CUDA_ERROR_NO_BINARY_FOR_GPU: "the binary is for another architecture, or of a format younger than the driver",
    ffi.CUDA_ERROR_INVALID_IMAGE: "the binary is damaged, or of a format younger than the driver",
}


def at_start(code: int, name: str, path: str) -> Unavailable:
    """The refusal for a failed cuInit of the library at ``path``."""
    barred = [node for node in _NODES if os.path.exists(node) and not os.access(node, os.R_OK | os.W_OK)]
    if barred and code in (ffi.CUDA_ERROR_NO_DEVICE, ffi.CUDA_ERROR_UNKNOWN, ffi.CUDA_ERROR_OPERATING_SYSTEM):
        reason, meaning = "no permission", f"{', '.join(barred)} cannot be opened by this user"
        fix = "ls -l /dev/nvidia*  # must be readable and writable for you"
    else:
        reason, meaning, fix = _AT_START.get(
            code, ("broken", "the driver could not start", "nvidia-smi  # shows whether the driver works at all")
        )
    return Unavailable(reason, f"cuInit of {path} failed: {name} ({code}): {meaning}", fix)


def after_fork(owner: int) -> Unavailable:
    """The refusal in a child of the process that started CUDA."""
    return Unavailable(
        "broken",
        f"CUDA was started in process {owner} before it forked this one, and does not work across a fork",
        'start processes with multiprocessing.get_context("spawn"), or use CUDA only after the fork',
    )


def at_load(code: int, version: int, metadata: Mapping[str, Any]) -> str | None:
    """Why a driver of CUDA ``version`` refused a binary, with the versions that disagree; None for other codes."""
    if code not in _AT_LOAD:
        return None
    return (
        f"{_AT_LOAD[code]}. The driver supports CUDA {spell_version(version)}; Triton {metadata.get('triton_version')} "
        f"made the binary for {metadata.get('arch')} from PTX {metadata.get('ptx_version')}: upgrade the driver, or "
        "install a Triton whose ptxas is no younger than it"
    )


def spell_version(version: int) -> str:
    """12080 is "12.8"."""
    return f"{version // 1000}.{version % 1000 // 10}"
