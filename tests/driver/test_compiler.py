"""The compiler for Triton's GPU targets: what Triton is given, what is refused, the disk cache. No GPU, no driver."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import triton
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.backend import artifact_cache, compiler
from nbxtensor.backend.artifact_cache import Entry
from nbxtensor.backend.contract import Parameter, Variant
from nbxtensor.backend.kernel_source import Kernel
from nbxtensor.conformance import variants
from nbxtensor.conformance.variants import variant
from nbxtensor.errors import CompileError

H200 = compiler.gpu_target("cuda", 90, 32)
MI300 = compiler.gpu_target("hip", "gfx942", 64)
TYPES = {"to": "*fp32", "source": "*fp32", "n": "i32"}
COPY = variant(variants.COPY, TYPES, {"BLOCK": 1024}, divisible=("to", "source", "n"))
SOURCES = Path(variants.__file__).parents[1]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test compiles for itself."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def python(code: str, **environment: str) -> str:
    """What a new Python process prints."""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert result.returncode == 0, result.stderr
    return result.stdout


PREAMBLE = """
from nbxtensor.backend import compiler
from nbxtensor.conformance import variants
TYPES = {"to": "*fp32", "source": "*fp32", "n": "i32"}
COPY = variants.variant(variants.COPY, TYPES, {"BLOCK": 1024}, divisible=("to", "source", "n"))
"""


# What Triton is given


def test_every_parameter_stands_in_the_signature_in_order() -> None:
    integers = {"shape.0": "i32", "shape.1": "i32", "strides.0": "i64", "strides.1": "i32"}
    types = {"to": "*fp32", "source": "*fp32", **integers}
    source = compiler.ast_source(
        variant(variants.COPY_2D, types, {"BLOCK": 16}, folded=("strides.1",), divisible=("source", "strides.0")), H200
    )
    assert list(source.signature.items()) == [
        ("to", "*fp32"),
        ("source", "*fp32"),
        ("shape", ("i32", "i32")),
        ("strides", ("i64", "constexpr")),
        ("BLOCK", "constexpr"),
    ]
    assert source.constants == {(3, 1): 1, (4,): 16}
    assert source.attrs == {(1,): [["tt.divisibility", 16]], (3, 0): [["tt.divisibility", 16]]}


def test_a_function_is_handed_over_as_itself() -> None:
    from nbxtensor.conformance import kernels

    source = compiler.ast_source(variant(variants.APPLY, TYPES, {"FUNCTION": variants.TWICE, "BLOCK": 64}), H200)
    assert source.constants == {(3,): kernels.twice, (4,): 64}


def test_an_absent_tensor_is_a_constant() -> None:
    absent = variant(variants.COPY, {"to": "*fp32", "n": "i32"}, {"source": None, "BLOCK": 64})
    source = compiler.ast_source(absent, H200)
    assert list(source.signature.values()) == ["*fp32", "constexpr", "i32", "constexpr"]
    assert source.constants == {(1,): None, (3,): 64}


def test_the_fusion_of_multiply_and_add_is_always_said() -> None:
    assert compiler.compile_options(COPY)["enable_fp_fusion"] is True
    assert compiler.compile_options(COPY._replace(options=(("enable_fp_fusion", False),)))["enable_fp_fusion"] is False
    with_fusion = compiler.compile_gpu(COPY, H200)
    without = compiler.compile_gpu(COPY._replace(options=(("enable_fp_fusion", False),)), H200)
    assert (with_fusion.metadata["enable_fp_fusion"], without.metadata["enable_fp_fusion"]) == (True, False)


# What comes back


def test_an_artifact_for_nvidia() -> None:
    artifact = compiler.compile_gpu(COPY._replace(options=(("num_warps", 8),)), H200)
    assert (artifact.kind, artifact.entry, artifact.parameters) == ("cubin", "copy", COPY.parameters)
    assert artifact.payload.startswith(b"\x7fELF")
    metadata = artifact.metadata
    assert (metadata["num_warps"], metadata["warp_size"], metadata["num_ctas"]) == (8, 32, 1)
    assert (metadata["shared"], metadata["global_scratch_size"], metadata["profile_scratch_size"]) == (0, 0, 0)
    assert (metadata["arch"], metadata["triton_version"]) == ("sm90", triton.__version__)
    assert (metadata["launch_cooperative_grid"], metadata["launch_pdl"]) == (False, False)
    assert re.fullmatch(r"\d+\.\d+", metadata["ptx_version"])
    json.dumps(dict(metadata))


def test_an_artifact_for_amd() -> None:
    artifact = compiler.compile_gpu(COPY, MI300)
    assert (artifact.kind, artifact.entry) == ("hsaco", "copy")
    assert artifact.payload.startswith(b"\x7fELF")
    assert (artifact.metadata["warp_size"], artifact.metadata["global_scratch_size"]) == (64, 0)
    assert artifact.metadata["ptx_version"] is None


@pytest.mark.parametrize("capability", [70, 75, 80, 89, 90, 100, 120])
def test_every_generation_compiles(capability: int) -> None:
    assert compiler.compile_gpu(COPY, compiler.gpu_target("cuda", capability, 32)).metadata["arch"] == f"sm{capability}"


def test_kernels_with_scratch_and_shared_memory_say_so() -> None:
    types = {"to": "*fp32", "source": "*fp32", "rows": "i32", "columns": "i32"}
    tile = variant(variants.COPY_TILE, types, {"BLOCK": 32}, divisible=("to", "source", "rows", "columns"))
    metadata = compiler.compile_gpu(tile, H200).metadata
    assert metadata["global_scratch_size"] > 0 and metadata["global_scratch_align"] >= 1
    types = {"to": "*fp32", "a": "*fp16", "b": "*fp16", "K": "i32"}
    dot = variant(variants.DOT, types, {"M": 64, "N": 64, "BLOCK_K": 32}, divisible=("to", "a", "b", "K"))
    assert compiler.compile_gpu(dot, H200).metadata["shared"] > 0


def test_known_alignment_gives_wide_accesses() -> None:
    def wide(wanted: Variant) -> bool:
        compiled = triton.compile(compiler.ast_source(wanted, H200), H200, compiler.compile_options(wanted))
        return ".v4.b32" in compiled.asm["ptx"]

    assert wide(COPY)
    assert not wide(COPY._replace(attributes=()))


# What is refused


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (COPY._replace(constants=()), "'BLOCK' has neither a type nor a constant"),
        (COPY._replace(parameters=COPY.parameters[:-1]), "'n' has neither a type nor a constant"),
        (COPY._replace(constants=(*COPY.constants, ("other", 1))), "['other'] are no parameters"),
        (COPY._replace(parameters=(*COPY.parameters, Parameter("extra", "i32", True))), "['extra'] are no parameters"),
        (COPY._replace(kernel=Kernel(variants.COPY.module, "copy", {"to": "ptr"})), "are not the source's"),
        (COPY._replace(kernel=Kernel("json", "dumps", {"to": "ptr"})), "not a triton.jit function"),
        (COPY._replace(options=(("num_wraps", 4),)), "no option num_wraps"),
        (COPY._replace(options=(("num_warps", 3),)), "num_warps must be a power of 2"),
    ],
)
def test_a_wrong_variant_is_refused(wrong: Variant, text: str) -> None:
    with pytest.raises(CompileError, match=re.escape(text)) as caught:
        compiler.compile_gpu(wrong, H200)
    assert (caught.value.kernel, caught.value.target) == (wrong.kernel.name, "cuda:90")


def test_a_kernel_that_is_wrong_is_named_with_its_line_and_every_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong_kernels.py").write_text(
        "import triton\nimport triton.language as tl\n"
        "@triton.jit\ndef inner(to):\n    tl.static_assert(False, 'the inner reason')\n"
        "@triton.jit\ndef outer(to):\n    inner(to)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CompileError, match="the inner reason") as caught:
        compiler.compile_gpu(variant(Kernel("wrong_kernels", "outer", {"to": "ptr"}), {"to": "*fp32"}), H200)
    assert caught.value.kernel == "outer"
    assert "def outer(to):\n    inner(to)" in caught.value.text


def test_an_architecture_that_ptxas_does_not_know_comes_with_advice(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CompileError) as caught:
        compiler.compile_gpu(COPY, compiler.gpu_target("cuda", 139, 32))
    assert "does not know sm_139a" in caught.value.text
    assert "TRITON_PTXAS_BLACKWELL_PATH" in caught.value.text


@pytest.mark.parametrize(("name", "value"), [("TRITON_INTERPRET", "1"), ("TRITON_OVERRIDE_ARCH", "sm80")])
def test_variables_that_change_what_is_compiled_are_refused(name: str, value: str) -> None:
    code = f"""{PREAMBLE}
