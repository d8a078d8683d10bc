"""From an operator call to its routine: one key, one dict lookup, one call.

`Dispatcher` writes, for an operator's parameters, the Python function that builds the key (the specs of the tensors,
whether 16 divides all addresses, the other parameters) and calls the routine kept for it. The first call with a key
asks the operator's plan function, which checks, infers and chooses the kernels from specs alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from nbxtensor.backend import launcher, runtime
from nbxtensor.errors import ArgumentError, DeviceError, DTypeError
from nbxtensor.kernels.plan import Plan
from nbxtensor.tensor import NBXTensor, Spec

#: Roles of a parameter. "tensor"; "tensor?" (or None); "operand" (a tensor or a Python number); "value" (a number given
#: to the kernel at run time, not part of the key); "param" (part of the key, handed to the plan function).
ROLES = frozenset({"tensor", "tensor?", "operand", "value", "param"})
_LIMIT = 8192  # routines an operator keeps
_NUMBERS = (bool, int, float, complex, np.generic)

Operand = NBXTensor | bool | int | float
_ANNOTATIONS = {
    "tensor": NBXTensor,
    "tensor?": NBXTensor | None,
    "operand": Operand,
    "value": int | float,
    "param": Any,
}


class Number:
    """An operand that is a Python number, as a plan function sees it: the number of the first call, of which only the
    kind may decide (later numbers of the same type share the plan)."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value


class Dispatcher:
    """The functions of one operator: `function`, and the special methods `operator` and `reflected`.

    ``roles`` are (parameter, role), the last ones with ``defaults``. ``plan`` is called with a `Spec` for a tensor,
    None or a `Number` for another operand, then the "param" values by name. "value" parameters are not passed to it: it
    refers to them, as to operands, by ``Ref("value", position)``, counting all parameters but the "param" ones."""

    def __init__(
        self,
        name: str,
        roles: tuple[tuple[str, str], ...],
        plan: Callable[..., Plan],
        defaults: tuple[Any, ...] = (),
    ):
        unknown = [role for _, role in roles if role not in ROLES]
        if unknown:
            raise ValueError(f"operator {name}: unknown roles {unknown}")
        self.name, self.roles, self.defaults = name, roles, defaults
        self._miss = _Miss(name, roles, plan)

    def function(self) -> Callable[..., Any]:
        """What users call; an argument that is no tensor or number is a `DTypeError`."""
        return self._written(self.name, self.roles, "call")

    def operator(self, name: str) -> Callable[..., Any]:
        """The special method ``name`` (as "__add__"): leaves operands of unknown types to the other side."""
        return self._written(name, self.roles, "offer")

    def reflected(self, name: str) -> Callable[..., Any]:
        """The reflected special method (as "__radd__") of an operator with two operands."""
        return self._written(name, self.roles[::-1], "offer")

    def _written(self, name: str, signature: tuple[tuple[str, str], ...], missed: str) -> Callable[..., Any]:
        code = _code(self.roles, signature)
        names = {"Tensor": NBXTensor, "get": self._miss.routines.get, "miss": getattr(self._miss, missed)}
        spelled: dict[str, Any] = {field: name for field in ("co_name", "co_qualname") if hasattr(code, field)}
        function = FunctionType(code.replace(**spelled), names, name, self.defaults)
        function.__annotations__ = {p: _ANNOTATIONS[role] for p, role in signature} | {"return": NBXTensor}
        return function


@cache
def _code(roles: tuple[tuple[str, str], ...], signature: tuple[tuple[str, str], ...]) -> CodeType:
    """The code of a function with these parameters; operators with the same ones share it."""
    passed = ", ".join(p for p, role in roles if role != "param")
    params = "".join(f"{p}, " for p, role in roles if role == "param")
    keys, pointers, body = [], [], []
    for p, role in roles:
        if role == "tensor":
            keys.append(f"{p}.spec")
            pointers.append(f"{p}.ptr")
        elif role == "tensor?":
            keys.append(f"None if {p} is None else {p}.spec")
            pointers.append(f"(0 if {p} is None else {p}.ptr)")
        elif role == "operand":
            body.append(f"if {p}.__class__ is Tensor: k_{p} = {p}.spec; a_{p} = {p}.ptr")
            body.append(f"else: k_{p} = {p}.__class__; a_{p} = 0")
            keys.append(f"k_{p}")
            pointers.append(f"a_{p}")
        elif role == "param":
            keys.append(p)
    miss = f"miss(({passed},), ({params}))"
    body += [
        f"try: run = get(({', '.join(keys)}, not ({' | '.join(pointers)}) & 15))",
        f"except (AttributeError, TypeError): return {miss}",
        f"if run is None: return {miss}",
        f"return run({passed})",
    ]
    names: dict[str, Any] = {}
    head = ", ".join(p for p, _ in signature)
    exec(compile(f"def call({head}):\n    " + "\n    ".join(body), "<nbxtensor operator>", "exec"), names)
    code: CodeType = names["call"].__code__
    return code


