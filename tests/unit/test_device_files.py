"""Device files: what a file may hold, who finds it, what a missing fact says; and that the shipped files are sound."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nbxtensor.backend import device_files
from nbxtensor.backend.contract import DeviceInfo
from nbxtensor.errors import ArgumentError, FileFormatError, MissingFact

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a profile into a driver's own folder, which is searched besides core's."""
    monkeypatch.setattr(device_files, "_folders", [])
    device_files.forget()

    def write_profile(profile: str, text: str) -> str:
        path = tmp_path / f"{profile}.yml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        device_files.add_folder(tmp_path)
        return profile

    yield write_profile
    device_files.forget()


@pytest.mark.parametrize("profile", device_files.profiles())
def test_every_shipped_file_is_sound(profile: str) -> None:
    facts = device_files.load(profile)
    assert facts.profile == profile
    assert facts.architectures
    for architecture in facts.architectures:
        assert device_files.for_arch(architecture) is facts
    for key in facts:
        assert facts.fact(key).source
        assert facts.fact(key).path.is_relative_to(device_files.FOLDER)


def test_no_pci_id_is_in_two_files() -> None:
    for vendor in ("amd", "intel"):
        listed = [pci_id for name in device_files.profiles(vendor) for pci_id in device_files.load(name).pci_ids]
        assert listed
        assert len(listed) == len(set(listed))


@pytest.mark.parametrize("profile", ["cpu/reference", "nvidia/hopper"])
def test_a_file_that_kernels_run_by_states_what_they_ask(profile: str) -> None:
    facts = device_files.load(profile)
    for key in (
        *(
            "elementwise.block",
            "elementwise.num_warps",
            "reduction.block_rows",
            "reduction.block_columns",
            "rows.max_block",
        ),
        *(f"gemm.{name}" for name in ("block_m", "block_n", "block_k", "num_warps", "num_stages", "group_m")),
        *(f"flash.{name}" for name in ("block_m", "block_n", "num_warps", "num_stages")),
        *("memory.max_shared_memory_per_block", "limits.warp_size"),
    ):
        assert facts[key] > 0
        if "block" in key and not key.startswith("memory"):
            assert facts[key] & (facts[key] - 1) == 0, f"{key}: a Triton tile is a power of two"
    assert len(facts["limits.max_grid"]) == 3


def test_facts_of_known_devices() -> None:
    """Values with which earlier tables were wrong, or which differ where one would not expect it."""
    hopper = device_files.for_arch("sm_90")
    assert hopper["memory.max_shared_memory_per_block"] == 227 * 1024
    assert hopper["limits.max_grid"] == (2**31 - 1, 65535, 65535)
    assert device_files.for_arch("gfx942:sramecc+:xnack-")["memory.max_shared_memory_per_block"] == 64 * 1024
    assert device_files.for_arch("gfx950")["memory.max_shared_memory_per_block"] == 160 * 1024
    assert device_files.for_arch("gfx90a")["limits.warp_size"] == 64
    assert device_files.for_arch("gfx1201")["limits.warp_size"] == 32


def test_intel_and_amd_files_are_found_by_pci_id() -> None:
    def profile(vendor: str, device_id: int) -> str | None:
        found = device_files.for_pci(vendor, device_id)
        return None if found is None else found.profile

    assert profile("intel", 0xE20B) == "intel/bmg"
    assert profile("intel", 0x0BD5) == "intel/pvc"
    assert profile("amd", 0x74A1) == "amd/cdna3"
    assert profile("intel", 0x46A6) is None  # Iris Xe, integrated
    assert profile("amd", 0x0BD5) is None  # another vendor's number


def test_a_missing_fact_names_file_key_and_who_asked() -> None:
    facts = device_files.load("nvidia/hopper")
    with pytest.raises(MissingFact) as raised:
        facts["gemm.block_z"]
    text = str(raised.value)
    assert "test_a_missing_fact_names_file_key_and_who_asked" in text
    assert "gemm.block_z" in text
    assert "nvidia/hopper.yml" in text
    assert "gemm.block_z" not in facts
    assert facts.get("gemm.block_z", 7) == 7
    with pytest.raises(MissingFact, match=r"gemm\.block_z"):
        facts.fact("gemm.block_z")


