"""What a GPU of this machine lacks, and the commands that mend it: the text of every refusal and of the doctor."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nbxtensor.backend import pci
from nbxtensor.errors import Unavailable

#: What to do when nothing more exact is known.
GENERAL_FIX = 'python -m nbxtensor doctor shows what each driver and GPU lacks; device="cpu" runs on the host'

ALTERNATIVE = 'device="cpu"'

# Where the commands come from: NVIDIA, "Driver Installation Guide", "CUDA on WSL User Guide" and "Container Toolkit";
# AMD, "ROCm installation on Linux" and "Radeon software for WSL"; Intel, "compute-runtime" and the packages that Debian
# and Ubuntu make of it. Keys are what `system` answers; "linux" serves the distributions without a line of their own.
_DRIVER_COMMANDS: dict[str, dict[str, tuple[str, ...]]] = {
    "nvidia": {
        "ubuntu": ("sudo ubuntu-drivers install", "sudo reboot"),
        "debian": ("sudo apt install nvidia-driver  # from the component non-free", "sudo reboot"),
        "fedora": ("sudo dnf install akmod-nvidia xorg-x11-drv-nvidia-cuda  # from RPM Fusion", "sudo reboot"),
        "linux": ("install NVIDIA's driver: https://www.nvidia.com/drivers",),
        "container": ("docker run --gpus all ...  # with the NVIDIA Container Toolkit on the host",),
        "wsl": ("wsl --update  # in Windows, with NVIDIA's Windows driver installed; install no driver inside WSL",),
    },
    "amd": {
        "linux": (
            "sudo amdgpu-install --usecase=rocm  # the installer: https://rocm.docs.amd.com/projects/install-on-linux",
            "sudo usermod -aG render,video $USER  # then log in again",
        ),
        "container": ("docker run --device=/dev/kfd --device=/dev/dri --group-add video --group-add render ...",),
        "wsl": ("sudo amdgpu-install --usecase=wsl,rocm --no-dkms",),
    },
    "intel": {
        "ubuntu": (
            "sudo apt install libze1 libze-intel-gpu1 intel-opencl-icd",
            "sudo usermod -aG render $USER  # then log in again",
        ),
        "linux": ("install Intel's compute runtime: https://github.com/intel/compute-runtime/releases",),
        "container": ("docker run --device=/dev/dri ...",),
    },
    "apple": {"darwin": ("update macOS: the Metal driver is a part of it",)},
}
_DRIVER_COMMANDS["intel"]["debian"] = _DRIVER_COMMANDS["intel"]["ubuntu"]

_PERMISSION_COMMANDS = {
    "nvidia": ("ls -l /dev/nvidia*  # must be readable and writable for you", "sudo nvidia-modprobe -u"),
    "amd": ("sudo usermod -aG render,video $USER  # then log in again", "ls -l /dev/kfd /dev/dri/renderD*"),
    "intel": ("sudo usermod -aG render $USER  # then log in again", "ls -l /dev/dri/renderD*"),
    "apple": (),
}

_TRITON_COMMANDS = {
    "nvidia": ("pip install 'triton>=3.6'",),
    "amd": ("pip install 'triton>=3.6'",),
    "intel": ("install Intel's build of Triton: https://github.com/intel/intel-xpu-backend-for-triton",),
    "apple": ("build Triton's Metal extension: https://github.com/triton-lang/triton-ext",),
}

# Variables with which a vendor's library hides devices.
_HIDING = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "intel": ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
    "apple": (),
}

_DEVICE_COMMANDS = {"nvidia": ("nvidia-smi",), "amd": ("rocminfo",), "intel": ("clinfo",), "apple": ()}

# Kernel modules with which the vendor's library does not work.
_FOREIGN_MODULES = frozenset({None, "nouveau", "radeon"})


class Help(NamedTuple):
    """What one GPU lacks. ``commands`` are lines for a shell, or what to do where there is no command, in order."""

    gpu: pci.PciGpu
    reason: str
    missing: str
    commands: tuple[str, ...]
    alternative: str = ALTERNATIVE


def system(root: Path = Path("/")) -> str:
    """Which commands apply here: "wsl", "container", "ubuntu", "debian", "fedora", another "linux", or "darwin"."""
    name = platform.system().lower()
    if name != "linux":
        return name
    if (root / "dev/dxg").exists():
        return "wsl"
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return "container"
    release = root / "etc/os-release"
    lines = release.read_text(encoding="utf-8", errors="replace").splitlines() if release.is_file() else []
    fields = {key: value.strip("\"'") for key, _, value in (line.partition("=") for line in lines)}
    names = [fields.get("ID", ""), *fields.get("ID_LIKE", "").split()]
    return next((known for known in names if known in ("ubuntu", "debian", "fedora")), "linux")


def package_hint(device_type: str) -> str:
    """The command that installs the package of a device type; for an unknown type the general fix."""
    if device_type in pci.DEVICE_TYPES.values():
        return f'pip install "nbxtensor[{device_type}]"'
    return GENERAL_FIX


def for_gpu(gpu: pci.PciGpu, refusals: Sequence[Unavailable], on: str | None = None) -> Help:
    """What a GPU lacks. ``refusals``: what the installed drivers of its device type answered, the first choice first;
    empty when none is installed. ``on``: the `system` to write commands for, this one by default."""
    on = system() if on is None else on
    if not refusals:
        commands: tuple[str, ...] = (package_hint(gpu.device_type),)
        if gpu.kernel_driver in _FOREIGN_MODULES:
            commands += _driver_commands(gpu.vendor, on)
        return Help(gpu, "no library", f"nbxtensor-{gpu.device_type} is not installed", commands)
    refusal = refusals[0]
    missing = f"{refusal.reason}: {refusal.detail}" if refusal.detail else refusal.reason
    commands = tuple(refusal.fix.splitlines()) if refusal.fix else _commands(gpu, refusal.reason, on)
    return Help(gpu, refusal.reason, missing, commands)


def refusal(
    refusals: Mapping[str, Sequence[Unavailable]], gpus: Sequence[pci.PciGpu] | None = None
) -> Unavailable | None:
    """Why the default device is not the CPU: an error to raise, or None when this machine has no supported GPU.

    ``refusals`` holds for each device type what its installed drivers answered; ``gpus`` are this machine's by default.
    """
    found = [gpu for gpu in (pci.gpus() if gpus is None else gpus) if gpu.supported]
    if not found:
        return None
    helps = [for_gpu(gpu, refusals.get(gpu.device_type, ())) for gpu in found]
    alike: dict[tuple[str, tuple[str, ...]], list[Help]] = {}
    for one in helps:
        alike.setdefault((one.missing, one.commands), []).append(one)
    detail = "; ".join(f"{', '.join(str(h.gpu) for h in group)}: {missing}" for (missing, _), group in alike.items())
    lines = dict.fromkeys(command for _, commands in alike for command in commands)
    return Unavailable(helps[0].reason, detail, "\n".join([*lines, f"or run on the host: {ALTERNATIVE}"]))


def _driver_commands(vendor: str, on: str) -> tuple[str, ...]:
    known = _DRIVER_COMMANDS[vendor]
    return known.get(on, known.get("linux", ()))


def _commands(gpu: pci.PciGpu, reason: str, on: str) -> tuple[str, ...]:
    """The commands for a reason that the driver gave without a fix of its own."""
    package = f"nbxtensor-{gpu.device_type}"
    if reason == "no permission":
        return _driver_commands(gpu.vendor, on) if on == "container" else _PERMISSION_COMMANDS[gpu.vendor]
    if reason == "no Triton backend":
        return _TRITON_COMMANDS[gpu.vendor]
    if reason == "broken":
        return (f"pip install --force-reinstall --no-deps {package}", "python -m nbxtensor doctor")
    if reason == "no device":
        hiding = tuple(
            f"unset {name}  # now {os.environ[name]!r}" for name in _HIDING[gpu.vendor] if name in os.environ
        )
        return hiding or _DEVICE_COMMANDS[gpu.vendor] + _driver_commands(gpu.vendor, on)
    return _driver_commands(gpu.vendor, on)  # no library, driver too old
