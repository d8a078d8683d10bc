"""Builds the stand-in libcuda.so.1, whole or without some functions, and the stub of a toolkit."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import tempfile
from pathlib import Path

from nbxtensor.backend.cuda import library

HERE = Path(__file__).parent
SONAME = library.SONAME


def header_folder() -> Path:
    """The folder with NVIDIA's ``cuda.h``, which Triton's wheel ships."""
    spec = importlib.util.find_spec("triton")
    assert spec is not None and spec.submodule_search_locations, "Triton's wheel, which has cuda.h, is not installed"
    return Path(spec.submodule_search_locations[0], "backends/nvidia/include")


def standin(without: tuple[str, ...] = ()) -> Path:
    """The path of a built ``libcuda.so.1`` that does not export the functions ``without``."""
    hidden = "".join(f" {name};" for name in without)
    script = f"{{ global: cu*; standin_*; local:{hidden} *; }};\n"
    return _built([*sorted(HERE.glob("*.[ch]"))], script)


def stub() -> Path:
    """A ``libcuda.so.1`` as toolkits ship it to link against: every function answers CUDA_ERROR_STUB_LIBRARY."""
    source = "".join(f"int {name}(void) {{ return 34; }}\n" for name in library.functions())
    return _built([source], "{ global: cu*; };\n")


def _built(sources: list[Path] | list[str], script: str) -> Path:
    texts = [source if isinstance(source, str) else source.read_text("utf-8") for source in sources]
    key = hashlib.sha256("\0".join([*texts, script, str(header_folder()), str(os.getuid())]).encode()).hexdigest()[:20]
    folder = Path(tempfile.gettempdir(), f"nbxtensor-standin-cuda-{key}")
    path = folder / SONAME
    if path.exists():
        return path
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        files = [source for source in sources if isinstance(source, Path) and source.suffix == ".c"]
        if not files:
            files = [Path(scratch, "stub.c")]
            files[0].write_text(texts[0], "utf-8")
        Path(scratch, "exports").write_text(script, "utf-8")
        command = ["gcc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        command += [f"-I{header_folder()}", f"-Wl,--version-script={scratch}/exports", f"-Wl,-soname,{SONAME}"]
        command += ["-o", f"{scratch}/{SONAME}", *map(str, files), "-lpthread"]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, f"{' '.join(command)}\n{result.stderr}"
        os.replace(f"{scratch}/{SONAME}", path)  # another process may have been faster: it built the same
    return path
