"""Finding and starting the CUDA driver: how it is missing, wrong or unwilling, each in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from nbxtensor.backend.cuda import ffi, library
from standins.cuda import build
from standins.cuda.processes import run

PROBE = """
import json
from nbxtensor.backend.cuda import driver, library
from nbxtensor.errors import Unavailable
try:
    found = [info._asdict() for info in driver.probe()]
    print(json.dumps({"devices": found, "path": library.load().path, "version": library.load().version}))
except Unavailable as refusal:
    print(json.dumps({"reason": refusal.reason, "detail": refusal.detail, "fix": refusal.fix}))
"""


def probe(path: Path | None = None, **environment: str) -> Any:
    if path is not None:
        environment[library.VARIABLE] = str(path)
    return json.loads(run(PROBE, environment))


@pytest.fixture(scope="module")
def standin() -> Path:
    return build.standin()


# Where it is found


def test_nothing_is_opened_at_import(standin: Path) -> None:
    code = """
import sys
import nbxtensor.backend.cuda
maps = open("/proc/self/maps").read()
print("libcuda" in maps, sorted({"cffi", "_cffi_backend", "triton", "torch", "yaml"} & set(sys.modules)))
"""
    assert run(code, {library.VARIABLE: str(standin)}).strip() == "False []"


def test_the_variable_names_it(standin: Path) -> None:
    found = probe(standin)
    assert found["path"] == str(standin)
    assert found["version"] == 13000


def test_the_dynamic_linker_finds_it(standin: Path) -> None:
    assert probe(LD_LIBRARY_PATH=f"/nowhere:{standin.parent}")["path"] == str(standin)


def test_the_path_is_the_file_that_is_mapped(standin: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(standin)
    assert probe(tmp_path / "alias")["path"] == str(standin)


def test_neither_subprocess_nor_ldconfig_is_needed(standin: Path) -> None:
    code = "import os, subprocess\nsubprocess.Popen = os.system = os.popen = None\n" + PROBE
    assert json.loads(run(code, {"LD_LIBRARY_PATH": str(standin.parent), "PATH": "/nowhere"}))["path"] == str(standin)


def test_a_stub_is_skipped_for_the_driver_behind_it(standin: Path) -> None:
    stub = build.stub()
    assert probe(LD_LIBRARY_PATH=f"{stub.parent}:{standin.parent}")["path"] == str(standin)


def test_a_stub_alone_is_named() -> None:
    stub = build.stub()
    refusal = probe(LD_LIBRARY_PATH=str(stub.parent))
    assert refusal["reason"] == "no library"
    assert f"{stub}: a stub" in refusal["detail"]
    assert "remove the toolkit's stubs directory" in refusal["fix"]


def test_every_path_that_was_tried_is_told(tmp_path: Path) -> None:
    refusal = probe(tmp_path / "missing.so")
    assert refusal["reason"] == "no library"
    assert str(tmp_path / "missing.so") in refusal["detail"]
    assert "No such file" in refusal["detail"]
    assert library.VARIABLE in refusal["fix"]


def test_a_file_that_is_no_library_is_told(tmp_path: Path) -> None:
    (tmp_path / library.SONAME).write_text("not ELF")
    refusal = probe(LD_LIBRARY_PATH=str(tmp_path))
    assert refusal["reason"] == "no library"
    assert library.SONAME in refusal["detail"]
    assert "invalid ELF header" in refusal["detail"] or "file too short" in refusal["detail"]


def test_wsl_comes_first_on_wsl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(library.VARIABLE, raising=False)
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/dev/dxg" or exists(path))
    assert list(library.candidates())[:2] == ["/usr/lib/wsl/lib/libcuda.so.1", "libcuda.so.1"]
    monkeypatch.setattr(os.path, "exists", lambda path: path != "/dev/dxg" and exists(path))
    assert next(library.candidates()) == "libcuda.so.1"


def test_odd_search_paths_are_harmless(standin: Path) -> None:
    assert probe(LD_LIBRARY_PATH=f":relative::http://x.y/z\n:{standin.parent}")["path"] == str(standin)


# What it answers


@pytest.mark.parametrize(
    ("code", "reason", "text", "fix"),
    [
        (100, "no device", "CUDA_ERROR_NO_DEVICE (100): the driver shows no GPU", "nvidia-smi -L"),
        (803, "broken", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): the library and the loaded kernel module", "reboot"),
        (999, "broken", "CUDA_ERROR_UNKNOWN (999)", "nvidia_uvm"),
        (3, "broken", "CUDA_ERROR_NOT_INITIALIZED (3): the library refused to start", "nvidia-smi"),
        (802, "broken", "the fabric manager must run", "nvidia-fabricmanager"),
        (804, "driver too old", "the forward-compatibility library", "cuda-compat"),
        (46, "no permission", "in use by another process", "nvidia-smi"),
        (777, "broken", "unknown error (777): the driver could not start", "nvidia-smi"),
    ],
)
def test_each_failure_to_start_has_its_text_and_its_fix(
    standin: Path, code: int, reason: str, text: str, fix: str
) -> None:
    refusal = probe(standin, STANDIN_INIT=str(code))
    assert refusal["reason"] == reason
    assert text in refusal["detail"] and str(standin) in refusal["detail"]
    assert fix in refusal["fix"]


def test_texts_and_fixes_differ(standin: Path) -> None:
    refusals = [probe(standin, STANDIN_INIT=str(code)) for code in (100, 803, 999, 3)]
    assert len({refusal["detail"] for refusal in refusals}) == len({refusal["fix"] for refusal in refusals}) == 4


def test_closed_device_nodes_are_a_question_of_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    from nbxtensor.backend.cuda import errors

    monkeypatch.setattr(os.path, "exists", lambda path: path == "/dev/nvidiactl")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for code in (ffi.CUDA_ERROR_NO_DEVICE, ffi.CUDA_ERROR_UNKNOWN):
        refusal = errors.at_start(code, "NAME", "/lib/libcuda.so.1")
        assert (refusal.reason, "/dev/nvidiactl cannot be opened" in refusal.detail) == ("no permission", True)
    assert errors.at_start(ffi.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "NAME", "p").reason == "broken"


def test_an_old_driver_is_refused_with_both_versions(standin: Path) -> None:
    refusal = probe(standin, STANDIN_VERSION="11040")
    assert refusal["reason"] == "driver too old"
    assert "CUDA 11.4" in refusal["detail"] and "12.0" in refusal["detail"]
    assert probe(standin, STANDIN_VERSION="12000")["version"] == 12000


def test_a_driver_without_devices_says_so(standin: Path) -> None:
    refusal = probe(standin, STANDIN_DEVICES="0")
    assert refusal["reason"] == "no device"


@pytest.mark.parametrize("value", ["GPU-52a3", "MIG-377e", "2,-1", "0,0", " 0", "0,9", "abc\n", "9" * 400])
def test_the_list_of_visible_devices_is_never_parsed(standin: Path, value: str) -> None:
    assert len(probe(standin, CUDA_VISIBLE_DEVICES=value)["devices"]) == 1


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_devices_are_no_device(standin: Path, value: str) -> None:
    assert probe(standin, CUDA_VISIBLE_DEVICES=value)["reason"] == "no device"


def test_devices_are_described(standin: Path) -> None:
    first, second = probe(standin, STANDIN_DEVICES="2")["devices"]
    assert first == {
        "ordinal": 0,
        "name": "Stand-in GPU 0",
        "architecture": "sm_90",
        "memory_bytes": 1 << 30,
        "pci_id": "0000:1a:00.0",
        "uuid": "GPU-13ee0800-0d00-0102-0304-050607080000",
        "profile": "nvidia/hopper",
    }
    assert (second["ordinal"], second["pci_id"]) == (1, "0000:1b:00.0")
    assert second["uuid"] == "GPU-13ee0800-0d00-0102-0304-050607080001"


def test_a_device_without_a_device_file_has_no_profile(standin: Path) -> None:
    (info,) = probe(standin, STANDIN_ARCH="39")["devices"]
    assert (info["architecture"], info["profile"]) == ("sm_39", None)


def test_without_triton_there_is_no_backend(standin: Path) -> None:
    code = "import importlib.util\nimportlib.util.find_spec = lambda name: None\n" + PROBE
    refusal = json.loads(run(code, {library.VARIABLE: str(standin)}))
    assert (refusal["reason"], refusal["fix"]) == ("no Triton backend", "pip install 'triton>=3.6'")


# What it lacks


@pytest.mark.parametrize("name", ["cuInit", "cuLaunchKernel", "cuMemAlloc_v2", "cuStreamWaitEvent", "cuGetErrorName"])
def test_a_missing_required_function_is_named(name: str) -> None:
    path = build.standin(without=(name,))
    refusal = probe(path)
    assert refusal["reason"] == "driver too old"
    assert f"{path} has no symbol '{name}'" in refusal["detail"]
    code = """
