"""Reading a cubin: the parameters that its kernel really takes.

A cubin is an ELF file. The section ``.nv.info.<kernel>`` is a list of records of a format byte, an attribute byte and
two bytes that hold a value or, for format 4, the size of the data that follows. Attribute 0x17 describes one parameter:
index (4 bytes), ordinal (2), offset (2) and a word whose bits from 18 on are the size in bytes. (Source: binaries of
ptxas 12.8 to 13.4, compared with their PTX.)
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_MACHINE_CUDA = 190
_WITHOUT_BYTES = 8  # a section that takes none of the file
_SIZED, _PARAMETER = 4, 0x17


class BinaryParameter(NamedTuple):
    """Where the kernel expects a parameter, and its size, in bytes."""

    offset: int
    size: int


def parameters(image: bytes, entry: str) -> list[BinaryParameter]:
    """The parameters of kernel ``entry`` in order. Raises `ValueError` when the image is no cubin that holds it."""
    try:
        found = dict(_parameter_records(_section(image, f".nv.info.{entry}".encode())))
    except (struct.error, IndexError) as error:
        raise ValueError(f"the cubin is cut off or damaged: {error}") from error
    if sorted(found) != list(range(len(found))):
        raise ValueError(f"the cubin describes the parameters {sorted(found)} of {entry}")
    return [found[ordinal] for ordinal in range(len(found))]


def _section(image: bytes, name: bytes) -> bytes:
    if image[:4] != b"\x7fELF" or struct.unpack_from("<H", image, 18)[0] != _MACHINE_CUDA:
        raise ValueError("the image is not a cubin")
    segments, table = struct.unpack_from("<QQ", image, 32)
    segment_size, segment_count, entry_size, count, names_index = struct.unpack_from("<HHHHH", image, 54)
    end = max(segments + segment_size * segment_count, table + entry_size * count)

    def header(index: int) -> tuple[int, int, int, int]:
        """Offset of the name, kind, offset and size of a section."""
        at = table + index * entry_size
        return *struct.unpack_from("<II", image, at), *struct.unpack_from("<QQ", image, at + 24)

    names, found = header(names_index)[2], None
    for index in range(count):
        name_at, kind, offset, size = header(index)
        end = max(end, 0 if kind == _WITHOUT_BYTES else offset + size)
        if image.startswith(name + b"\0", names + name_at):
            found = image[offset : offset + size]
    if end > len(image):
        raise ValueError(f"the cubin is cut off: it has {len(image)} bytes of {end}")
    if found is None:
        raise ValueError(f"the cubin has no section {name.decode()}")
    return found


def _parameter_records(info: bytes) -> list[tuple[int, BinaryParameter]]:
    records = []
    at = 0
    while at < len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _SIZED:
            if attribute == _PARAMETER:
                _, ordinal, offset, packed = struct.unpack_from("<IHHI", info, at)
                records.append((ordinal, BinaryParameter(offset, packed >> 18)))
            at += value
    return records
