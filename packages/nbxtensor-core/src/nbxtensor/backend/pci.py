"""The GPUs of this machine, without a vendor's library and without a subprocess."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import NamedTuple

from nbxtensor.backend import device_files

#: PCI vendor ids and our names of the vendors.
VENDORS = {0x10DE: "nvidia", 0x1002: "amd", 0x8086: "intel"}

#: The device type that serves each vendor's GPUs.
DEVICE_TYPES = {"nvidia": "cuda", "amd": "hip", "intel": "xpu", "apple": "metal"}

SYSFS = Path("/sys/bus/pci/devices")
#: Where the Windows Subsystem for Linux shows the host's GPU, and the host's libraries.
WSL_DEVICE, WSL_LIBRARIES = Path("/dev/dxg"), Path("/usr/lib/wsl/lib")

# PCI Code and ID Assignment Specification: base class 03 is a display controller (00 VGA, 02 3D, 80 other), 12 a
# processing accelerator.
_DISPLAY, _ACCELERATOR = 0x03, 0x12

# Below this device id lie NVIDIA's GPUs up to Pascal, from it on Volta and later (The PCI ID Repository, 2026.08.22:
# the last of Pascal is 1d56, the first of Volta 1d81). Triton's oldest target is Volta, compute capability 7.0.
_FIRST_VOLTA = 0x1D81

# A GPU that is handed to a virtual machine belongs to the guest.
_GUEST_DRIVERS = frozenset({"vfio-pci", "pci-stub", "xen-pciback"})


class PciGpu(NamedTuple):
    """A GPU as the system lists it, whether or not a driver of ours can use it.

    ``address`` is the PCI address ("0000:03:00.0"), or "wsl" or "soc" where there is no PCI bus to see; ``device_id``
    and ``pci_class`` (base class and subclass, 0x0300) are then 0. ``kernel_driver``: the module bound to it, or None.
    """

    address: str
    vendor: str
    device_id: int
    pci_class: int
    kernel_driver: str | None = None

    @property
    def device_type(self) -> str:
        """The type of the devices that serve it: "cuda", "hip", "xpu" or "metal"."""
        return DEVICE_TYPES[self.vendor]

    @property
    def unsupported(self) -> str:
        """Why no driver of ours exists for it, or "" when one does: then the CPU is not taken in its place unasked.

        - NVIDIA: Volta and later are supported, by device id (see ``_FIRST_VOLTA``).
        - AMD: the ids of the device files, and every processing accelerator, which are the Instinct cards. Other
          graphics, the integrated ones of most Ryzen processors among them, have no matrix units or no ROCm.
        - Intel: the ids of the device files. Integrated graphics before Lunar Lake are not among them.
        - Apple: every Apple GPU.
        - A GPU that is bound to a virtual machine's driver is not this machine's to use.
        """
        if self.kernel_driver in _GUEST_DRIVERS:
            return f"{self.kernel_driver} holds it for a virtual machine"
        if self.vendor == "apple" or self.address == "wsl":
            return ""
        if self.vendor == "nvidia":
            return (
                "" if self.device_id >= _FIRST_VOLTA else "it is older than Volta, the first that Triton compiles for"
            )
        if self.vendor == "amd" and self.pci_class >> 8 == _ACCELERATOR:
            return ""
        return "" if device_files.for_pci(self.vendor, self.device_id) is not None else "no device file lists it"

    @property
    def supported(self) -> bool:
        """Whether a driver of ours exists for it."""
        return not self.unsupported

    def __str__(self) -> str:
        names = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel", "apple": "Apple"}
        name = f"{names[self.vendor]} GPU"
        return f"{name} {self.device_id:04x} at {self.address}" if self.device_id else name


def gpus(root: Path = SYSFS, wsl_device: Path = WSL_DEVICE, wsl_libraries: Path = WSL_LIBRARIES) -> list[PciGpu]:
    """The GPUs of NVIDIA, AMD, Intel and Apple in this machine, by address.

    On Linux the PCI bus is read from ``root``. The Windows Subsystem for Linux shows no GPU on a bus: there an NVIDIA
    GPU is present where the host's driver has put its libcuda into ``wsl_libraries``. On a Mac with Apple silicon there
    is the one on the chip. Other systems are not scanned: an empty list.
    """
    system = platform.system()
    if system == "Darwin" and platform.machine() == "arm64":
        return [PciGpu("soc", "apple", 0, 0)]
    if system != "Linux":
        return []
    found = [gpu for path in _children(root) if (gpu := _gpu(path)) is not None]
    if not found and wsl_device.exists() and (wsl_libraries / "libcuda.so.1").exists():
        found.append(PciGpu("wsl", "nvidia", 0, 0))
    return found


def _children(root: Path) -> list[Path]:
    return sorted(root.iterdir()) if root.is_dir() else []


def _gpu(path: Path) -> PciGpu | None:
    try:
        vendor, device, full_class = (int((path / name).read_text(), 16) for name in ("vendor", "device", "class"))
    except (OSError, ValueError):  # unplugged between listing and reading, or hidden from this container
        return None
    if vendor not in VENDORS or full_class >> 16 not in (_DISPLAY, _ACCELERATOR):
        return None
    bound = path / "driver"
    kernel_driver = bound.resolve().name if bound.is_symlink() else None
    gpu = PciGpu(path.name, VENDORS[vendor], device, full_class >> 8, kernel_driver)
    # Neural processors are accelerators too, and no GPUs: Intel's has the vendor id of its graphics.
    return gpu if full_class >> 16 == _DISPLAY or gpu.supported else None
