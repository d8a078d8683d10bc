"""The declarations of the CUDA driver API: compiled against NVIDIA's header, and the generated module against them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cffi import FFI

from nbxtensor.backend.cuda import _bindings, ffi, library
from standins.cuda import build

HANDLES = re.findall(r"typedef uintptr_t (\w+);", ffi.TYPES)
INTEGERS = re.findall(r"typedef (?!uintptr_t)(?:unsigned )?(?:int|long long) (\w+);", ffi.TYPES)
STRUCTURES = re.findall(r"}\s*(\w+);", ffi.TYPES)
CONSTANTS = {name: value for name, value in vars(ffi).items() if re.match(r"CU(DA)?_[A-Z]", name)}


@pytest.fixture(scope="module")
def parsed() -> Any:
    """The declarations as cffi itself reads them."""
    parsed = FFI()
    parsed.cdef(ffi.declarations())
    return parsed


def compile_with_header(source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "check.c").write_text(f"#include <stddef.h>\n#include <stdint.h>\n#include <cuda.h>\n{source}")
    command = ["gcc", "-std=gnu11", "-fsyntax-only", "-Wall", "-Werror", f"-I{build.header_folder()}", "check.c"]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**os.environ, "LC_ALL": "C"})


FUNCTIONS = ffi.declarations().removeprefix(ffi.TYPES)


def test_prototypes_are_those_of_the_header(tmp_path: Path) -> None:
    """C refuses to declare a function twice unless both declarations agree."""
    result = compile_with_header(FUNCTIONS, tmp_path)
    assert result.returncode == 0, result.stderr


def test_a_wrong_prototype_would_be_found(tmp_path: Path) -> None:
    wrong = FUNCTIONS.replace("cuMemFree_v2(CUdeviceptr)", "cuMemFree_v2(CUdeviceptr *)")
    assert "conflicting types for 'cuMemFree_v2'" in compile_with_header(wrong, tmp_path).stderr


def test_every_prototype_is_one_that_the_header_has(tmp_path: Path) -> None:
    """Not a new function of a misspelt name."""
    uses = "".join(f"void *use_{name}(void) {{ return (void *){name}; }}\n" for name in library.functions())
    result = compile_with_header(uses, tmp_path)
    assert result.returncode == 0, result.stderr


def test_sizes_offsets_and_values_are_those_of_the_header(parsed: Any, tmp_path: Path) -> None:
    checks = [f"sizeof({name}) == sizeof(uintptr_t)" for name in HANDLES]
    checks += [f"sizeof({name}) == {parsed.sizeof(name)}" for name in (*INTEGERS, *STRUCTURES)]
    for structure in STRUCTURES:
        for name, field in parsed.typeof(structure).fields or ():
            checks.append(f"offsetof({structure}, {name}) == {field.offset}")
            checks.append(f"sizeof((({structure} *)0)->{name}) == {parsed.sizeof(field.type)}")
    checks += [f"{name} == {value}" for name, value in CONSTANTS.items()]
    assert len(HANDLES) == 9 and len(STRUCTURES) == 8 and len(CONSTANTS) > 50
    result = compile_with_header("".join(f'_Static_assert({check}, "{check}");\n' for check in checks), tmp_path)
    assert result.returncode == 0, result.stderr


def test_the_generated_module_declares_the_same(parsed: Any) -> None:
    path = str(build.standin())
    ours, generated = parsed.dlopen(path), _bindings.ffi.dlopen(path)
    for name in library.functions():
        assert str(_bindings.ffi.typeof(getattr(generated, name))) == str(parsed.typeof(getattr(ours, name))), name
    for name in (*HANDLES, *INTEGERS, *STRUCTURES):
        assert _bindings.ffi.sizeof(name) == parsed.sizeof(name), name


def test_generation_is_repeatable(tmp_path: Path) -> None:
    ffi.write(tmp_path / "first.py")
    ffi.write(tmp_path / "second.py")
    assert (tmp_path / "first.py").read_text() == (tmp_path / "second.py").read_text()


def test_no_function_is_declared_twice() -> None:
    assert len(set(library.functions())) == len(library.functions())
