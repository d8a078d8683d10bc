"""Which device: strings, the default, refusals, threads; devices open and close."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.backend import install_help, pci, registry, runtime
from nbxtensor.conformance import null
from nbxtensor.errors import ArgumentError, DeviceError, Unavailable


@pytest.fixture(autouse=True)
def own_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test chooses its own default device."""
    monkeypatch.delenv(runtime.DEVICE_VARIABLE, raising=False)
    monkeypatch.setattr(runtime, "_local", threading.local())
    yield


def gpu(supported: bool = True) -> pci.PciGpu:
    found = [candidate for candidate in (pci.PciGpu(*_fields(supported)),) if candidate.supported is supported]
    assert found
    return found[0]


def _fields(supported: bool) -> tuple[Any, ...]:
    values: dict[str, Any] = {
        "address": "0000:01:00.0",
        "vendor": "nvidia",
        "device_id": 0x2335 if supported else 0x1B80,
        "class_code": 0x030200,
        "kernel_driver": "nvidia",
    }
    return tuple(values.get(name) for name in pci.PciGpu._fields)


@pytest.mark.parametrize("name", ["cpu", "reference", "cpu:0"])
def test_the_cpu_is_the_reference_drivers(name: str) -> None:
    device = runtime.device(name)
    assert device == "cpu" and device.driver.name == "reference"
    assert runtime.device(device) is device and runtime.device("cpu") is device


@pytest.mark.parametrize("name", ["", " cpu", "cpu:x", "cpu:-1", "cpu:1", "CPU", "gpu", "cuda:1:2", 3])
def test_a_string_that_names_no_device_is_refused(name: Any) -> None:
    with pytest.raises(ArgumentError, match=r"name|device"):
        runtime.device(name)


def test_without_a_gpu_the_default_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pci, "gpus", lambda *_: [])
    monkeypatch.setattr(runtime, "_best_gpu", lambda: None)
    assert runtime.default_device() == "cpu"
    assert nbx.ones((2,)).device == "cpu"


def test_a_gpu_that_nothing_opens_is_a_refusal_with_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pci, "gpus", lambda *_: [gpu()])
    monkeypatch.setattr(runtime, "_best_gpu", lambda: None)
    with pytest.raises(Unavailable) as caught:
        nbx.ones((2,))
    assert 'device="cpu"' in str(caught.value) and caught.value.reason in ("no library", "no device")
    assert nbx.ones((2,), device="cpu").device == "cpu"  # asked for, it is taken


def test_a_gpu_too_old_for_any_driver_does_not_take_the_cpu_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pci, "gpus", lambda *_: [gpu(supported=False)])
    monkeypatch.setattr(runtime, "_best_gpu", lambda: None)
    assert runtime.default_device() == "cpu"


def test_the_environment_may_name_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(runtime.DEVICE_VARIABLE, "meta")
    assert runtime.default_device() == "meta"
    monkeypatch.setattr(runtime, "_local", threading.local())
    monkeypatch.setenv(runtime.DEVICE_VARIABLE, "nothing")
    with pytest.raises(ArgumentError, match="nothing"):
        runtime.default_device()


def test_gpu_backend_never_names_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_best_gpu", lambda: None)
    monkeypatch.setattr(install_help, "refusal", lambda *_: None)
    with runtime.use_device("cpu"), pytest.raises(Unavailable, match="no GPU"):
        runtime.gpu_backend()


def test_the_current_device_is_the_threads_own() -> None:
    seen: list[str] = []
    with runtime.use_device("meta"):
        assert nbx.empty((1,)).device == "meta"
        thread = threading.Thread(target=lambda: seen.append(str(runtime.device("cpu"))))
        thread.start()
        thread.join()
        with runtime.use_device("cpu"):
            assert runtime.current_device() == "cpu"
        assert runtime.current_device() == "meta"
    assert seen == ["cpu"]


def test_use_device_ends_with_its_block_also_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), runtime.use_device("meta"):
        raise ZeroDivisionError
    assert getattr(runtime._local, "device", None) is None


def test_set_device_follows_a_tensor() -> None:
    runtime.set_device(nbx.empty((1,), device="meta"))
    assert runtime.current_device() == "meta" and runtime.device_memory() is runtime.device("meta").context


def test_operands_of_two_devices_are_refused_by_name() -> None:
    a, b = nbx.ones((2,), device="cpu"), nbx.empty((2,), device="meta")
    with pytest.raises(ArgumentError, match=r"add: b='tensor on meta': must be on cpu"):
        a + b


def test_a_closed_device_is_refused() -> None:
    device = runtime.Device(null.NullDriver())
    x = nbx.empty((2,), device=device)
    device.close()
    device.close()
    for use in (lambda: nbx.empty((2,), device=device), lambda: x.numpy(), lambda: x + x):
        with pytest.raises(DeviceError, match="closed"):
            use()


def test_all_that_a_device_held_goes_with_it() -> None:
    driver = null.NullDriver()
    device = runtime.Device(driver)
    kept = nbx.from_numpy(np.ones(1000), device)
    context: Any = device.context
    device.close()
    assert not any(context.live())
    del kept


def test_the_table_of_backends_names_distributions() -> None:
    table = runtime.backend_table()
    assert table["reference"].startswith("nbxtensor-core") and set(table) >= {
        "cpu",
        "cuda",
        "hip",
        "metal",
        "xpu",
        "meta",
    }


def test_a_refusal_is_new_each_time_and_keeps_no_frames() -> None:
    entry = registry.by_name("hip")[0]
    kept = registry.probe(entry)
    assert isinstance(kept, Unavailable) and kept.__traceback__ is None
    for _ in range(2):
        with pytest.raises(Unavailable) as caught:
            runtime.device("hip")
        assert caught.value is not kept and str(caught.value) == str(kept)
    assert kept.__traceback__ is None


def test_devices_compare_with_their_names() -> None:
    device = runtime.device("cpu")
    assert device == "cpu" and device != "cuda:0" and str(device) == "cpu" and hash(device) == hash("cpu")
