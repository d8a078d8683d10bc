"""Variant to artifact for Triton's GPU targets. Needs neither a GPU nor a driver, and never asks Triton for one.

Drivers call `compile_gpu`. A compiled kernel is kept on disk (`nbxtensor.backend.artifact_cache`), where the first
compile of a process finds it in milliseconds.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Callable, Hashable
from typing import Any

from nbxtensor.backend import artifact_cache
from nbxtensor.backend.artifact_cache import Entry
from nbxtensor.backend.contract import Artifact, Variant
from nbxtensor.errors import CompileError

Refuse = Callable[[str], CompileError]

#: What a driver reads of a compiled kernel, with the value for a Triton release or target that does not state it.
_METADATA: dict[str, Any] = {
    "arch": None,
    "warp_size": 32,
    "num_warps": 4,  # of the launch: more than was asked for when the compiler specialised warps
    "num_ctas": 1,
    "num_stages": None,
    "shared": 0,
    "tmem_size": 0,
    "global_scratch_size": 0,
    "global_scratch_align": 1,
    "profile_scratch_size": 0,
    "profile_scratch_align": 1,
    "launch_cooperative_grid": False,
    "launch_pdl": False,
    "tensordesc_meta": None,
    "enable_fp_fusion": None,
    "triton_version": None,
}


def compile_gpu(variant: Variant, target: Any) -> Artifact:
    """Compiles a variant for a ``GPUTarget`` (`gpu_target`).

    The artifact's kind is the binary's ("cubin", "hsaco"); its metadata are those of Triton that a driver reads, and
    ``ptx_version`` where PTX was made. Raises `CompileError`.
    """
    refuse = functools.partial(CompileError, variant.kernel.name, f"{target.backend}:{target.arch}")
    _refuse_variables(refuse)
    source = ast_source(variant, target)
    options = compile_options(variant)
    backend, parsed = _parse_options(target, options, refuse)
    directory = artifact_cache.directory()
    key = None if _compiler_is_watched() else _cache_key(source, backend, parsed)
    entry = artifact_cache.read(directory, key) if key is not None else None
    if entry is None:
        entry = _compile(source, target, options, backend.binary_ext, refuse)
        if key is not None:
            artifact_cache.write(directory, key, entry)
    return Artifact(entry.kind, entry.entry, entry.payload, variant.parameters, entry.metadata)


def gpu_target(backend: str, architecture: int | str, warp_size: int) -> Any:
    """Triton's ``GPUTarget``, as ("cuda", 90, 32) or ("hip", "gfx942", 64). Imports Triton."""
    from triton.backends.compiler import GPUTarget

    return GPUTarget(backend, architecture, warp_size)


def compile_options(variant: Variant) -> dict[str, Hashable]:
    """The variant's options; whether a multiply and an add may fuse is always said, for Triton's default changes."""
    return {"enable_fp_fusion": True, **dict(variant.options)}


def ast_source(variant: Variant, target: Any) -> Any:
    """Triton's ``ASTSource`` of a variant.

    Its signature lists every parameter in order: a type, a tuple of types for a tuple parameter, or "constexpr" for a
    constant and for a value that was specialised away, which is 1. Constants and attributes are keyed by position, an
    element of a tuple by (position, element). Raises `CompileError` where the declaration and the function differ.
    """
    from triton import JITFunction
    from triton.compiler import ASTSource

    refuse = functools.partial(CompileError, variant.kernel.name, f"{target.backend}:{target.arch}")
    function = variant.kernel.jit()
    if not isinstance(function, JITFunction):
        raise refuse(f"its source gave a {type(function).__name__}, not a triton.jit function")
    declared = list(variant.kernel.parameters)
    if declared != list(function.arg_names):
        raise refuse(f"declared parameters {declared} are not the source's {function.arg_names}")
    types = {parameter.name: parameter.type if parameter.kept else "constexpr" for parameter in variant.parameters}
    constants = dict(variant.constants)
    signature: dict[str, Any] = {}
    constexprs: dict[tuple[int, ...], Any] = {}
    paths: dict[str, tuple[int, ...]] = {}
    for index, (parameter, kind) in enumerate(variant.kernel.parameters.items()):
        paths[parameter] = (index,)
        if parameter in constants:
            signature[parameter] = "constexpr"
            constexprs[index,] = _constant(constants.pop(parameter))
        elif kind == "ints":
            elements = [element for element in types if element.startswith(parameter + ".")]
            paths.update({element: (index, i) for i, element in enumerate(elements)})
            signature[parameter] = tuple(types[element] for element in elements)
        elif parameter in types:
            signature[parameter] = types[parameter]
        else:
            raise refuse(f"parameter {parameter!r} has neither a type nor a constant")
    unknown = sorted([*constants, *(types.keys() - paths.keys())])
    if unknown:
        raise refuse(f"{unknown} are no parameters of it")
    constexprs.update({paths[parameter.name]: 1 for parameter in variant.parameters if not parameter.kept})
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for parameter, attribute, value in variant.attributes:
        attributes.setdefault(paths[parameter], []).append([attribute, value])
    return ASTSource(function, signature, constexprs, attributes)


