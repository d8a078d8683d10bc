"""The disk cache of compiled kernels: one file an entry, beside Triton's own cache.

A stock ``triton.compile`` names its entries by a hash over every file of the installation: half a second a process,
even when the entry exists. An installed wheel lists those hashes in its RECORD; entries here are named by that.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import shutil
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any, NamedTuple

RECORDED = "record "

_MAGIC = b"nbx-artifact-1\n"
_DIGEST = hashlib.sha256().digest_size
_CODE = (".py", ".so", ".bc", ".pyd")  # files of the Triton package that decide what a kernel is compiled to
_lock = threading.Lock()
_checked: set[str] = set()  # directories found writable by this process
_warned: set[str] = set()


class Entry(NamedTuple):
    """What an entry holds. ``metadata`` is what JSON can say."""

    kind: str
    entry: str
    payload: bytes
    metadata: dict[str, Any]


def read(directory: str, key: str) -> Entry | None:
    """The entry, or None where there is none or where its bytes are not the ones that were written."""
    try:
        content = _path(directory, key).read_bytes()
    except OSError:
        return None
    start = len(_MAGIC) + _DIGEST
    if content[: len(_MAGIC)] != _MAGIC or hashlib.sha256(content[start:]).digest() != content[len(_MAGIC) : start]:
        return None
    size = int.from_bytes(content[start : start + 4], "little")
    header = json.loads(content[start + 4 : start + 4 + size])
    return Entry(header["kind"], header["entry"], content[start + 4 + size :], header["metadata"])


def write(directory: str, key: str, entry: Entry) -> None:
    """Writes the entry whole or not at all. A failure costs the next process a compile, so it is a warning, once."""
    header = json.dumps({"kind": entry.kind, "entry": entry.entry, "metadata": entry.metadata}).encode()
    body = len(header).to_bytes(4, "little") + header + entry.payload
    path = _path(directory, key)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(body).digest() + body)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        _warn_once(f"{path.parent} cannot be written ({error}); set TRITON_CACHE_DIR to a directory that can")


def directory() -> str:
    """Triton's cache directory; a private temporary one, after a warning, where that cannot be written."""
    from triton import knobs

    named: str = knobs.cache.dir
    if named not in _checked:
        try:
            os.makedirs(named, exist_ok=True)
            with tempfile.TemporaryFile(dir=named):
                pass
        except OSError as error:
            return use_private_directory(named, error)
        _checked.add(named)
    return named


def use_private_directory(named: str, error: OSError) -> str:
    """Makes this process, Triton included, cache in a temporary directory in place of ``named``; the new directory."""
    from triton import knobs

    with _lock:
        if knobs.cache.dir != named:  # another thread was here first
            return str(knobs.cache.dir)
        private = tempfile.mkdtemp(prefix="nbxtensor-cache-")
        atexit.register(_remove, private, os.getpid())
        knobs.cache.dir = private
        _checked.add(private)
    _warn_once(
        f"the cache directory {named} cannot be written ({error}); compiled kernels are kept in {private} until this "
        "process ends. Set TRITON_CACHE_DIR to a directory that can be written"
    )
    return private


@functools.lru_cache(maxsize=1)
def toolchain_key() -> str:
    """Names the installed Triton: `RECORDED` and the hash of its RECORD, which covers the tools that it ships; or
    Triton's own hash over its code, where the files are not those that RECORD lists (an editable or edited one)."""
    import triton

    record = _record(Path(triton.__file__).parent)
    if record is not None:
        return RECORDED + hashlib.sha256(record).hexdigest()
    from triton.runtime.cache import triton_key

    return str(triton_key())


def _record(package: Path) -> bytes | None:
    """The RECORD that brought the package, when size and time of each of its code files agree with it."""
    found = []
    for path in package.parent.glob("*triton*.dist-info/RECORD"):
        content = path.read_bytes()
        rows = [line.rsplit(",", 2) for line in content.decode().splitlines() if line.startswith(package.name + "/")]
        if rows:
            found.append((path, content, rows))
    if len(found) != 1:
        return None
    path, content, rows = found[0]
    written = path.stat().st_mtime_ns  # an installer writes RECORD last
    for name, _, size in rows:
        if name.endswith(_CODE) or "/bin/" in name:
            try:
                status = os.stat(package.parent / name)
            except OSError:
                return None
            if status.st_size != int(size or -1) or status.st_mtime_ns > written:
                return None
    return content


def _path(directory: str, key: str) -> Path:
    return Path(directory, "nbxtensor", key[:2], key[2:])


def _remove(private: str, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child
        shutil.rmtree(private, ignore_errors=True)


def _warn_once(text: str) -> None:
    with _lock:
        if text in _warned:
            return
        _warned.add(text)
    warnings.warn(text, RuntimeWarning, stacklevel=3)
