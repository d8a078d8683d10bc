"""The safetensors format: a checked, memory-mapped reader, an atomic writer, and upload to a device.

Layout (safetensors' README, "Format"): 8 bytes, the header's length N, little-endian; N bytes of JSON that map a
tensor's name to ``dtype``, ``shape`` and ``data_offsets`` (begin, end), and ``__metadata__`` to strings; then the
tensors' bytes, little-endian and in C order, which the offsets cover without overlap or hole.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import secrets
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np

from nbxtensor import host
from nbxtensor.dtype import DType, DTypeLike, dtype, from_safetensors
from nbxtensor.errors import ArgumentError, DTypeError, FileFormatError
from nbxtensor.tensor import DeviceLike, NBXTensor, from_numpy

__all__ = ["Entry", "SafeTensors", "load", "open", "save"]

Array = np.ndarray[Any, Any]

#: The format's limit for the header, in bytes.
MAX_HEADER = 100_000_000

#: Dimensions that every supported numpy can hold.
MAX_DIMENSIONS = 32

#: The writer puts the first tensor at a multiple of this many bytes.
DATA_ALIGNMENT = 64

_INT64_MAX = 2**63 - 1


class Entry(NamedTuple):
    """What the header states of one tensor; ``begin`` and ``end`` are byte offsets from the end of the header."""

    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


class SafeTensors(Mapping[str, Array]):
    """An open file: a mapping from names, in the file's order, to read-only numpy arrays that lie on the memory map.

    ``entries`` holds dtype, shape and offsets of each tensor, ``metadata`` the file's strings. Made by `open`, which
    has checked all of it. An array keeps the map alive, so it outlasts `close` and the ``with`` block; the file must
    not be truncated or written to meanwhile (the system answers a read past its end with SIGBUS).

    A tensor whose bytes do not start at a multiple of its itemsize, which old writers produced, is copied when it is
    asked for; no other one is.
    """

    def __init__(self, path: str, data: Array, entries: Mapping[str, Entry], metadata: Mapping[str, str]):
        self.path = path
        self.entries = MappingProxyType(dict(entries))
        self.metadata = MappingProxyType(dict(metadata))
        self._data: Array | None = data

    def __getitem__(self, name: str) -> Array:
        """The tensor of that name. Raises `KeyError` for an unknown name, `FileFormatError` for a bool that is neither
        0 nor 1, and `ArgumentError` when the file is closed."""
        if self._data is None:
            raise ArgumentError("SafeTensors", "name", name, f"{self.path} is closed")
        entry = self.entries[name]
        raw = self._data[entry.begin : entry.end]
        if entry.dtype.kind == "bool" and raw.size and raw.max() > 1:
            raise FileFormatError("SafeTensors", "path", self.path, f"{name!r} holds a bool that is neither 0 nor 1")
        array = raw.view(entry.dtype.numpy).reshape(entry.shape)
        if not array.flags.aligned:
            array = array.copy()
            array.flags.writeable = False
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def close(self) -> None:
        """Lets go of the map, which ends with the last array on it. Idempotent."""
        self._data = None

    def __enter__(self) -> SafeTensors:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SafeTensors({self.path!r}, {len(self)} tensors{', closed' if self._data is None else ''})"


def open(path: str | os.PathLike[str]) -> SafeTensors:
    """Maps a file and checks its whole header; no tensor's bytes are read.

    Raises `FileFormatError`, which names the path and the rule, for a file that cannot be read, is truncated or breaks
    the format in any way, or that uses a dtype without an nbxtensor equivalent.
    """
    name = os.fspath(path)
    try:
        # Opening a pipe would wait for its writer.
        if not stat.S_ISREG(os.stat(name).st_mode):
            _refuse(name, "is not a regular file")
        with Path(name).open("rb") as file:
            return _read(name, file)
    except (OSError, ValueError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError("safetensors.open", "path", name, f"cannot be read: {_reason(error)}") from error


def load(
    path: str | os.PathLike[str], device: DeviceLike = None, dtype: DTypeLike | None = None
) -> dict[str, NBXTensor]:
    """Every tensor of a file, by name, on ``device`` (None: the current one).

    ``dtype``, a floating dtype, replaces that of the floating tensors; integers and bools keep theirs. On a device that
    reads host memory a tensor that needs no conversion stays on the memory map and is read-only; elsewhere its bytes go
    from the map to the device. Raises as `open` does, `DTypeError`, and what the device raises.
    """
    target = _floating(dtype)
    with open(path) as file:
        tensors = {}
        for name, array in file.items():
            if target is not None and file.entries[name].dtype.kind == "float":
                array = host.convert(array, target)
            tensors[name] = from_numpy(array, device=device, copy=None)
        return tensors


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Array | NBXTensor],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a file, wholly or not at all: it is built beside ``path``, which it then replaces.

    Arrays and tensors are written in C order, wide dtypes first and by name, so that each is aligned to its dtype.
    Raises `ArgumentError` for names and metadata that are no strings, `DTypeError` for dtypes that the format lacks
    (complex128), foreign byte order and objects, and `OSError`.
    """
    named = {_text("tensors", name): _host_array(tensor) for name, tensor in tensors.items()}
    if "__metadata__" in named:
        raise ArgumentError("safetensors.save", "tensors", "__metadata__", "is the format's own name; pass metadata=")
    notes = {_text("metadata", key): _text("metadata", value) for key, value in (metadata or {}).items()}
    ordered = sorted(named.items(), key=lambda item: (-item[1][0].itemsize, item[0]))
    header: dict[str, Any] = {"__metadata__": notes} if notes else {}
    offset = 0
    for name, (kind, array) in ordered:
        header[name] = {
            "dtype": kind.safetensors,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % DATA_ALIGNMENT)
    if len(text) > MAX_HEADER:
        raise ArgumentError(
            "safetensors.save", "tensors", len(text), f"the header would exceed the format's {MAX_HEADER} bytes"
        )
    _write(os.fspath(path), text, [array for _, (_, array) in ordered])