from nbxtensor.errors import CompileError
try: compiler.compile_gpu(COPY, compiler.gpu_target("cuda", 90, 32))
except CompileError as error: print(error)
"""
    assert name in python(code, **{name: value})


def test_neither_torch_nor_a_driver_is_touched() -> None:
    code = f"""{PREAMBLE}
import sys
class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch": raise AssertionError("torch was imported")
sys.meta_path.insert(0, Forbid())
from triton.runtime import driver
class Poison:
    def __getattribute__(self, name): raise AssertionError(f"driver.{{name}} was asked for")
driver.set_active(Poison())
for target in ("cuda", 90, 32), ("hip", "gfx942", 64):
    print(compiler.compile_gpu(COPY, compiler.gpu_target(*target)).kind)
"""
    assert python(code).split() == ["cubin", "hsaco"]


# The disk cache


def test_a_second_process_reads_what_the_first_compiled() -> None:
    first = compiler.compile_gpu(COPY, H200)
    code = f"""{PREAMBLE}
import hashlib, triton
def refuse(*args, **kwargs): raise AssertionError("it was compiled again")
triton.compile = refuse
triton.runtime.cache.triton_key = refuse
artifact = compiler.compile_gpu(COPY, compiler.gpu_target("cuda", 90, 32))
print(hashlib.sha256(artifact.payload).hexdigest(), artifact.metadata["ptx_version"], artifact.entry)
"""
    digest, version, entry = python(code).split()
    assert digest == hashlib.sha256(first.payload).hexdigest()
    assert (version, entry) == (first.metadata["ptx_version"], "copy")


def test_variants_targets_and_options_have_entries_of_their_own(own_cache: Path) -> None:
    compiler.compile_gpu(COPY, H200)
    compiler.compile_gpu(COPY, compiler.gpu_target("cuda", 80, 32))
    compiler.compile_gpu(COPY._replace(options=(("num_warps", 2),)), H200)
    compiler.compile_gpu(COPY._replace(attributes=()), H200)
    assert len([path for path in (own_cache / "nbxtensor").rglob("*") if path.is_file()]) == 4


def test_a_warm_first_compile_starts_no_process() -> None:
    compiler.compile_gpu(COPY, H200)
    code = f"""{PREAMBLE}