from nbxtensor.backend.cuda import library
from nbxtensor.errors import MissingSymbol
try: library.load()
except MissingSymbol as error: print(error.name)
"""
    assert run(code, {library.VARIABLE: str(path)}).strip() == name


@pytest.mark.parametrize("feature", sorted(ffi.OPTIONAL))
def test_a_missing_optional_feature_has_its_consequence(feature: str) -> None:
    """A context opens, works, and states or refuses what it cannot do."""
    names = library._FUNCTION.findall(ffi.OPTIONAL[feature].declarations)
    code = f"""
import json
import numpy as np
from standins.cuda.subject import driver, prepare
from nbxtensor.backend.cuda import library
from nbxtensor.conformance import variants
from nbxtensor.errors import LaunchRefused, MissingSymbol
standin = prepare(without={tuple(names)!r})
(info,) = driver.probe()
context = driver.open(0)
address, host = context.allocate(64), np.arange(64, dtype=np.uint8)
context.copy_in(address, host.ctypes.data, 64)
out = np.zeros_like(host)
context.copy_out(out.ctypes.data, address, 64)
assert (out == host).all()
types = {{"to": "*i32", "value": "i32"}}
plain = variants.variant(variants.STORE_VALUE, types)
context.launch(context.load(context.compile(plain)), (1, 1, 1), (address, 77), None, ())
context.copy_out(out.ctypes.data, address, 4)
try:
    context.load(context.compile(variants.variant(variants.STORE_VALUE, types, num_ctas=2)))
    clusters = True
