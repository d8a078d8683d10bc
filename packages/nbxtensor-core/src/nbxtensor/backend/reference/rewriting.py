"""From a ``triton.jit`` function to a Python function that means the same when Python runs it.

Triton's language is Python's syntax with some other meanings: an assigned number is a tensor, ``and`` and ``not`` act
on tensors, an operand of a conditional expression is a tensor when its condition is. Those are spelled out as calls of
`Meanings`; the rest of the function stays as it is, line numbers included. Its globals are a copy of those of its
module in which every name of the language has been replaced, so that neither the module nor Triton is changed."""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
import types
from collections.abc import Callable, Mapping
from typing import Any

_PREFIX = "__nbx_"  # of the names that rewritten code calls


def rewrite(
    function: types.FunctionType, translate: Callable[[Any], Any], meanings: Mapping[str, Any], *, returns_tensors: bool
) -> types.FunctionType:
    """The function rewritten. ``translate`` gives the interpreted meaning of a global; ``meanings`` are the functions
    that rewritten code calls, and the language's own builtins. Raises OSError without source, SyntaxError for what is
    not of the language."""
    lines, first = inspect.getsourcelines(function)
    module = ast.parse(textwrap.dedent("".join(lines)))
    definition = module.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise SyntaxError(f"{function.__name__} is not written as a function")
    names = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
    definition.decorator_list, definition.returns = [], None
    _strip_arguments(definition.args)
    module = _Rewriter(returns_tensors).visit(module)
    ast.increment_lineno(ast.fix_missing_locations(module), first - 1)

    space: dict[str, Any] = {"__builtins__": builtins, "__name__": function.__module__}
    space.update((name if hasattr(builtins, name) else _PREFIX + name, value) for name, value in meanings.items())
    closure = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
    for name in names:
        if name in closure:
            space[name] = translate(closure[name].cell_contents)
        elif name in function.__globals__:
            space[name] = translate(function.__globals__[name])
    exec(compile(module, function.__code__.co_filename, "exec"), space)
    rewritten: types.FunctionType = space[function.__name__]
    if function.__defaults__:
        rewritten.__defaults__ = tuple(translate(v) for v in function.__defaults__)
    if function.__kwdefaults__:
        rewritten.__kwdefaults__ = {name: translate(v) for name, v in function.__kwdefaults__.items()}
    return rewritten


def _strip_arguments(arguments: ast.arguments) -> None:
    """Takes annotations and defaults away; the defaults' values are set on the function that results."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    for argument in every:
        if argument is not None:
            argument.annotation = None
    arguments.defaults = []
    arguments.kw_defaults = [None] * len(arguments.kwonlyargs)


class _Rewriter(ast.NodeTransformer):
    def __init__(self, returns_tensors: bool):
        self._returns_tensors = returns_tensors
        self._constants: set[str] = set()  # names declared constexpr before they are assigned
        self._chains = 0

    @staticmethod
    def _call(name: str, *arguments: ast.expr) -> ast.Call:
        return ast.Call(ast.Name(_PREFIX + name, ast.Load()), list(arguments), [])

    @staticmethod
    def _later(value: ast.expr) -> ast.Lambda:
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        return ast.Lambda(nothing, value)

    def _assigned(self, target: ast.expr, value: ast.expr) -> ast.expr:
        constant = isinstance(target, ast.Name) and target.id in self._constants
        return self._call("constexpr" if constant else "assign", value)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        if len(node.targets) != 1:
            raise SyntaxError(f"line {node.lineno}: several assignments in one statement")
        node.value = self._assigned(node.targets[0], node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if not isinstance(node.target, ast.Name):
            raise SyntaxError(f"line {node.lineno}: only a name can be updated in place")
        self.generic_visit(node)
        before = ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
        value = ast.copy_location(ast.BinOp(before, node.op, node.value), node)
        return ast.copy_location(ast.Assign([node.target], self._assigned(node.target, value)), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        constant = ast.unparse(node.annotation).rpartition(".")[2] == "constexpr"
        if node.value is None:
            if constant and isinstance(node.target, ast.Name):
                self._constants.add(node.target.id)
            return ast.copy_location(ast.Pass(), node)
        value = self.visit(node.value)
        value = self._call("constexpr", value) if constant else self._assigned(node.target, value)
        return ast.copy_location(ast.Assign([node.target], value), node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        self.generic_visit(node)
        node.value = self._assigned(node.target, node.value)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        if self._returns_tensors and node.value is not None:
            node.value = self._call("assign", node.value)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        name = "and" if isinstance(node.op, ast.And) else "or"
        result = node.values[0]
        for value in node.values[1:]:
            result = self._call(name, result, self._later(value))
        return ast.copy_location(result, node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            return ast.copy_location(self._call("not", node.operand), node)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """``a < b < c`` is ``a < b and b < c``, with b computed once."""
        self.generic_visit(node)
        if len(node.ops) == 1:
            return node
        left: ast.expr = node.left
        result: ast.expr | None = None
        for op, right in zip(node.ops, node.comparators):
            kept = f"{_PREFIX}operand{self._chains}"
            self._chains += 1
            held = ast.NamedExpr(ast.Name(kept, ast.Store()), right)
            one = ast.Compare(left, [op], [held])
            result = one if result is None else self._call("both", result, one)
            left = ast.Name(kept, ast.Load())
        assert result is not None
        return ast.copy_location(result, node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        chosen = self._call("choose", node.test, self._later(node.body), self._later(node.orelse))
        return ast.copy_location(chosen, node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        self.generic_visit(node)
        message = node.msg if node.msg is not None else ast.Constant("")
        return ast.copy_location(ast.Expr(self._call("assert", node.test, message)), node)