def prewarm() -> None:
    """Imports Triton and reads its installation, which the first compile would else do; made for a thread of its own.

    Raises nothing: whatever is broken, the first compile meets it again and raises it to its caller.
    """
    with contextlib.suppress(Exception):
        from triton.compiler import ASTSource  # noqa: F401  (the import is the work)

        artifact_cache.toolchain_key()


def _constant(value: Any) -> Any:
    return value.jit() if hasattr(value, "jit") else value


def _refuse_variables(refuse: Refuse) -> None:
    from triton import knobs

    if knobs.runtime.interpret:
        raise refuse('TRITON_INTERPRET is set: unset it; device "reference" interprets kernels without it')
    if knobs.runtime.override_arch:
        raise refuse(f"TRITON_OVERRIDE_ARCH={knobs.runtime.override_arch} is set, which is for another GPU: unset it")


def _parse_options(target: Any, options: dict[str, Hashable], refuse: Refuse) -> tuple[Any, Any]:
    from triton.compiler.compiler import make_backend

    try:
        backend = make_backend(target)
        parsed = backend.parse_options(dict(options))
    except Exception as error:
        raise refuse(f"{type(error).__name__}: {error}") from error
    unknown = sorted(option for option in options if not hasattr(parsed, option))
    if unknown:  # Triton drops them without a word
        raise refuse(f"this Triton has no option {', '.join(unknown)} for the target")
    return backend, parsed


def _compiler_is_watched() -> bool:
    """Whether somebody dumps, replaces or inspects what the compiler makes: then every compile is a real one."""
    from triton import knobs

    compilation = knobs.compilation
    return bool(
        compilation.always_compile
        or compilation.override
        or compilation.dump_ir
        or compilation.use_ir_loc
        or knobs.runtime.add_stages_inspection_hook is not None
    )


def _cache_key(source: Any, backend: Any, options: Any) -> str:
    from triton._C.libtriton import get_cache_invalidating_env_vars

    toolchain = artifact_cache.toolchain_key()
    named = any(os.environ.get(name) for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"))
    # A backend's hash asks its assembler for its version; the one that Triton ships has been named already.
    shipped = toolchain.startswith(artifact_cache.RECORDED) and not named
    tools = repr(backend.target) if shipped else backend.hash()
    environment = sorted(get_cache_invalidating_env_vars().items())
    parts = (toolchain, source.hash(), tools, options.hash(), str(environment))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _compile(source: Any, target: Any, options: dict[str, Hashable], kind: str, refuse: Refuse) -> Entry:
    import triton

    def run() -> Any:
        return triton.compile(source, target=target, options=dict(options))

    try:
        try:
            compiled = run()
        except OSError as error:  # a full or withdrawn disk: Triton writes each stage into its cache
            artifact_cache.use_private_directory(triton.knobs.cache.dir, error)
            compiled = run()
    except Exception as error:
        raise refuse(_explain(error)) from error
    metadata = {name: getattr(compiled.metadata, name, default) for name, default in _METADATA.items()}
    version = re.search(r"^\.version (\d+\.\d+)", compiled.asm.get("ptx", ""), re.MULTILINE)
    metadata["ptx_version"] = version.group(1) if version else None
    return Entry(kind, compiled.metadata.name, compiled.asm[kind], metadata)


def _explain(error: BaseException) -> str:
    """The error and its causes: where a kernel calls another, Triton's outer error only says where."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    text = "\n".join(f"{type(one).__name__}: {one}" for one in chain)
    unknown = re.search(r"Value '(sm_\w+)' is not defined for option 'gpu-name'", text)
    if unknown:
        import triton

        text = (
            f"the ptxas of Triton {triton.__version__} does not know {unknown.group(1)}: upgrade triton, or let "
            "TRITON_PTXAS_PATH and TRITON_PTXAS_BLACKWELL_PATH name the ptxas of a newer CUDA toolkit\n" + text
        )
    return text