def test_a_missing_file_names_what_was_asked_for() -> None:
    with pytest.raises(MissingFact, match="nvidia/kepler"):
        device_files.load("nvidia/kepler")
    with pytest.raises(MissingFact, match="sm_35"):
        device_files.for_arch("sm_35")
    for wrong in ("hopper", "nvidia/hopper.yml", "../cpu/reference", "nvidia/../cpu/reference", "", 3):
        with pytest.raises(ArgumentError, match="vendor"):
            device_files.load(wrong)  # type: ignore[arg-type]
    for architecture in ("", None, 90):
        with pytest.raises(ArgumentError):
            device_files.for_arch(architecture)  # type: ignore[arg-type]


def test_a_file_inherits_facts_and_states_its_own(write: Write) -> None:
    write("acme/base", "gemm: {block_m: {value: 64, source: a}, block_n: {value: 32, source: a}}\n")
    write(
        "acme/one",
        "inherits: acme/base\ntitle: one\narchitectures: {value: [acme1], source: b}\n"
        "gemm: {block_n: {value: 16, source: b}}\n",
    )
    facts = device_files.for_arch("acme1")
    assert (facts["gemm.block_m"], facts["gemm.block_n"]) == (64, 16)
    assert facts.fact("gemm.block_m").path.name == "base.yml"
    assert facts.fact("gemm.block_n") == (16, "b", facts.path)
    assert list(facts) == ["gemm.block_m", "gemm.block_n"]


def test_a_drivers_file_may_inherit_a_shipped_one(write: Write) -> None:
    write("acme/one", "inherits: nvidia/hopper\ngemm: {block_m: {value: 64, source: b}}\n")
    facts = device_files.load("acme/one")
    assert (facts["gemm.block_m"], facts["limits.warp_size"]) == (64, 32)
    assert facts.architectures == ()


@pytest.mark.parametrize(
    "key, text",
    [
        ("gem", "gem: {block_m: {value: 64, source: a}}"),
        ("gemm.block_m", "gemm: {block_m: {value: 64}}"),
        ("gemm.block_m", "gemm: {block_m: 64}"),
        ("gemm.block_m", "gemm: {block_m: {value: 64, source: a, unit: KB}}"),
        ("gemm.block_m.source", "gemm: {block_m: {value: 64, source: ''}}"),
        ("gemm.block_m.source", "gemm: {block_m: {value: 64, source: 3}}"),
        ("gemm.block_m", "gemm: {block_m: {value: '64', source: a}}"),
        ("gemm.block_m", "gemm: {block_m: {value: 64.0, source: a}}"),
        ("gemm.block_m", "gemm: {block_m: {value: true, source: a}}"),
        ("gemm.block_m", "gemm: {block_m: {value: 0, source: a}}"),
        ("gemm.Block", "gemm: {Block: {value: 1, source: a}}"),
        ("gemm", "gemm: 64"),
        ("precision.float16", "precision: {float16: {value: 1, source: a}}"),
        ("autotune_screen_rtol.float16", "autotune_screen_rtol: {float16: {value: -1.0e-3, source: a}}"),
        ("autotune_screen_rtol.float16", "autotune_screen_rtol: {float16: {value: .inf, source: a}}"),
        ("autotune_screen_rtol.float16", "autotune_screen_rtol: {float16: {value: .nan, source: a}}"),
        ("limits.max_grid", "limits: {max_grid: {value: [1, 2], source: a}}"),
        ("limits.max_grid", "limits: {max_grid: {value: [1, 2, 0], source: a}}"),
        ("title", "title: [1]"),
        ("pci_ids", "pci_ids: {value: ['e20b'], source: a}"),
        ("pci_ids", "pci_ids: {value: [0xe20b], source: a}"),
        ("pci_ids", "pci_ids: {value: ['0xe20b', '0xe20b'], source: a}"),
        ("architectures", "architectures: [sm_90]"),
        ("inherits", "inherits: acme/one"),
        ("inherits", "inherits: acme/none"),
        ("inherits", "inherits: /etc/passwd"),
        ("file", "- 1"),
        ("file", ""),
        ("gemm", "gemm: {block_m: {value: 64, source: a}}\ngemm: {block_m: {value: 32, source: a}}"),
        ("block_m", "gemm: {block_m: {value: 64, source: a}, block_m: {value: 32, source: a}}"),
        ("file", "gemm: {block_m: {value: 64"),
        ("file", "gemm: !!python/object/apply:os.getcwd []"),
    ],
)
def test_a_wrong_file_is_refused_by_file_and_key(write: Write, key: str, text: str) -> None:
    with pytest.raises(FileFormatError) as raised:
        device_files.load(write("acme/one", text + "\n"))
    assert "acme/one.yml" in str(raised.value)
    assert key in str(raised.value)


