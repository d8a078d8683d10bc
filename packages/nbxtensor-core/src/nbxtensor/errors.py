"""Typed errors. Every message names the place, the argument, its value and the rule that it breaks."""

from __future__ import annotations

from typing import Any


class NBXError(Exception):
    """Base of every error that nbxtensor raises on purpose."""


class ArgumentError(NBXError, ValueError):
    """An argument breaks a rule.

    Attributes: ``where`` (the operator or function), ``argument`` (its name), ``value`` and ``rule``.
    """

    def __init__(self, where: str, argument: str, value: Any, rule: str):
        self.where, self.argument, self.value, self.rule = where, argument, value, rule
        super().__init__(f"{where}: {argument}={_short(value)}: {rule}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.where, self.argument, self.value, self.rule)


class ShapeError(ArgumentError):
    """A shape, stride, axis or view is not possible."""


class DTypeError(ArgumentError, TypeError):
    """A dtype is unknown, not accepted here, or has no common type with another."""


class IndexOutOfRange(ArgumentError, IndexError):
    """An index lies outside of its axis."""


class ScalarOverflow(ArgumentError, OverflowError):
    """A scalar lies outside of the range of the dtype that takes it."""


class FileFormatError(ArgumentError):
    """A file is truncated, corrupt or not of the format it claims."""


class MissingFact(ArgumentError, LookupError):
    """A device file does not state a fact that was asked for."""


class DeviceError(NBXError, RuntimeError):
    """Base of what a device, driver or compiler reports."""


class Unavailable(DeviceError):
    """A driver cannot serve any device here.

    ``reason`` is one of :data:`nbxtensor.backend.contract.REASONS`; ``detail`` says what was seen, ``fix`` what to do.
    """

    def __init__(self, reason: str, detail: str = "", fix: str = ""):
        self.reason, self.detail, self.fix = reason, detail, fix
        super().__init__(f"{reason}: {detail}" + (f"\n{fix}" if fix else "") if detail else reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.detail, self.fix)


class OutOfMemory(DeviceError, MemoryError):
    """An allocation failed. All sizes in bytes: ``requested``, ``free`` and ``total`` of the device, ``live`` (held by
    tensors), ``cached`` (held by the pool)."""

    def __init__(self, requested: int, free: int, total: int, live: int, cached: int = 0):
        self.requested, self.free, self.total, self.live, self.cached = requested, free, total, live, cached
        super().__init__(
            f"out of device memory: requested {requested} bytes; free {free} of {total}, {live} live, {cached} cached"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.requested, self.free, self.total, self.live, self.cached)


class DriverError(DeviceError):
    """A call into a vendor's library failed: ``call``, ``code``, ``name`` of the code and its ``text``."""

    def __init__(self, call: str, code: int, name: str, text: str):
        self.call, self.code, self.name, self.text = call, code, name, text
        super().__init__(f"{call} failed: {name} ({code}): {text}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.call, self.code, self.name, self.text)


class MissingSymbol(DeviceError):
    """A library lacks a function that the driver needs."""

    def __init__(self, name: str, library: str):
        self.name, self.library = name, library
        super().__init__(f"{library} has no symbol {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.library)


class LaunchRefused(DeviceError):
    """A kernel launch is impossible as asked: ``kernel`` and ``why``."""

    def __init__(self, kernel: str, why: str):
        self.kernel, self.why = kernel, why
        super().__init__(f"{kernel}: launch refused: {why}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kernel, self.why)


class CompileError(DeviceError):
    """A kernel does not compile for a target: ``kernel``, ``target`` and ``text``."""

    def __init__(self, kernel: str, target: str, text: str):
        self.kernel, self.target, self.text = kernel, target, text
        super().__init__(f"{kernel} does not compile for {target}: {text}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kernel, self.target, self.text)


class KernelFault(DeviceError):
    """A kernel failed while it ran: ``kernel``, the ``program`` of the grid that failed (x, y, z), the ``cause``."""

    def __init__(self, kernel: str, program: tuple[int, int, int], cause: str):
        self.kernel, self.program, self.cause = kernel, program, cause
        super().__init__(f"{kernel}: program {program}: {cause}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kernel, self.program, self.cause)


class MemoryFault(KernelFault):
    """A kernel touched memory that is not its own: also the ``address``, and the ``parameter`` behind it, or None."""

    def __init__(
        self, kernel: str, program: tuple[int, int, int], cause: str, address: int, parameter: str | None = None
    ):
        self.address, self.parameter = address, parameter
        super().__init__(kernel, program, cause)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kernel, self.program, self.cause, self.address, self.parameter)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