class _Miss:
    """What happens at the first call with a key."""

    def __init__(self, name: str, roles: tuple[tuple[str, str], ...], plan: Callable[..., Plan]):
        self.name, self.plan = name, plan
        self.passed = [(p, role) for p, role in roles if role != "param"]
        self.params = [p for p, role in roles if role == "param"]
        self.routines: dict[Hashable, Callable[..., Any]] = {}
        self.order = [(p, role) for p, role in roles if role != "value"]

    def call(self, passed: tuple[Any, ...], params: tuple[Any, ...]) -> Any:
        given = {p: _hashable(value) for p, value in zip(self.params, params)}
        operands, inputs, tensors = [], [], []
        for (parameter, role), value in zip(self.passed, passed):
            described = self._describe(parameter, role, value)
            inputs.append(described)
            if role != "value":
                operands.append(described)
            if isinstance(described, Spec):
                tensors.append((parameter, value))
        device = self._device(tensors)
        aligned = not any(tensor.ptr & 15 for _, tensor in tensors)
        key = self._key(passed, given, aligned)
        run = self.routines.get(key)
        if run is None:
            plan = self.plan(*operands, **given)
            run = launcher.routine(plan, device, tuple(inputs), aligned)
            if len(self.routines) >= _LIMIT:
                self.routines.clear()
            self.routines[key] = run
        return run(*passed)

    def offer(self, passed: tuple[Any, ...], params: tuple[Any, ...]) -> Any:
        """For special methods: NotImplemented where an operand is neither a tensor nor a number. numpy's arrays are
        refused: they leave the operator to the tensor, and `==` would be False in silence."""
        if all(isinstance(value, (NBXTensor, np.ndarray, *_NUMBERS)) for value in passed):
            return self.call(passed, params)
        return NotImplemented

    def _describe(self, parameter: str, role: str, value: Any) -> Any:
        if isinstance(value, NBXTensor) and role != "value":
            return value.spec
        if role == "value" or (role == "operand" and isinstance(value, _NUMBERS)):
            if not isinstance(value, _NUMBERS):
                raise ArgumentError(self.name, parameter, value, "must be a number")
            return Number(value)
        if role == "tensor?" and value is None:
            return None
        rule = "must be a tensor" + {"operand": " or a Python number", "tensor?": " or None"}.get(role, "")
        if isinstance(value, np.ndarray):
            rule += "; nbxtensor.from_numpy makes one of an array"
        raise DTypeError(self.name, parameter, type(value).__name__, rule)

    def _device(self, tensors: list[tuple[str, NBXTensor]]) -> runtime.Device:
        if not tensors:
            raise ArgumentError(self.name, self.passed[0][0], None, "at least one operand must be a tensor")
        first, device = tensors[0][0], tensors[0][1].spec.device
        for parameter, tensor in tensors:
            if tensor.spec.device is not device:
                rule = f"must be on {device.name}, the device of {first}; move it with .to()"
                raise ArgumentError(self.name, parameter, f"tensor on {tensor.spec.device.name}", rule)
            if tensor.spec.device.closed:
                raise DeviceError(f"{self.name}: {parameter}: its device {tensor.spec.device.name} is closed")
        return device

    def _key(self, passed: tuple[Any, ...], given: dict[str, Any], aligned: bool) -> Hashable:
        by_name = dict(zip((p for p, _ in self.passed), passed))
        parts = [
            given[p]
            if role == "param"
            else getattr(by_name[p], "spec", by_name[p].__class__)
            if by_name[p] is not None
            else None
            for p, role in self.order
        ]
        return (*parts, aligned)


def _hashable(value: Any) -> Any:
    """Lists given as sizes or axes become tuples, so that they can be part of a key."""
    return tuple(_hashable(v) for v in value) if isinstance(value, list) else value
