"""From a kernel and its arguments to a launch: specialise, compile once, prepare, launch, record.

A `Plan` says what one operator call does for given specs: the outputs it allocates and the steps it launches. `routine`
turns it into a Python function generated for exactly that plan, which allocates and launches and does nothing else.
Whoever wants to see launches sets a recorder; a `Launch` is built only then."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from nbxtensor.backend import runtime
from nbxtensor.backend.contract import Artifact, Parameter, Variant
from nbxtensor.backend.kernel_source import Kernel, Scalar
from nbxtensor.dtype import DType, int64
from nbxtensor.errors import ArgumentError, DTypeError, IndexOutOfRange, LaunchRefused, ScalarOverflow
from nbxtensor.kernels.plan import Argument, Plan, Ref, Step
from nbxtensor.tensor import NBXTensor, Spec, Storage, empty_for, spec

_INT32 = range(-(1 << 31), 1 << 31)
_lock = threading.RLock()


_faults: dict[int, tuple[str, str, str]] = {}


def fault(where: str, argument: str, rule: str) -> int:
    """The code that a kernel writes to the status word when a value of ``argument`` breaks ``rule``: the same in every
    process, so that a recorded launch keeps its meaning."""
    code = zlib.crc32(f"{where}.{argument}".encode())
    _faults[code] = (where, argument, rule)
    return code


def _fault_error(code: int, value: int) -> IndexOutOfRange:
    where, argument, rule = _faults[code]
    return IndexOutOfRange(where, argument, value, rule)


runtime.fault_error = _fault_error


def _status(device: runtime.Device) -> NBXTensor:
    """The device's status word, made at its first use."""
    if device.status is None:
        with _lock:
            if device.status is None:
                word = empty_for(spec(device, int64, (2,)))
                device.context.fill(word.ptr, 0, word.nbytes, device.stream)
                device.status = word
    made: NBXTensor = device.status
    return made


class Pointer(NamedTuple):
    """A pointer argument as `specialise` sees it: Triton's type of it ("*fp16") and whether 16 divides the address."""

    type: str
    aligned: bool


class Prepared:
    """A kernel compiled and loaded on a device. `launch` repeats a recorded launch exactly."""

    __slots__ = ("device", "variant", "artifact", "loaded")

    def __init__(self, device: runtime.Device, variant: Variant, artifact: Artifact, loaded: Any):
        self.device, self.variant, self.artifact, self.loaded = device, variant, artifact, loaded

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.variant.kernel.name

    def launch(
        self,
        grid: tuple[int, int, int],
        params: tuple[tuple[str, int | float], ...],
        extents: tuple[tuple[int, int], ...] | None = None,
    ) -> None:
        """Launches with what a recorder was given: (Triton type, value) of every parameter, extents of the pointers."""
        if len(params) != len(self.artifact.parameters):
            raise LaunchRefused(self.name, f"{len(params)} values for {len(self.artifact.parameters)} parameters")
        bound: tuple[Any, ...] = ()
        if extents is not None:
            pointers = [value for type, value in params if type.startswith("*")]
            bound = tuple(_Recorded(int(ptr), extent) for ptr, extent in zip(pointers, extents))
        values = tuple(value for _, value in params)
        self.device.context.launch(self.loaded, grid, values, self.device.stream, bound)

    def __repr__(self) -> str:
        return f"Prepared({self.name} on {self.device.name})"


class _Recorded(NamedTuple):
    ptr: int
    extent: tuple[int, int]


Recorder = Callable[[Prepared, "tuple[int, int, int]", "tuple[tuple[str, Any], ...]", Any], None]
_recorders: dict[int, Recorder] = {}


def set_launch_recorder(recorder: Recorder | None) -> Recorder | None:
    """Reports every later launch of this thread as ``recorder(prepared, grid, params, extents)``; the one before it.

    ``params`` are (Triton type, value) of every parameter; ``extents`` the (address, bytes) of each pointer's
    allocation for a driver that binds by extent, else None. None ends it. The recorder is called after the launch was
    handed to the driver."""
    thread = threading.get_ident()
    before = _recorders.get(thread)
    if recorder is None:
        _recorders.pop(thread, None)
    else:
        _recorders[thread] = recorder
    return before


def prewarm_compiler() -> threading.Thread:
    """Imports Triton and computes its cache key in a daemon thread, so that the first compile does not wait for
    them."""
    from nbxtensor.backend import compiler

    thread = threading.Thread(target=compiler.prewarm, name="nbxtensor-prewarm", daemon=True)
    thread.start()
    return thread


def bind_target(target: Any) -> runtime.Device:
    """A device that compiles every kernel for ``target`` (a ``GPUTarget``) and launches nothing: kernels for a card
    that this machine need not have. Its tensors have no memory."""
    from nbxtensor.backend import meta

    return runtime.Device(meta.for_target(target))


