"""Writes docs/API.md from the sources: ``python docs/generate_api.py``. A test compares the committed file with a new
one.

Modules are read, not imported; only the operator table is imported, for the operators' facts. Public is what no
underscore starts; a module that states ``__all__`` exports that. Triton functions, tests and `INTERNAL` are no part of
the reference."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "API.md"

#: Heading, and the modules below it by their first names below ``nbxtensor``; the rest comes last.
PARTS = (
    ("Tensors", ("", "tensor", "dtype", "shape", "dlpack", "printing", "errors")),
    ("Models and programs", ("interop", "program", "tuning")),
    ("Devices", ("backend.runtime", "backend.device_files", "backend.install_help", "memory", "host")),
    ("Backends", ("backend", "conformance", "doctor")),
    ("Operators from the inside", ("ops", "kernels")),
)

#: Modules that only the conformance suite itself uses.
INTERNAL = frozenset(f"nbxtensor.conformance.{name}" for name in ("__main__", "kernels", "marks", "plugin", "variants"))
#: Rooms whose modules serve one public face: the interpreter behind its driver, the oracles behind the operator table,
#: the kernels behind the operators.
INTERNAL_ROOMS = ("nbxtensor.backend.reference.", "nbxtensor.ops.oracles", "nbxtensor.kernels")

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Entry(NamedTuple):
    """A public name: its dotted ``name``, its ``signature`` as code, its ``doc`` ("" when it has none) and its
    members."""

    name: str
    signature: str
    doc: str
    members: tuple[Entry, ...] = ()


class Module(NamedTuple):
    """A public module."""

    name: str
    doc: str
    entries: tuple[Entry, ...]


def modules() -> list[Module]:
    """The public modules of all packages, by name."""
    found = {name_of(path): path for path in ROOT.glob("packages/*/src/nbxtensor/**/*.py") if is_public(path)}
    return [read(name, path) for name, path in sorted(found.items()) if not is_internal(name)]


def is_internal(name: str) -> bool:
    return name in INTERNAL or name.startswith(INTERNAL_ROOMS)


def is_public(path: Path) -> bool:
    names = [part.removesuffix(".py") for part in path.relative_to(ROOT).parts[4:] if part != "__init__.py"]
    return not any(name.startswith(("_", "test_")) for name in names)


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[3:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read(name: str, path: Path) -> Module:
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    exported = declared_exports(tree)
    entries = [entry for entry in top_level(tree, source) if entry.name in exported or not exported]
    return Module(
        name, ast.get_docstring(tree) or "", tuple(entry for entry in entries if not entry.name.startswith("_"))
    )


def declared_exports(tree: ast.Module) -> frozenset[str]:
    """What ``__all__`` lists where it is a literal; empty when there is none."""
    for statement in tree.body:
        named = isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__"
        if named and isinstance(statement.value, ast.List | ast.Tuple):
            return frozenset(e.value for e in statement.value.elts if isinstance(e, ast.Constant))
    return frozenset()


def top_level(tree: ast.Module, source: str) -> Iterator[Entry]:
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef):
            yield class_entry(statement, source)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            if not any("jit" in ast.unparse(decorator) for decorator in statement.decorator_list):
                yield Entry(statement.name, signature(statement), documentation(statement))
        else:
            yield from constant(statement, source)


def constant(statement: ast.stmt, source: str) -> Iterator[Entry]:
    """A constant that ``#:`` comments document."""
    if isinstance(statement, ast.AnnAssign):
        target: ast.expr = statement.target
    elif isinstance(statement, ast.Assign):
        target = statement.targets[0]
    else:
        return
    comments = []
    for line in reversed(source.splitlines()[: statement.lineno - 1]):
        if not line.startswith("#:"):
            break
        comments.append(line.removeprefix("#:").strip())
    if comments and isinstance(target, ast.Name):
        yield Entry(target.id, target.id, " ".join(reversed(comments)))


def class_entry(node: ast.ClassDef, source: str) -> Entry:
    bases = [ast.unparse(base) for base in node.bases]
    fields = [
        f"{ast.unparse(s.target)}: {ast.unparse(s.annotation)}" for s in node.body if isinstance(s, ast.AnnAssign)
    ]
    head = f"class {node.name}" + (f"({', '.join(bases)})" if bases else "")
    members = []
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            if statement.name == "__init__":
                head += "\n" + signature(statement, bound=True).replace("__init__", node.name, 1)
            elif not statement.name.startswith("_") and not is_setter(statement):
                entry = Entry(statement.name, signature(statement, bound=True), documentation(statement))
                members.append(entry)
    public = [field for field in fields if not field.startswith("_")]
    return Entry(node.name, "\n    ".join([head, *public]), documentation(node), tuple(members))


def is_setter(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(d).endswith((".setter", ".deleter")) for d in function.decorator_list)