except LaunchRefused as refusal:
    clusters = "cuLaunchKernelEx" not in str(refusal)
try:
    context.enable_peer(context)
    peers = True
except MissingSymbol:
    peers = False
capabilities = context.capabilities
print(json.dumps({{
    "word": int(out.view(np.int32)[0]), "uuid": info.uuid, "graphs": capabilities.graph_capture, "clusters": clusters,
    "cooperative": capabilities.cooperative, "peers": peers, "ordered": standin.calls("cuMemAllocAsync") > 0,
}}))
context.close()
"""
    found = json.loads(run(code))
    lost = {
        "stream-ordered memory": {"ordered"},
        "slice UUIDs": set(),
        "launch attributes": {"clusters", "cooperative"},
        "tensor maps": set(),
        "graphs": {"graphs"},
        "peers": {"peers"},
    }[feature]
    assert found.pop("word") == 77
    assert found.pop("uuid") == "GPU-13ee0800-0d00-0102-0304-050607080000"
    assert {name for name, has in found.items() if not has} == lost


# Processes


def test_a_fork_after_the_start_is_told(standin: Path) -> None:
    code = """
import os, sys
from nbxtensor.backend.cuda import driver
from nbxtensor.errors import NBXError
context = driver.open(0)
read, write = os.pipe()
if os.fork() == 0:
    said = []
    for call in (driver.probe, lambda: driver.open(0), lambda: context.allocate(64), context.synchronize):
        try: call(); said.append("nothing")
        except NBXError as error: said.append("forked" if "before it forked" in str(error) else repr(error))
    context.close()
    os.write(write, " ".join(said).encode())
    os._exit(0)
os.wait()
print(os.read(read, 1000).decode())
context.free(context.allocate(64))
context.close()
"""
    assert run(code, {library.VARIABLE: str(standin)}).strip() == "forked forked forked forked"


def test_a_fork_before_the_start_is_no_matter(standin: Path) -> None:
    code = """
import multiprocessing
from nbxtensor.backend.cuda import driver
def count(_): return len(driver.probe())
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool: print(pool.map(count, range(4)), count(0))
"""
    assert run(code, {library.VARIABLE: str(standin)}).strip() == "[1, 1, 1, 1] 1"


def test_a_start_that_failed_is_not_blamed_on_a_fork(standin: Path) -> None:
    code = """
import os
from nbxtensor.backend.cuda import driver
from nbxtensor.errors import Unavailable
for _ in range(2):
    try: driver.probe()
    except Unavailable as error: said = error.detail
    if os.fork(): os.wait(); os._exit(0)
print(said, flush=True)
"""
    said = run(code, {library.VARIABLE: str(standin), "STANDIN_INIT": "3"})
    assert "refused to start" in said and "fork" not in said


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_that_is_gone_at_exit_is_no_error(standin: Path, when: str) -> None:
    """The driver's own exit handlers may run before Python's; what is left of contexts is let go in silence."""
    code = f"""
import atexit, ctypes
gone = ctypes.CDLL({str(standin)!r}).standin_go_away
if {when!r} == "after": atexit.register(gone)
from nbxtensor.backend.cuda import driver
context = driver.open(0)
context.allocate(64)
atexit.register(context.close)
if {when!r} == "before": atexit.register(gone)
class Late:
    def __del__(self): context.close()
late = Late()
"""
    assert run(code, {library.VARIABLE: str(standin)}) == ""


def test_the_build_needs_no_python_header() -> None:
    """cffi's ABI mode: a machine without a C compiler runs the driver; only this stand-in is compiled."""
    sources = [path.read_text("utf-8") for path in Path(ffi.__file__).parent.glob("*.py")]
    assert not any("set_source(" in text and ", None)" not in text for text in sources)
    assert shutil.which("gcc") is not None
