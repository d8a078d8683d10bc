"""Finding, opening and binding the driver's library. Nothing is opened before `load` is called."""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from nbxtensor.backend.cuda import errors
from nbxtensor.backend.cuda import ffi as declared
from nbxtensor.errors import DriverError, MissingSymbol, Unavailable

#: Names the library in place of the search.
VARIABLE = "NBXTENSOR_LIBCUDA"

SONAME = "libcuda.so.1"
WSL = "/usr/lib/wsl/lib"

# Where distributions, containers and WSL put the library, when the dynamic linker's own cache does not know it.
_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/nvidia",
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/usr/lib",
    "/usr/lib/nvidia",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/run/opengl-driver/lib",
    WSL,
)
_FUNCTION = re.compile(r"^CUresult (\w+)\(", re.MULTILINE)
_lock = threading.Lock()
_loaded: Library | None = None
_exiting = False


@atexit.register  # runs before the handlers of modules that were imported earlier, the owners of contexts among them
def _exit() -> None:
    global _exiting
    _exiting = True


class Library:
    """The started driver. Its functions are attributes under their C names; they raise `DriverError` or succeed.

    Attributes: ``raw`` (the unchecked functions), ``ffi``, ``path`` (the file that is mapped), ``version`` (of CUDA, as
    12080), ``owner`` (the process that started it). A function that this driver lacks raises `MissingSymbol`.
    """

    def __init__(self, ffi: Any, raw: Any, path: str):
        self.ffi, self.raw, self.path, self.owner = ffi, raw, path, os.getpid()
        self.lost: int | None = None  # the code of a fault that ended the primary context, once it was reported
        self._names = {name for name in functions() if _exports(ffi, raw, name)}
        for name in self._names:
            setattr(self, name, self._checked(name, getattr(raw, name)))
        self.version = self.integer(self.cuDriverGetVersion)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cu"):
            raise MissingSymbol(name, self.path)
        raise AttributeError(name)

    def has(self, *names: str) -> bool:
        """Whether the driver has all these functions."""
        return self._names.issuperset(names)

    def provides(self, feature: str) -> bool:
        """Whether the driver has all functions of a feature of `nbxtensor.backend.cuda.ffi.OPTIONAL`."""
        return self.has(*_FUNCTION.findall(declared.OPTIONAL[feature].declarations))

    def integer(self, function: Callable[..., None], *arguments: Any, type: str = "int") -> int:
        """The integer that a function writes through its first parameter."""
        out = self.ffi.new(f"{type} *")
        function(out, *arguments)
        return int(out[0])

    def failure(self, call: str, code: int) -> DriverError:
        """The error for a call that returned ``code``."""
        if code == declared.CUDA_ERROR_NOT_INITIALIZED and os.getpid() != self.owner:
            text = str(errors.after_fork(self.owner))
        else:
            text = self._text(self.raw.cuGetErrorString, code)
            if code in errors.ADVICE:
                text += f": {errors.ADVICE[code]}"
            if code in errors.STICKY:
                self.lost = code
        return DriverError(call, code, self.name(code), text)

    def gone_at_exit(self, code: int) -> bool:
        """Whether the code only says that the process ends and the driver was gone first."""
        destroyed = code == declared.CUDA_ERROR_CONTEXT_IS_DESTROYED and (_exiting or sys.is_finalizing())
        return destroyed or code == declared.CUDA_ERROR_DEINITIALIZED

    def name(self, code: int) -> str:
        """The name of an error code."""
        return self._text(self.raw.cuGetErrorName, code)

    def _text(self, function: Callable[..., int], code: int) -> str:
        out = self.ffi.new("char **")
        if function(code, out) or out[0] == self.ffi.NULL:
            return "unknown error"
        return str(self.ffi.string(out[0]).decode())

    def _checked(self, name: str, function: Callable[..., int]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            code = function(*arguments)
            if code:
                raise self.failure(name, code)

        return call


def _exports(ffi: Any, raw: Any, name: str) -> bool:
    try:
        getattr(raw, name)
    except (AttributeError, ffi.error):
        return False
    return True


def functions() -> list[str]:
    """The names of all declared functions."""
    return _FUNCTION.findall(declared.declarations())


def load() -> Library:
    """The started driver, found once a process.

    Raises `Unavailable` where none can be used, `MissingSymbol` where it lacks a function that nothing works without.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _start()
        if _loaded.owner != os.getpid():
            raise errors.after_fork(_loaded.owner)
        return _loaded


def candidates() -> Iterator[str]:
    """What to hand to dlopen, in order: `VARIABLE` alone where it is set; else WSL's library on WSL, the name as the
    dynamic linker resolves it, and then files by their full path, which finds what a library of the same name hides."""
    named = os.environ.get(VARIABLE)
    if named:
        yield named
        return
    if os.path.exists("/dev/dxg"):
        yield f"{WSL}/{SONAME}"
    yield SONAME
    for folder in (*os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep), *_FOLDERS):
        if os.path.isabs(folder) and os.path.exists(file := f"{folder}/{SONAME}"):
            yield file


def _start() -> Library:
    from nbxtensor.backend.cuda import _bindings

    ffi: Any = _bindings.ffi

    tried: list[str] = []
    seen: set[str] = set()
    for candidate in candidates():
        if os.path.realpath(candidate) in seen:
            continue
        try:
            raw = ffi.dlopen(candidate)
        except OSError as error:
            tried.append(f"{candidate}: {str(error).removeprefix(f'cannot load library {candidate!r}: ')}")
            continue
        for name in _FUNCTION.findall(declared.REQUIRED):
            if not _exports(ffi, raw, name):
                raise MissingSymbol(name, candidate)
        path = mapped_path(int(ffi.cast("uintptr_t", ffi.addressof(raw, "cuInit")))) or candidate
        seen.add(os.path.realpath(path))
        code = raw.cuInit(0)
        if code == declared.CUDA_ERROR_STUB_LIBRARY:
            tried.append(f"{path}: a stub to link against, from a toolkit; it is not the driver")
            continue
        return _usable(ffi, raw, path, code)
    raise Unavailable("no library", f"no usable {SONAME}; tried " + "; ".join(tried), _fix(tried))


def _usable(ffi: Any, raw: Any, path: str, code: int) -> Library:
    """The library, unless cuInit failed with ``code`` or its driver is too old."""
    if code:
        out = ffi.new("char **")
        unknown = raw.cuGetErrorName(code, out) or out[0] == ffi.NULL
        raise errors.at_start(code, "unknown error" if unknown else ffi.string(out[0]).decode(), path)
    library = Library(ffi, raw, path)
    if library.version < errors.MINIMUM_VERSION:
        supported, needed = errors.spell_version(library.version), errors.spell_version(errors.MINIMUM_VERSION)
        raise Unavailable(
            "driver too old",
            f"the driver at {path} supports CUDA {supported}; kernels need {needed} or later",
            "install a newer NVIDIA driver: https://www.nvidia.com/drivers",
        )
    return library


def _fix(tried: list[str]) -> str:
    if os.environ.get(VARIABLE):
        return f"unset {VARIABLE}  # now {os.environ[VARIABLE]!r}"
    stubs = any(": a stub" in one for one in tried)
    remove = "remove the toolkit's stubs directory from LD_LIBRARY_PATH\n" if stubs else ""
    return f"{remove}install NVIDIA's driver, or let {VARIABLE} name its {SONAME}"


def mapped_path(address: int) -> str | None:
    """The file that is mapped at an address of this process, as the kernel says it."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            for line in maps:
                fields = line.split(maxsplit=5)
                start, end = (int(part, 16) for part in fields[0].split("-"))
                if start <= address < end and len(fields) == 6:
                    return fields[5].rstrip("\n")
    except OSError:
        return None
    return None