def specialise(
    kernel: Kernel, arguments: Mapping[str, Any], options: Iterable[tuple[str, Hashable]] = ()
) -> tuple[Variant, tuple[Any, ...]]:
    """The variant that serves the arguments, and one value per entry of its ``parameters``.

    A pointer is given as a `Pointer`, a number of the call as a `Ref` of kind "value"; both stand in the values as they
    are given. An "int" equal to 1 is folded, divisibility by 16 becomes an attribute, as Triton's own binder does.
    """
    parameters: list[Parameter] = []
    constants: list[tuple[str, Hashable]] = []
    attributes: list[tuple[str, str, int]] = []
    values: list[Any] = []

    def integer(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise LaunchRefused(kernel.name, f"{name}={value!r}: must be an integer")
        folded = value == 1
        type = "i32" if value in _INT32 else "i64" if -(1 << 63) <= value < 1 << 63 else "u64"
        if not 0 - (1 << 63) <= value < 1 << 64:
            raise LaunchRefused(kernel.name, f"{name}={value}: does not fit in 64 bits")
        parameters.append(Parameter(name, type, not folded))
        if not folded and value % 16 == 0:
            attributes.append((name, "tt.divisibility", 16))
        values.append(value)

    def pointer(name: str, value: Pointer) -> None:
        parameters.append(Parameter(name, value.type, True))
        if value.aligned:
            attributes.append((name, "tt.divisibility", 16))
        values.append(value)

    def number(name: str, type: str, value: Any) -> None:
        parameters.append(Parameter(name, type, True))
        values.append(value)

    unknown = sorted(set(arguments) ^ set(kernel.parameters))
    if unknown:
        raise LaunchRefused(kernel.name, f"arguments {unknown} are missing or not parameters of the kernel")
    for name, kind in kernel.parameters.items():
        value = arguments[name]
        if isinstance(value, Pointer) and kind in ("ptr", "operand"):
            pointer(name, value)
        elif kind == "const" or (value is None and kind in ("operand", "ptr", "ints")):
            constants.append((name, value))
        elif kind == "operand" and isinstance(value, Scalar):
            number(name, value.type, value.value)
        elif kind == "operand" and isinstance(value, Ref) and value.type:
            number(name, value.type, value)
        elif kind == "int":
            integer(name, value)
        elif kind == "ints" and isinstance(value, tuple):
            for i, element in enumerate(value):
                integer(f"{name}.{i}", element)
        elif kind in ("i32", "i64", "u64", "fp32", "fp64", "u1"):
            number(name, kind, value)
        else:
            raise LaunchRefused(kernel.name, f"{name}={value!r}: not what a parameter of kind {kind!r} takes")
    variant = Variant(kernel, tuple(parameters), tuple(constants), tuple(attributes), tuple(sorted(options)))
    return variant, tuple(values)


def prepare(device: runtime.Device, variant: Variant) -> Prepared:
    """Compiles and loads a variant, once per device."""
    found = device.prepared.get(variant)
    if found is None:
        with _lock:
            found = device.prepared.get(variant)
            if found is None:
                artifact = device.context.compile(variant)
                found = Prepared(device, variant, artifact, device.context.load(artifact))
                device.prepared[variant] = found
    return found


def routine(plan: Plan, device: runtime.Device, inputs: tuple[Any, ...], aligned: bool) -> Callable[..., Any]:
    """The generated function of a plan: takes the call's operands in order (tensors, None or numbers, as in ``inputs``,
    where a tensor stands as its `Spec`), allocates the outputs, launches the steps and returns the result.

    ``aligned``: 16 divides the address of every tensor operand.
    """
    return _Generator(plan, device, inputs, aligned).function()


class _Generator:
    """Writes the source of a routine; what it refers to stands in ``names``."""

    def __init__(self, plan: Plan, device: runtime.Device, inputs: tuple[Any, ...], aligned: bool):
        self.plan, self.device, self.inputs, self.aligned = plan, device, inputs, aligned
        self.names: dict[str, Any] = {
            "new": NBXTensor.__new__,
            "Tensor": NBXTensor,
            "new_storage": Storage.__new__,
            "Storage": Storage,
            "device": device,
            "grow": device.pool.grow,
            "launch": device.context.launch,
            "recorders": _recorders,
            "report": _report,
            "refuse_write": _refuse_write,
            "refuse_range": _refuse_range,
        }
        self.lines: list[str] = []

    def function(self) -> Callable[..., Any]:
        plan = self.plan
        for i in plan.written:
            self.lines.append(f"if x{i}.storage.readonly: refuse_write(x{i})")
        for i, limits in plan.ranges.items():
            self.names[f"range{i}"] = limits
            self.lines.append(f"if not {limits[0]} <= x{i} <= {limits[1]}: refuse_range({plan.name!r}, x{i}, range{i})")
        for i, view in enumerate(plan.outputs):
            self._allocate(f"o{i}", view)
        for i, view in enumerate(plan.work):
            self._allocate(f"w{i}", view)
        for i, step in enumerate(plan.steps):
            if 0 not in step.grid:
                self._step(i, step)
        result = plan.result if plan.result is not None else [Ref("out", i) for i in range(len(plan.outputs))]
        returned = ", ".join(self._tensor(ref) for ref in result)
        self.lines.append(f"return {returned}" if len(result) == 1 else f"return ({returned})")
        operands = ", ".join(f"x{i}" for i in range(len(self.inputs)))
        source = f"def run({operands}):\n    " + "\n    ".join(self.lines)
        exec(compile(source, "<nbxtensor routine>", "exec"), self.names)
        run: Callable[..., Any] = self.names["run"]
        return run

    def _allocate(self, name: str, view: Spec) -> None:
        self.names[f"{name}_bin"], self.names[f"{name}_spec"] = self.device.pool.bin(view.nbytes), view
        self.lines += [
            f"try: {name}_p = {name}_bin.pop()",
            f"except IndexError: {name}_p = grow({name}_bin)",
            f"{name}_s = new_storage(Storage)",
            f"{name}_s.device = device; {name}_s.address = {name}_p; {name}_s.bin = {name}_bin",
            f"{name} = new(Tensor); {name}.ptr = {name}_p; {name}.spec = {name}_spec; {name}.storage = {name}_s",
        ]

    def _step(self, index: int, step: Step) -> None:
        arguments = {name: self._argument(value) for name, value in step.arguments.items()}
        variant, values = specialise(step.kernel, arguments, step.options)
        prepared = prepare(self.device, variant)
        limits = self.device.context.capabilities.max_grid
        if any(n > limit for n, limit in zip(step.grid, limits)):
            raise LaunchRefused(step.kernel.name, f"grid {step.grid} is past the device's limits {limits}")
        self.names[f"loaded{index}"], self.names[f"prepared{index}"] = prepared.loaded, prepared
        self.names[f"grid{index}"] = step.grid
        ordered = (step.arguments[name] for name in step.kernel.parameters)
        refs = iter([value for value in ordered if isinstance(value, Ref) and value.kind != "value"])
        pointers, texts = [], []
        for value in values:
            if isinstance(value, Pointer):
                ref = next(refs)
                if ref.kind == "status":
                    self.names["status"] = _status(self.device)
                    self.lines.append("device.suspect = True")
                pointers.append(self._tensor(ref))
                texts.append(f"{pointers[-1]}_p" if ref.kind in ("out", "work") else f"{pointers[-1]}.ptr")
            elif isinstance(value, Ref):
                texts.append(f"x{value.number}")
            else:
                name = f"c{index}_{len(texts)}"
                self.names[name] = value
                texts.append(name if isinstance(value, float) else repr(value))
        by_extent = self.device.context.capabilities.binds_by_extent
        bound = f"({', '.join(pointers)},)" if by_extent and pointers else "()"
        values_text = f"({', '.join(texts)},)" if texts else "()"
        self.lines += [
            f"launch(loaded{index}, grid{index}, {values_text}, device.stream, {bound})",
            f"if recorders: report(prepared{index}, grid{index}, {values_text}, {bound})",
        ]

    def _argument(self, value: Argument) -> Any:
        if not isinstance(value, Ref) or value.kind == "value":
            return value
        dtype = self._spec(value).dtype
        if dtype.triton is None:
            raise DTypeError("launch", "dtype", dtype, "kernels have no such element type")
        return Pointer("*" + dtype.triton, self.aligned or value.kind != "in")

    def _spec(self, ref: Ref) -> Spec:
        if ref.kind == "status":
            return _status(self.device).spec
        source = {"in": self.inputs, "out": self.plan.outputs, "work": self.plan.work}[ref.kind]
        return source[ref.number]  # type: ignore[no-any-return]

    @staticmethod
    def _tensor(ref: Ref) -> str:
        if ref.kind == "status":
            return "status"
        return {"in": "x", "out": "o", "work": "w"}[ref.kind] + str(ref.number)


def _report(prepared: Prepared, grid: tuple[int, int, int], values: tuple[Any, ...], tensors: tuple[Any, ...]) -> None:
    recorder = _recorders.get(threading.get_ident())
    if recorder is not None:
        params = tuple((p.type, value) for p, value in zip(prepared.artifact.parameters, values))
        extents = tuple(t.extent for t in tensors) if prepared.device.context.capabilities.binds_by_extent else None
        recorder(prepared, grid, params, extents)


def _refuse_write(tensor: NBXTensor) -> None:
    raise ArgumentError(
        "write", "target", f"tensor of shape {tensor.shape}", "is read-only, as the array that owns its memory"
    )


def _refuse_range(where: str, value: Any, limits: tuple[int, int, DType]) -> None:
    raise ScalarOverflow(where, "scalar", value, f"must lie in {limits[0]}..{limits[1]}, the range of {limits[2]}")
