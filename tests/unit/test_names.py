"""The dotted names that release 0.0.2 promises: they import, or they are in the list of what is to come."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

import nbxtensor

HERE = (
    "nbxtensor.__version__",
    "nbxtensor.Tensor",
    "nbxtensor.from_numpy",
    "nbxtensor.from_dlpack",
    "nbxtensor.dtype.DTYPES",
    "nbxtensor.dtype.dtype",
    "nbxtensor.dtype.convert",
    "nbxtensor.dtype.float16",
    "nbxtensor.dtype.bfloat16",
    "nbxtensor.shape.view_strides",
    "nbxtensor.shape.broadcast_shapes",
    "nbxtensor.tensor.NBXTensor",
    "nbxtensor.tensor.NBXTensor.numpy",
    "nbxtensor.tensor.NBXTensor.shape",
    "nbxtensor.tensor.NBXTensor.__dlpack__",
    "nbxtensor.tensor.NBXTensor.__dlpack_device__",
    "nbxtensor.tensor.from_numpy",
    "nbxtensor.dlpack.from_dlpack",
    "nbxtensor.ops.linalg_wrappers.mm",
    "nbxtensor.__main__.main",
    "nbxtensor.backend.runtime.gpu_backend",
    "nbxtensor.backend.runtime.gpu_runtime",
    "nbxtensor.backend.runtime.backend_table",
    "nbxtensor.backend.runtime.device_memory",
    "nbxtensor.backend.runtime.set_device",
    "nbxtensor.backend.launcher.prewarm_compiler",
    "nbxtensor.backend.launcher.bind_target",
    "nbxtensor.backend.launcher.set_launch_recorder",
    "nbxtensor.backend.device_files.in_force",
    "nbxtensor.backend.device_files.for_arch",
    "nbxtensor.backend.device_files.forget",
    "nbxtensor.backend.install_help.refusal",
    "nbxtensor.backend.cpu.pool.convert",
    "nbxtensor.backend.cuda.driver.CudaDriver",
    "nbxtensor.conformance",
)

# By the capability that brings them. When one comes it leaves this list, or the test says so.
TO_COME = {
    "programs: trace, plan, capture, replay": (
        "nbxtensor.memory.planner",
        "nbxtensor.memory.pointer_tables",
        "nbxtensor.program",
    ),
    "certified tuning": ("nbxtensor.ops.certified_index", "nbxtensor.tuning", "nbxtensor.tuning.launch_keys"),
    "AMD GPUs": ("nbxtensor.backend.hip.driver",),
    "Intel GPUs": (
        "nbxtensor.backend.level_zero",
        "nbxtensor.backend.level_zero_driver",
        "nbxtensor.backend.xpu.driver",
    ),
    "Apple GPUs": ("nbxtensor.backend.metal.driver",),
    "the Array API": ("nbxtensor.array_api", "nbxtensor.interop.array_api"),
}


def find(name: str) -> Any:
    """The module or attribute of a dotted name."""
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            continue
        for part in parts[split:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"no part of {name} imports")


@pytest.mark.parametrize("name", HERE)
def test_a_promised_name_imports(name: str) -> None:
    assert find(name) is not None


@pytest.mark.parametrize("name", [name for names in TO_COME.values() for name in names])
def test_a_name_to_come_is_not_there_yet(name: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)


def test_the_first_example_of_the_published_readme() -> None:
    from nbxtensor.ops.linalg_wrappers import mm
    from nbxtensor.tensor import NBXTensor

    assert mm is nbxtensor.mm and NBXTensor is nbxtensor.Tensor


def test_the_recorder_takes_what_it_took() -> None:
    from nbxtensor.backend import launcher

    assert list(inspect.signature(launcher.Prepared.launch).parameters) == ["self", "grid", "params", "extents"]


def test_versions_have_no_labels() -> None:
    assert all(part.isdigit() for part in nbxtensor.__version__.split("."))