def test_a_file_that_is_no_text_is_refused(write: Write, tmp_path: Path) -> None:
    write("acme/one", "")
    (tmp_path / "acme/one.yml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match=r"one\.yml"):
        device_files.load("acme/one")


def test_inheriting_in_a_circle_is_refused(write: Write) -> None:
    write("acme/one", "inherits: acme/two\n")
    write("acme/two", "inherits: acme/one\n")
    with pytest.raises(FileFormatError, match="acme/two -> acme/one"):
        device_files.load("acme/one")


def test_what_two_files_claim_is_refused(write: Write) -> None:
    write("acme/one", "architectures: {value: [acme1], source: a}\n")
    write("acme/two", "architectures: {value: [acme1], source: a}\n")
    with pytest.raises(FileFormatError, match=r"one\.yml.*two\.yml"):
        device_files.for_arch("acme1")
    write("nvidia/hopper", "title: mine\n")
    with pytest.raises(FileFormatError, match="more than once"):
        device_files.load("nvidia/hopper")


def test_forget_reads_the_file_again(write: Write) -> None:
    write("acme/one", "gemm: {block_m: {value: 64, source: a}}\n")
    before = device_files.load("acme/one")
    assert device_files.load("acme/one") is before
    write("acme/one", "gemm: {block_m: {value: 32, source: a}}\n")
    assert device_files.load("acme/one")["gemm.block_m"] == 64
    device_files.forget()
    assert device_files.load("acme/one")["gemm.block_m"] == 32


def test_a_device_is_served_by_its_profile_else_by_its_architecture(write: Write, tmp_path: Path) -> None:
    profile = write("acme/one", "gemm: {block_m: {value: 64, source: a}}\n")
    device_files._folders.clear()
    info = DeviceInfo(0, "Acme", "sm_90", 1 << 30, profile=profile)
    assert device_files.for_device(info, str(tmp_path)).profile == "acme/one"
    assert device_files.for_device(info._replace(profile=None)).profile == "nvidia/hopper"
    with pytest.raises(ArgumentError, match="not a directory"):
        device_files.for_device(info, str(tmp_path / "absent"))


def test_facts_in_force_belong_to_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    hopper, reference = device_files.load("nvidia/hopper"), device_files.load("cpu/reference")
    monkeypatch.setattr(device_files, "_current", lambda: reference)
    device_files.set_in_force(hopper)
    seen: list[device_files.Facts] = []
    thread = threading.Thread(target=lambda: seen.append(device_files.in_force()))
    thread.start()
    thread.join()
    assert seen == [reference]
    assert device_files.in_force() is hopper
    device_files.set_in_force(None)
    assert device_files.in_force() is reference


def test_in_force_without_a_device_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_files, "_current", None)
    device_files.forget()
    with pytest.raises(MissingFact, match="set_in_force"):
        device_files.in_force()