def signature(function: ast.FunctionDef | ast.AsyncFunctionDef, *, bound: bool = False) -> str:
    """The call as it is written, without ``self``; of a property its name and type."""
    decorators = {ast.unparse(decorator) for decorator in function.decorator_list}
    returns = "" if function.returns is None else ast.unparse(function.returns)
    if decorators & {"property", "functools.cached_property", "cached_property"}:
        return f"{function.name}: {returns}"
    arguments = ast.unparse(function.args)
    if bound and "staticmethod" not in decorators:
        arguments = re.sub(r"^\w+(, /)?(, )?", "", arguments)
    return f"{function.name}({arguments})" + (f" -> {returns}" if returns and function.name != "__init__" else "")


def documentation(node: Definition) -> str:
    return ast.get_docstring(node) or ""


def undocumented() -> list[str]:
    """The public names that have no documentation. A method may have it from a base class, or from the driver
    contract."""
    classes = {
        entry.name: entry for module in modules() for entry in module.entries if entry.signature.startswith("class ")
    }
    contract = next(module for module in modules() if module.name == "nbxtensor.backend.contract")
    verbs = {member.name for entry in contract.entries for member in entry.members if member.doc}

    def inherited(owner: Entry, method: str) -> bool:
        names = re.findall(r"\w+", owner.signature.partition("\n")[0].partition("(")[2])
        bases = [classes[name] for name in names if name in classes and name != owner.name]
        return any(m.doc for base in bases for m in base.members if m.name == method) or any(
            inherited(base, method) for base in bases
        )

    missing = []
    for module in modules():
        missing += [module.name] if not module.doc else []
        for entry in module.entries:
            missing += [f"{module.name}.{entry.name}"] if not entry.doc else []
            for member in entry.members:
                if not member.doc and member.name not in verbs and not inherited(entry, member.name):
                    missing.append(f"{module.name}.{entry.name}.{member.name}")
    return missing


def render() -> str:
    """The text of docs/API.md."""
    lines = ["# API", "", "Generated by `python docs/generate_api.py` from the docstrings. Do not edit.", ""]
    lines += ["## Operators", "", *operators()]
    rest = modules()
    for heading, prefixes in PARTS:
        here = [m for m in rest if any(is_below(m.name, prefix) for prefix in prefixes)]
        rest = [m for m in rest if m not in here]
        lines += [f"## {heading}", ""]
        for module in sorted(
            here, key=lambda m: (min(i for i, p in enumerate(prefixes) if is_below(m.name, p)), m.name)
        ):
            lines += render_module(module)
    if rest:
        raise SystemExit(f"modules in no part of PARTS: {', '.join(module.name for module in rest)}")
    return "\n".join(lines).rstrip() + "\n"


def is_below(module: str, prefix: str) -> bool:
    inner = module.removeprefix("nbxtensor").removeprefix(".")
    return inner == prefix or (prefix != "" and inner.startswith(f"{prefix}."))


def render_module(module: Module) -> Iterator[str]:
    yield from (f"### `{module.name}`", "", module.doc, "")
    for entry in module.entries:
        yield from (f"#### `{entry.name}`", "", "```python", entry.signature, "```", "", entry.doc, "")
        for member in entry.members:
            yield from (f"`{entry.name}.{member.signature}`", "", member.doc, "") if member.doc else ()


def operators() -> Iterator[str]:
    """The operators of the table by family, each with its signature, dtypes, methods and documentation."""
    import nbxtensor  # noqa: F401  (fills the table)
    from nbxtensor.ops.table import OPERATORS

    for family in sorted({operator.family for operator in OPERATORS.values()}):
        yield from (f"### {family.capitalize().replace('_', ' ')}", "")
        for operator in (operator for operator in OPERATORS.values() if operator.family == family):
            call = f"{operator.name}{bare(inspect.signature(operator.function))}"
            yield from (f"#### `{operator.name}`", "", "```python", call, "```", "", inspect.cleandoc(operator.doc), "")
            yield from (f"Dtypes: {', '.join(operator.dtypes)}.", "")
            if operator.methods:
                yield from (f"Methods of a tensor: {', '.join(f'`{method}`' for method in operator.methods)}.", "")


class Bare(str):
    """An annotation that is shown without quotes."""

    __repr__ = str.__str__


def bare(call: inspect.Signature) -> inspect.Signature:
    """The signature with annotations that are strings shown as they are written in the source."""

    def text(annotation: object) -> object:
        return Bare(annotation) if isinstance(annotation, str) else annotation

    parameters = [p.replace(annotation=text(p.annotation)) for p in call.parameters.values()]
    return call.replace(parameters=parameters, return_annotation=text(call.return_annotation))


if __name__ == "__main__":
    TARGET.write_text(render(), "utf-8")
    print(f"{TARGET.relative_to(ROOT)}: {len(TARGET.read_text('utf-8').splitlines())} lines")
