"""The GPUs of a machine and what each lacks, on made-up buses."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from nbxtensor.backend import install_help, pci
from nbxtensor.backend.contract import REASONS, Reason
from nbxtensor.backend.pci import PciGpu
from nbxtensor.errors import Unavailable

H100 = PciGpu("0000:3b:00.0", "nvidia", 0x2330, 0x0302, "nvidia")
MI300X = PciGpu("0000:05:00.0", "amd", 0x74A1, 0x1200, "amdgpu")
B580 = PciGpu("0000:03:00.0", "intel", 0xE20B, 0x0300, "xe")
M3 = PciGpu("soc", "apple", 0, 0)


@pytest.fixture(autouse=True)
def on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    for name in {name for names in install_help._HIDING.values() for name in names}:
        monkeypatch.delenv(name, raising=False)


def bus(root: Path, *devices: tuple[str, int, int, int, str | None]) -> Path:
    """A tree as /sys/bus/pci/devices: (address, vendor, device, class with interface, kernel driver)."""
    for address, vendor, device, full_class, driver in devices:
        path = root / "devices" / address
        path.mkdir(parents=True)
        for name, value in (
            ("vendor", f"0x{vendor:04x}"),
            ("device", f"0x{device:04x}"),
            ("class", f"0x{full_class:06x}"),
        ):
            (path / name).write_text(value + "\n")
        if driver is not None:
            (root / "drivers" / driver).mkdir(parents=True, exist_ok=True)
            (path / "driver").symlink_to(root / "drivers" / driver)
    return root / "devices"


def found(root: Path) -> list[PciGpu]:
    return pci.gpus(root, root / "no-dxg", root / "no-libraries")


def test_gpus_are_told_from_other_devices(tmp_path: Path) -> None:
    root = bus(
        tmp_path,
        ("0000:00:00.0", 0x8086, 0x1237, 0x060000, None),  # Intel's host bridge
        ("0000:00:02.0", 0x8086, 0x46A6, 0x030000, "i915"),  # integrated graphics
        ("0000:00:0b.0", 0x8086, 0x7D1D, 0x120000, "intel_vpu"),  # Intel's neural processor
        ("0000:01:00.0", 0x1002, 0x74A1, 0x120000, "amdgpu"),
        ("0000:3b:00.0", 0x10DE, 0x2330, 0x030200, "nvidia"),
        ("0000:3b:00.1", 0x10DE, 0x22BA, 0x040300, "snd_hda_intel"),  # the audio function of a card
        ("0000:3c:00.0", 0x10DE, 0x22A3, 0x068000, None),  # NVSwitch
        ("0000:40:00.0", 0x1A03, 0x2000, 0x030000, "ast"),  # a server's management display
    )
    assert found(root) == [
        PciGpu("0000:00:02.0", "intel", 0x46A6, 0x0300, "i915"),
        PciGpu("0000:01:00.0", "amd", 0x74A1, 0x1200, "amdgpu"),
        PciGpu("0000:3b:00.0", "nvidia", 0x2330, 0x0302, "nvidia"),
    ]


def test_a_device_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    root = bus(
        tmp_path, ("0000:3b:00.0", 0x10DE, 0x2330, 0x030200, None), ("0000:3c:00.0", 0x10DE, 0x2330, 0x030200, None)
    )
    (root / "0000:3b:00.0" / "class").unlink()
    assert [gpu.address for gpu in found(root)] == ["0000:3c:00.0"]
    (root / "0000:3c:00.0" / "vendor").write_text("what\n")
    assert found(root) == []


def test_a_machine_without_a_pci_bus_has_no_gpu(tmp_path: Path) -> None:
    assert found(tmp_path / "absent") == []


def test_wsl_shows_the_hosts_nvidia_gpu(tmp_path: Path) -> None:
    (tmp_path / "dxg").touch()
    assert pci.gpus(tmp_path / "bus", tmp_path / "dxg", tmp_path) == []
    (tmp_path / "libcuda.so.1").touch()
    (gpu,) = pci.gpus(tmp_path / "bus", tmp_path / "dxg", tmp_path)
    assert (gpu.vendor, gpu.address, gpu.supported) == ("nvidia", "wsl", True)


@pytest.mark.parametrize(
    "system, machine, vendors", [("Darwin", "arm64", ["apple"]), ("Darwin", "x86_64", []), ("Windows", "AMD64", [])]
)
def test_other_systems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, machine: str, vendors: list[str]
) -> None:
    root = bus(tmp_path, ("0000:3b:00.0", 0x10DE, 0x2330, 0x030200, None))
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert [gpu.vendor for gpu in found(root)] == vendors


@pytest.mark.parametrize(
    "vendor, device_id, pci_class, kernel_driver, supported",
    [
        ("nvidia", 0x1D81, 0x0300, "nvidia", True),  # Titan V, the first of Volta
        ("nvidia", 0x1D56, 0x0302, "nvidia", False),  # MX330, the last of Pascal
        ("nvidia", 0x2330, 0x0302, None, True),  # without a kernel driver it is there all the same
        ("nvidia", 0x2330, 0x0302, "vfio-pci", False),
        ("amd", 0x74A1, 0x1200, "amdgpu", True),
        ("amd", 0xFFF0, 0x1200, "amdgpu", True),  # an Instinct card of the future
        ("amd", 0x744C, 0x0300, "amdgpu", True),
        ("amd", 0x15BF, 0x0300, "amdgpu", False),  # Radeon 780M, integrated
        ("amd", 0x67DF, 0x0300, "amdgpu", False),  # Polaris
        ("intel", 0xE20B, 0x0300, "xe", True),
        ("intel", 0x0BD5, 0x0380, "i915", True),
        ("intel", 0x46A6, 0x0300, "i915", False),
        ("apple", 0, 0, None, True),
    ],
)
def test_which_gpu_keeps_the_cpu_from_being_taken(
    vendor: str, device_id: int, pci_class: int, kernel_driver: str | None, supported: bool
) -> None:
    gpu = PciGpu("0000:03:00.0", vendor, device_id, pci_class, kernel_driver)
    assert gpu.supported is supported
    assert bool(gpu.unsupported) is not supported
    assert (install_help.refusal({}, [gpu]) is not None) is supported


@pytest.mark.parametrize("gpu, extra", [(H100, "cuda"), (MI300X, "hip"), (B580, "xpu"), (M3, "metal")])
def test_a_package_that_is_not_installed(gpu: PciGpu, extra: str) -> None:
    helped = install_help.for_gpu(gpu, [], on="ubuntu")
    assert helped.missing == f"nbxtensor-{extra} is not installed"
    assert helped.commands[0] == f'pip install "nbxtensor[{extra}]"'
    assert helped.alternative == 'device="cpu"'


def test_the_vendors_driver_is_named_where_the_kernel_has_none() -> None:
    assert len(install_help.for_gpu(H100, [], on="ubuntu").commands) == 1
    for module in (None, "nouveau"):
        commands = install_help.for_gpu(H100._replace(kernel_driver=module), [], on="ubuntu").commands
        assert "sudo ubuntu-drivers install" in commands


@pytest.mark.parametrize(
    "on, part",
    [
        ("ubuntu", "sudo ubuntu-drivers install"),
        ("debian", "sudo apt install nvidia-driver"),
        ("fedora", "akmod-nvidia"),
        ("linux", "https://www.nvidia.com/drivers"),
        ("container", "--gpus all"),
        ("wsl", "in Windows"),
    ],
)
def test_commands_fit_the_system(on: str, part: str) -> None:
    helped = install_help.for_gpu(H100, [Unavailable("no library", "libcuda.so.1 was not found")], on=on)
    assert any(part in command for command in helped.commands)
    assert "libcuda.so.1 was not found" in helped.missing


@pytest.mark.parametrize("gpu", [H100, MI300X, B580, M3])
@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_has_its_text_and_no_command_is_empty(gpu: PciGpu, reason: Reason) -> None:
    helped = install_help.for_gpu(gpu, [Unavailable(reason)], on="ubuntu")
    assert helped.reason == reason
    assert reason in helped.missing
    assert all(command.strip() for command in helped.commands)
    if gpu.vendor != "apple":
        assert helped.commands


def test_the_drivers_own_fix_comes_first() -> None:
    refusal = Unavailable("driver too old", "driver 470.57 serves CUDA 11.4", "first line\nsecond line")
    other = Unavailable("broken", "another driver of the type")
    assert install_help.for_gpu(H100, [refusal, other]).commands == ("first line", "second line")


def test_a_hidden_device_is_told_by_the_variable_that_hides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    helped = install_help.for_gpu(H100, [Unavailable("no device")], on="ubuntu")
    assert helped.commands == ("unset CUDA_VISIBLE_DEVICES  # now '-1'",)


@pytest.mark.parametrize(
    "files, expected",
    [
        ({}, "linux"),
        ({"etc/os-release": 'ID=ubuntu\nID_LIKE="debian"\n'}, "ubuntu"),
        ({"etc/os-release": 'ID="linuxmint"\nID_LIKE="ubuntu debian"\n'}, "ubuntu"),
        ({"etc/os-release": "ID=debian\n"}, "debian"),
        ({"etc/os-release": 'ID="rocky"\nID_LIKE="rhel centos fedora"\n'}, "fedora"),
        ({"etc/os-release": "ID=nixos\nnonsense\n"}, "linux"),
        ({"etc/os-release": "ID=ubuntu\n", ".dockerenv": ""}, "container"),
        ({"etc/os-release": "ID=ubuntu\n", "run/.containerenv": ""}, "container"),
        ({"etc/os-release": "ID=ubuntu\n", "dev/dxg": ""}, "wsl"),
    ],
)
def test_which_commands_apply(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert install_help.system(tmp_path) == expected


def test_a_refusal_names_every_gpu_once_and_the_way_out() -> None:
    more = [H100._replace(address=f"0000:{bus}:00.0") for bus in ("3b", "5e", "86")]
    refusal = install_help.refusal({"cuda": [Unavailable("no library", "no libcuda", "install it")]}, [*more, B580])
    assert refusal is not None
    assert refusal.reason == "no library"
    assert refusal.detail.count("no libcuda") == 1
    assert all(gpu.address in refusal.detail for gpu in (*more, B580))
    assert "nbxtensor-xpu is not installed" in refusal.detail
    assert refusal.fix.splitlines() == [
        "install it",
        'pip install "nbxtensor[xpu]"',
        'or run on the host: device="cpu"',
    ]


def test_no_gpu_is_no_refusal() -> None:
    assert install_help.refusal({"cuda": [Unavailable("no library")]}, []) is None


def test_package_hint_of_an_unknown_type_is_the_doctor() -> None:
    assert "doctor" in install_help.package_hint("tpu")
