"""Tensor descriptors made on the host, as the stand-in receives them."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from nbxtensor.backend.contract import TensorDescriptor, Variant
from nbxtensor.backend.cuda import CudaContext
from nbxtensor.backend.kernel_source import Kernel
from nbxtensor.conformance.variants import variant
from nbxtensor.errors import LaunchRefused
from standins.cuda.execute import Standin
from standins.cuda.subject import driver

ONE = (1, 1, 1)


def move_tile(element: str) -> Variant:
    type = f"tensordesc<{element}[16, 32]>"
    declared = Kernel("standins.cuda.kernels", "move_tile", {"to": "ptr", "source": "ptr", "value": "fp32"})
    return variant(declared, {"to": type, "source": type, "value": "fp32"})


def read_as(type: Any, address: int) -> Any:
    return type.from_address(address).value


@pytest.mark.parametrize(("element", "host_type"), [("fp16", 6), ("fp32", 7), ("bf16", 9)])
def test_descriptors_become_tensor_maps(context: CudaContext, standin: Standin, element: str, host_type: int) -> None:
    """The stand-in's tensor map states what it was made from: address, type, rank, swizzle, sizes, strides, box."""
    artifact = context.compile(move_tile(element))
    size, seen = 4 if element == "fp32" else 2, []

    def run(parameters: list[int]) -> None:
        assert len(parameters) == 2 * 5 + 3
        for first in (0, 5):
            words = [read_as(ctypes.c_uint64, parameters[first] + 8 * i) for i in range(16)]
            rest = [ctypes.c_int32, ctypes.c_int32, ctypes.c_int64, ctypes.c_int64]
            seen.append((words, [read_as(t, p) for t, p in zip(rest, parameters[first + 1 : first + 5], strict=True)]))
        assert read_as(ctypes.c_float, parameters[10]) == 2.5

    standin.teach(artifact, run)
    kernel = context.load(artifact)
    address = context.allocate(1 << 16)
    to = TensorDescriptor(address, (100, 64), (128, 1))
    source = TensorDescriptor(address + 512, (60, 40), (48, 1), nan=True)
    for _ in range(2):
        context.launch(kernel, ONE, (to, source, 2.5), None, ())
    context.synchronize()
    assert standin.calls("cuTensorMapEncodeTiled") and len(seen) == 4 and seen[:2] == seen[2:]
    meta = artifact.metadata["tensordesc_meta"]
    for (words, rest), value, described in zip(seen[:2], (to, source), meta, strict=True):
        kind = host_type | 2 << 8 | described["swizzle"] << 16 | value.nan << 24
        assert words[:2] == [value.address, kind]
        assert words[2:4] == [value.shape[1], value.shape[0]]
        assert words[7] == value.strides[0] * size
        assert words[11] == 32 | 16 << 32
        assert rest == [*value.shape, *value.strides]


def test_before_sm_90_a_descriptor_is_taken_apart(
    context: CudaContext, standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_ARCH", "80")
    older = driver.open(0)
    artifact, seen = older.compile(move_tile("fp16")), []
    flags = 2 if artifact.metadata["triton_version"] >= "3.8" else 1
    byte, word, long = ctypes.c_uint8, ctypes.c_int32, ctypes.c_int64
    words = [ctypes.c_uint64, *[long] * 4, *[byte] * flags, *[word] * 2, *[long] * 2]

    def run(parameters: list[int]) -> None:
        seen.append([read_as(type, parameter) for type, parameter in zip(words, parameters[: len(words)], strict=True)])

    standin.teach(artifact, run)
    descriptor = TensorDescriptor(older.allocate(4096), (16, 32), (64, 1), nan=True)
    older.launch(older.load(artifact), ONE, (descriptor, descriptor, 1.0), None, ())
    older.synchronize()
    assert seen == [[descriptor.address, 16, 32, 64, 1, 1, *[0] * (flags - 1), 16, 32, 64, 1]]
    older.close()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (4096, "must be a TensorDescriptor"),
        ([1], "must be a TensorDescriptor"),
        (TensorDescriptor(4096, (16,), (1,)), "of 2 dimensions"),
        (TensorDescriptor(4096, (16, 32), (1, 16)), "the last must be 1"),
        (TensorDescriptor(4098, (16, 32), (32, 1)), "multiples of 16"),
        (TensorDescriptor(4096, (16, 32), (33, 1)), "multiples of 16"),
        (TensorDescriptor(4096, (0, 32), (32, 1)), "no size 0"),
    ],
)
def test_a_tensor_that_no_map_describes_is_refused(context: CudaContext, wrong: Any, text: str) -> None:
    kernel = context.load(context.compile(move_tile("fp16")))
    with pytest.raises(LaunchRefused, match=text):
        context.launch(kernel, ONE, (TensorDescriptor(4096, (16, 32), (32, 1)), wrong, 1.0), None, ())