import subprocess
def refuse(*args, **kwargs): raise AssertionError("a process was started")
subprocess.Popen = refuse
print(compiler.compile_gpu(COPY, compiler.gpu_target("cuda", 90, 32)).kind)
"""
    assert python(code).strip() == "cubin"


def test_another_assembler_has_entries_of_its_own(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiler.compile_gpu(COPY, H200)
    shipped = triton.knobs.nvidia.ptxas_blackwell.path
    monkeypatch.setenv("TRITON_PTXAS_BLACKWELL_PATH", shipped)
    assert compiler.compile_gpu(COPY, H200).payload == first.payload
    assert len([path for path in (own_cache / "nbxtensor").rglob("*") if path.is_file()]) == 2


@pytest.mark.parametrize("knob", ["TRITON_ALWAYS_COMPILE", "TRITON_KERNEL_DUMP"])
def test_who_watches_the_compiler_sees_all_of_it(own_cache: Path, monkeypatch: pytest.MonkeyPatch, knob: str) -> None:
    monkeypatch.setenv(knob, "1")
    monkeypatch.setenv("TRITON_DUMP_DIR", str(own_cache.parent / "dump"))
    compiler.compile_gpu(COPY, H200)
    assert not (own_cache / "nbxtensor").exists()


entries = st.builds(
    Entry,
    kind=st.sampled_from(["cubin", "hsaco"]),
    entry=st.text(),
    payload=st.binary(max_size=200),
    metadata=st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text()),
)


@given(entries)
def test_an_entry_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, entry: Entry) -> None:
    folder = str(tmp_path_factory.getbasetemp())
    artifact_cache.write(folder, "key", entry)
    assert artifact_cache.read(folder, "key") == entry


def test_a_damaged_entry_is_no_entry(tmp_path: Path) -> None:
    entry = Entry("cubin", "k", bytes(range(64)), {"shared": 1})
    artifact_cache.write(str(tmp_path), "abcdef", entry)
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert artifact_cache.read(str(tmp_path), "abcdef") is None, f"cut to {length} bytes"
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert artifact_cache.read(str(tmp_path), "abcdef") is None, f"byte {at} changed"
    artifact_cache.write(str(tmp_path), "abcdef", entry)
    assert artifact_cache.read(str(tmp_path), "abcdef") == entry


def test_a_damaged_entry_is_compiled_again_and_replaced(own_cache: Path) -> None:
    first = compiler.compile_gpu(COPY, H200)
    (path,) = (path for path in (own_cache / "nbxtensor").rglob("*") if path.is_file())
    path.write_bytes(path.read_bytes()[:-1])
    assert compiler.compile_gpu(COPY, H200).payload == first.payload
    (found,) = (path for path in (own_cache / "nbxtensor").rglob("*") if path.is_file())
    assert found.stat().st_size > len(first.payload)


def test_writers_of_one_entry_do_not_disturb_each_other(tmp_path: Path) -> None:
    entry = Entry("cubin", "k", os.urandom(1 << 16), {})
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: artifact_cache.write(str(tmp_path), "key", entry), range(64)))
    assert artifact_cache.read(str(tmp_path), "key") == entry
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_without_a_writable_directory_there_is_one_warning_and_a_result(tmp_path: Path) -> None:
    """The directory's parent is a file: nobody can make it, whatever his rights."""
    (tmp_path / "file").touch()
    named = str(tmp_path / "file" / "cache")
    code = f"""{PREAMBLE}
import sys, warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    kinds = [compiler.compile_gpu(COPY, compiler.gpu_target("cuda", n, 32)).kind for n in (80, 90)]
(text,) = [str(one.message) for one in seen if "cache" in str(one.message)]
assert sys.argv == ["-c"] and {named!r} in text and "TRITON_CACHE_DIR" in text, text
print(*kinds, text.partition("kept in ")[2].split()[0])
"""
    *kinds, private = python(code, TRITON_CACHE_DIR=named).split()
    assert kinds == ["cubin", "cubin"]
    assert not Path(private).exists()