def _write(path: str, header: bytes, arrays: list[Array]) -> None:
    beside = f"{path}.{secrets.token_hex(4)}.part"
    try:
        with Path(beside).open("xb") as file:
            file.write(len(header).to_bytes(8, "little"))
            file.write(header)
            file.writelines(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def _host_array(tensor: Array | NBXTensor) -> tuple[DType, Array]:
    array = tensor.numpy() if isinstance(tensor, NBXTensor) else np.asarray(tensor)
    kind = dtype(array.dtype, where="safetensors.save", argument="tensors")
    if kind.safetensors is None:
        raise DTypeError("safetensors.save", "tensors", kind, "the format has no such dtype")
    return kind, array


def _text(argument: str, value: object) -> str:
    if not isinstance(value, str) or not _is_unicode(value):
        raise ArgumentError("safetensors.save", argument, value, "names and metadata are strings of Unicode text")
    return value


def _is_unicode(text: str) -> bool:
    """Whether the string encodes: JSON's escapes, and Python, allow half a surrogate pair, UTF-8 does not."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _floating(wanted: DTypeLike | None) -> DType | None:
    if wanted is None:
        return None
    target = dtype(wanted, where="safetensors.load")
    if target.kind != "float":
        raise DTypeError("safetensors.load", "dtype", target, "must be a floating dtype")
    return target


# Reading the header


class _Broken(Exception):
    """A rule of the format that the header breaks."""


def _refuse(path: str, rule: str) -> NoReturn:
    raise FileFormatError("safetensors.open", "path", path, rule)


def _reason(error: OSError | ValueError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _read(path: str, file: BinaryIO) -> SafeTensors:
    if sys.byteorder != "little":
        _refuse(path, "the format is little-endian, this machine is not")
    size = os.fstat(file.fileno()).st_size
    if size < 8:
        _refuse(path, f"has {size} bytes; the header's length alone takes 8")
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER:
        _refuse(path, f"states a header of {length} bytes; the format allows {MAX_HEADER}")
    if length > size - 8:
        _refuse(path, f"states a header of {length} bytes; {size - 8} follow")
    try:
        entries, metadata = _parse(file.read(length), size - 8 - length)
    except _Broken as broken:
        _refuse(path, str(broken))
    mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    return SafeTensors(path, np.frombuffer(mapped, np.uint8)[8 + length :], entries, metadata)


def _parse(header: bytes, data_bytes: int) -> tuple[dict[str, Entry], dict[str, str]]:
    """The header's tensors and metadata, checked against the number of bytes after the header. Raises `_Broken`."""
    try:
        parsed = json.loads(
            header.decode("utf-8"), object_pairs_hook=_object, parse_int=_integer, parse_constant=_constant
        )
    except UnicodeDecodeError as error:
        raise _Broken(f"the header is not UTF-8: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise _Broken(f"the header is not JSON: {error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise _Broken("the header is not JSON of the format: it is nested too deeply") from error
    if not isinstance(parsed, dict):
        raise _Broken(f"the header is a JSON {type(parsed).__name__}, not an object")
    metadata = _metadata(parsed.pop("__metadata__", None))
    entries = {name: _entry(name, value) for name, value in parsed.items()}
    _check_coverage(entries, data_bytes)
    return entries, metadata


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _Broken(f"the header has the key {_short(twice)} twice")
    for key in result:
        if not _is_unicode(key):
            raise _Broken(f"the header's key {_short(key)} is not Unicode text")
    return result


def _integer(text: str) -> int:
    if len(text) > 20 or text == "-0":
        raise _Broken(f"the header's number {text[:24]} is no integer of 64 bits")
    return int(text)


def _constant(text: str) -> NoReturn:
    raise _Broken(f"the header is not JSON: {text} is no number")


def _metadata(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) and _is_unicode(text) for text in value.values()):
        raise _Broken("__metadata__ is not an object of strings")
    return value


def _entry(name: str, value: object) -> Entry:
    what = f"tensor {_short(name)}"
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        raise _Broken(f"{what} is not an object with dtype, shape and data_offsets")
    try:
        kind = from_safetensors(value["dtype"])
    except (DTypeError, TypeError):
        raise _Broken(f"{what} has the dtype {_short(value['dtype'])}, which nbxtensor does not know") from None
    shape, offsets = value["shape"], value["data_offsets"]
    if not _is_counts(shape):
        raise _Broken(f"{what} has the shape {_short(shape)}, not a list of integers from 0 to {_INT64_MAX}")
    if len(shape) > MAX_DIMENSIONS:
        raise _Broken(f"{what} has {len(shape)} dimensions; at most {MAX_DIMENSIONS} are supported")
    if not _is_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _Broken(f"{what} has the data_offsets {_short(offsets)}, not [begin, end] with 0 <= begin <= end")
    # Zeros do not excuse the other sizes: their product must fit, as it must for strides.
    if math.prod(size or 1 for size in shape) * kind.itemsize > _INT64_MAX:
        raise _Broken(f"{what} has the shape {_short(shape)}, whose size overflows 64 bits")
    begin, end = offsets
    nbytes = math.prod(shape) * kind.itemsize
    if end - begin != nbytes:
        raise _Broken(f"{what} has {end - begin} bytes; {kind.name} of shape {shape} takes {nbytes}")
    return Entry(kind, tuple(shape), begin, end)


def _is_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item <= _INT64_MAX for item in value)


def _check_coverage(entries: Mapping[str, Entry], data_bytes: int) -> None:
    """The tensors, in the order of their offsets, follow each other from 0 to the end of the file."""
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != position:
            fault = "overlaps the tensor before it" if entry.begin < position else "leaves a hole before it"
            raise _Broken(f"tensor {_short(name)} begins at byte {entry.begin} instead of {position}: it {fault}")
        position = entry.end
    if position > data_bytes:
        raise _Broken(f"the tensors take {position} bytes; {data_bytes} follow the header: the file is truncated")
    if position < data_bytes:
        raise _Broken(f"the tensors take {position} bytes; {data_bytes} follow the header")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