def test_a_disk_that_fills_up_during_a_compile_is_left_for_another(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_once = triton.compile
    failures: list[OSError] = []

    def fail_once(*args: Any, **kwargs: Any) -> Any:
        if not failures:
            failures.append(OSError(28, "No space left on device"))
            raise failures[0]
        return compile_once(*args, **kwargs)

    monkeypatch.setattr(triton, "compile", fail_once)
    with pytest.warns(RuntimeWarning, match="No space left"):
        assert compiler.compile_gpu(COPY, H200).kind == "cubin"
    assert os.environ["TRITON_CACHE_DIR"] != str(own_cache)
    monkeypatch.setattr(triton.knobs.cache, "dir", triton.knobs.env)


def test_an_entry_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "nbxtensor").touch()
    with pytest.warns(RuntimeWarning, match="TRITON_CACHE_DIR"):
        artifact_cache.write(str(tmp_path), "key", Entry("cubin", "k", b"", {}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        artifact_cache.write(str(tmp_path), "key", Entry("cubin", "k", b"", {}))


# The name of the toolchain


@pytest.fixture
def installation(tmp_path: Path) -> Callable[[], bytes | None]:
    """An installed package in miniature; what `artifact_cache` takes for its record."""
    package = tmp_path / "triton"
    (package / "compiler").mkdir(parents=True)
    rows = []
    for name in ("__init__.py", "compiler/code.py", "compiler/notes.txt"):
        (package / name).write_text(f"# {name}\n")
        rows.append(f"triton/{name},sha256=x,{(package / name).stat().st_size}\n")
    (tmp_path / "triton-1.0.dist-info").mkdir()
    (tmp_path / "triton-1.0.dist-info/RECORD").write_text("".join(rows) + "triton-1.0.dist-info/RECORD,,\n")
    return lambda: artifact_cache._record(package)


Installation = Callable[[], "bytes | None"]


def test_an_intact_installation_is_named_by_its_record(installation: Installation, tmp_path: Path) -> None:
    assert installation() == (tmp_path / "triton-1.0.dist-info/RECORD").read_bytes()
    (tmp_path / "triton/compiler/notes.txt").write_text("no code: of no account")
    assert installation() is not None


@pytest.mark.parametrize("change", ["longer", "touched", "removed", "editable", "twice"])
def test_a_changed_installation_is_named_by_its_files(installation: Installation, tmp_path: Path, change: str) -> None:
    code, record = tmp_path / "triton/compiler/code.py", tmp_path / "triton-1.0.dist-info/RECORD"
    if change == "longer":
        code.write_text("# something else, of another length\n")
        os.utime(code, (1, 1))
    elif change == "touched":
        later = record.stat().st_mtime + 10
        os.utime(code, (later, later))
    elif change == "removed":
        code.unlink()
    elif change == "editable":
        record.write_text("triton-1.0.dist-info/RECORD,,\n__editable__.triton.pth,,\n")
    else:
        (tmp_path / "pytorch_triton-1.0.dist-info").mkdir()
        (tmp_path / "pytorch_triton-1.0.dist-info/RECORD").write_bytes(record.read_bytes())
    assert installation() is None


def test_without_a_record_triton_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_cache, "_record", lambda package: None)
    assert artifact_cache.toolchain_key.__wrapped__() == triton.runtime.cache.triton_key()


def test_prewarming_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise OSError("unreadable")

    monkeypatch.setattr(artifact_cache, "toolchain_key", fail)
    compiler.prewarm()
