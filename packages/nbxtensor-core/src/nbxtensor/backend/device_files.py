"""Device files: the facts of a class of devices, each with its source.

A file ``devices/<vendor>/<name>.yml`` is the profile ``<vendor>/<name>``. Its top level holds

- ``title``: what the file describes, plain text;
- ``inherits``: a profile whose facts hold here too, unless this file states them itself;
- ``architectures``: the architecture names that the file serves ("sm_90", "gfx942", "bmg", "reference");
- ``pci_ids``: PCI device ids of the vendor, as "0xe20b";
- sections of facts (see `SECTIONS`).

Everything but ``title`` and ``inherits`` is ``{value, source}``. A source is a document and its section, an address, or
how the value was measured. What varies inside one architecture (compute units, bandwidth, memory) is no fact: it is
asked of the device. A missing fact is a `MissingFact` that names the file, the key and who asked; nothing is guessed.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from nbxtensor.backend.contract import DeviceInfo
from nbxtensor.errors import ArgumentError, FileFormatError, MissingFact

#: The folder that core ships.
FOLDER = Path(__file__).with_name("devices")

#: Sections of facts, and what the facts of each are: "count" (an integer above 0), "flag" (true or false), "tolerance"
#: (a number of at least 0), "fraction" (between 0 and 1). Sizes are bytes, blocks are elements. Exceptions: `KINDS`.
SECTIONS = {
    "autotune_screen_rtol": "tolerance",  # by dtype: the largest relative error a candidate may have
    "elementwise": "count",
    "flash": "count",
    "gemm": "count",
    "limits": "count",
    "memory": "count",
    "precision": "flag",  # by dtype: the device has arithmetic of this type
    "reduction": "count",
    "rows": "count",  # kernels that hold a whole row in one tile: softmax, norms
}
KINDS = {"limits.max_grid": "grid", "flash.pow2_head_dim_correct": "flag"}

_LISTS = {"architectures": re.compile(r"[a-z][a-z0-9_]*"), "pci_ids": re.compile(r"0x[0-9a-f]{4}")}
_PROFILE = re.compile(r"[a-z0-9_]+/[a-z0-9_]+")
_KEY = re.compile(r"[a-z][a-z0-9_]*")


class Fact(NamedTuple):
    """A value, its source, and the file that states it."""

    value: Any
    source: str
    path: Path


class Facts:
    """The facts of one profile. ``facts["gemm.block_m"]`` is a value; attributes ``profile`` and ``path``."""

    __slots__ = ("_facts", "_own_lists", "path", "profile")

    def __init__(self, profile: str, path: Path, facts: dict[str, Fact], own_lists: dict[str, tuple[str, ...]]):
        self.profile, self.path, self._facts, self._own_lists = profile, path, facts, own_lists

    def __getitem__(self, key: str) -> Any:
        """The value of ``section.name``. Raises `MissingFact` naming the file, the key and the caller."""
        found = self._facts.get(key)
        if found is None:
            raise MissingFact(_caller(), "fact", key, f"{self.path} does not state it")
        return found.value

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a fact, or ``default`` where the file does not state it."""
        found = self._facts.get(key)
        return default if found is None else found.value

    def fact(self, key: str) -> Fact:
        """The fact with its source. Raises `MissingFact`."""
        found = self._facts.get(key)
        if found is None:
            raise MissingFact(_caller(), "fact", key, f"{self.path} does not state it")
        return found

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures that the file itself serves; they are not inherited."""
        return self._own_lists.get("architectures", ())

    @property
    def pci_ids(self) -> tuple[str, ...]:
        """The PCI device ids that the file itself lists, as "0xe20b"."""
        return self._own_lists.get("pci_ids", ())

    def __contains__(self, key: object) -> bool:
        return key in self._facts

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._facts))

    def __len__(self) -> int:
        return len(self._facts)

    def __repr__(self) -> str:
        return f"Facts({self.profile!r}, {len(self)} facts, {str(self.path)!r})"


_lock = threading.RLock()
_cache: dict[tuple[Path, str], Facts] = {}
_folders: list[Path] = []
_local = threading.local()
_current: Callable[[], Facts] | None = None


def folders() -> tuple[Path, ...]:
    """The folders that are searched: core's, then those of third-party drivers in the order of `add_folder`."""
    return (FOLDER, *_folders)


def add_folder(folder: str | Path) -> None:
    """Adds a driver's own folder of device files (``<folder>/<vendor>/<name>.yml``). Raises `ArgumentError`."""
    path = Path(folder)
    if not path.is_dir():
        raise ArgumentError("device_files.add_folder", "folder", str(folder), "is not a directory")
    with _lock:
        if path != FOLDER and path not in _folders:
            _folders.append(path)


def load(profile: str) -> Facts:
    """The facts of a profile, "nvidia/hopper". Raises `MissingFact` when no folder has it, `FileFormatError` when its
    file breaks a rule or two folders state the same profile."""
    if not isinstance(profile, str) or not _PROFILE.fullmatch(profile):
        raise ArgumentError("device_files.load", "profile", profile, 'is not of the form "<vendor>/<name>"')
    paths = [path for folder in folders() if (path := folder / f"{profile}.yml").is_file()]
    if not paths:
        raise MissingFact("device_files.load", "profile", profile, f"no such file in {_said(folders())}")
    if len(paths) > 1:
        raise FileFormatError("device_files.load", "profile", profile, f"is stated more than once: {_said(paths)}")
    return _read(paths[0].parents[1], profile, ())


def profiles(vendor: str | None = None) -> tuple[str, ...]:
    """The names of all profiles, or of one vendor's, sorted."""
    found = {
        f"{path.parent.name}/{path.stem}"
        for folder in folders()
        for path in folder.glob(f"{vendor or '*'}/*.yml")
        if not path.name.startswith(".")
    }
    return tuple(sorted(found))


def for_arch(architecture: str) -> Facts:
    """The facts of an architecture: "sm_90", "gfx942", "bmg", "reference".

    What an AMD architecture carries after a colon (":sramecc+") is not part of its name. Raises `MissingFact` when no
    file serves it.
    """
    if not isinstance(architecture, str) or not architecture:
        raise ArgumentError("device_files.for_arch", "architecture", architecture, "is not the name of an architecture")
    name = architecture.split(":")[0]
    found = [facts for facts in map(load, profiles(_vendor_of(name))) if name in facts.architectures]
    if not found:
        raise MissingFact(
            "device_files.for_arch", "architecture", architecture, f"no file of {_said(folders())} serves it"
        )
    if len(found) > 1:
        files = _said([facts.path for facts in found])
        raise FileFormatError(
            "device_files.for_arch", "architecture", architecture, f"is served by more than one file: {files}"
        )
    return found[0]


def for_pci(vendor: str, device_id: int) -> Facts | None:
    """The facts of the file of ``vendor`` ("amd", "intel") that lists a PCI device id, or None."""
    wanted = f"0x{device_id:04x}"
    return next((facts for facts in map(load, profiles(vendor)) if wanted in facts.pci_ids), None)


def for_device(info: DeviceInfo, folder: str | Path | None = None) -> Facts:
    """The facts of the profile that a device names, else of its architecture. ``folder``: its driver's own files."""
    if folder is not None:
        add_folder(folder)
    return load(info.profile) if info.profile is not None else for_arch(info.architecture)


def in_force() -> Facts:
    """The facts in force for this thread: of `set_in_force`, else of the current device. Raises `MissingFact`."""
    chosen: Facts | None = getattr(_local, "facts", None)
    if chosen is not None:
        return chosen
    if _current is None:
        raise MissingFact(
            _caller(), "device file", None, "no device is in use: name one with set_in_force(load(profile))"
        )
    return _current()


def set_in_force(facts: Facts | None) -> None:
    """Puts facts in force for this thread; None gives the word back to the current device."""
    _local.facts = facts


def serve_in_force(current: Callable[[], Facts]) -> None:
    """Registers who knows the facts of the current device; the runtime does, once."""
    global _current
    _current = current


def forget() -> None:
    """Drops every file that was read, and what was put in force for this thread; the next question reads again."""
    with _lock:
        _cache.clear()
    _local.facts = None


def _vendor_of(architecture: str) -> str | None:
    """The vendor whose naming scheme this is, so that other vendors' files need not be read; None where any may be."""
    prefixes = {"sm_": "nvidia", "gfx": "amd"}
    return next((vendor for prefix, vendor in prefixes.items() if architecture.startswith(prefix)), None)


def _read(folder: Path, profile: str, heirs: tuple[str, ...]) -> Facts:
    with _lock:
        found = _cache.get((folder, profile))
        if found is None:
            found = _cache[folder, profile] = _checked(folder, profile, heirs)
        return found


def _checked(folder: Path, profile: str, heirs: tuple[str, ...]) -> Facts:
    path = folder / f"{profile}.yml"
    content = _parse(path)
    facts: dict[str, Fact] = {}
    if "inherits" in content:
        parent = content.pop("inherits")
        if not isinstance(parent, str) or not _PROFILE.fullmatch(parent):
            raise FileFormatError(str(path), "inherits", parent, 'is not of the form "<vendor>/<name>"')
        if parent in (*heirs, profile):
            circle = " -> ".join((*heirs, profile, parent))
            raise FileFormatError(str(path), "inherits", parent, f"goes round in a circle: {circle}")
        home = folder if (folder / f"{parent}.yml").is_file() else FOLDER
        if not (home / f"{parent}.yml").is_file():
            raise FileFormatError(str(path), "inherits", parent, "no such device file")
        facts.update(_read(home, parent, (*heirs, profile))._facts)
    title = content.pop("title", "")
    if not isinstance(title, str):
        raise FileFormatError(str(path), "title", title, "is not text")
    lists = {key: _names(path, key, content.pop(key)) for key in _LISTS if key in content}
    for section, members in content.items():
        facts.update(_section(path, section, members))
    return Facts(profile, path, facts, lists)


def _section(path: Path, section: Any, members: Any) -> Iterator[tuple[str, Fact]]:
    if section not in SECTIONS:
        known = ", ".join(sorted({*SECTIONS, *_LISTS, "inherits", "title"}))
        raise FileFormatError(str(path), "key", section, f"is not one of {known}")
    if not isinstance(members, dict):
        raise FileFormatError(str(path), section, members, "is not a section of facts")
    for name, entry in members.items():
        key = f"{section}.{name}"
        if not isinstance(name, str) or not _KEY.fullmatch(name):
            raise FileFormatError(str(path), "key", key, "is not a lower-case name")
        value, source = _fact(path, key, entry)
        yield key, Fact(_typed(path, key, value), source, path)


def _parse(path: Path) -> dict[Any, Any]:
    import yaml  # costs about 20 ms: only where a device file is read

    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _loader())  # a subclass of the safe loader
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FileFormatError(
            "device_files", "file", str(path), f"is not YAML: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(content, dict):
        raise FileFormatError("device_files", "file", str(path), "is not a mapping")
    return content


@cache
def _loader() -> Any:
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """Safe YAML whose mappings state no key twice."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            twice = sorted({str(key) for key in keys if keys.count(key) > 1})
            if twice:
                raise yaml.constructor.ConstructorError(
                    None, None, f"stated twice: {', '.join(twice)}", node.start_mark
                )
            return super().construct_mapping(node, deep)

    return Loader


def _fact(path: Path, key: str, entry: Any) -> tuple[Any, str]:
    if not isinstance(entry, dict) or set(entry) != {"value", "source"}:
        raise FileFormatError(str(path), key, entry, "must be a value and its source, and nothing else")
    value, source = entry["value"], entry["source"]
    if not isinstance(source, str) or not source.strip():
        raise FileFormatError(str(path), f"{key}.source", source, "is not a document, an address or a measurement")
    return value, source.strip()


def _names(path: Path, key: str, entry: Any) -> tuple[str, ...]:
    values, _ = _fact(path, key, entry)
    pattern = _LISTS[key]
    if not isinstance(values, list) or not all(isinstance(v, str) and pattern.fullmatch(v) for v in values):
        raise FileFormatError(str(path), key, values, f"is not a list of texts of the form {pattern.pattern}")
    if len(set(values)) != len(values):
        raise FileFormatError(str(path), key, values, "names something twice")
    return tuple(values)


def _typed(path: Path, key: str, value: Any) -> Any:
    """The value, checked against the kind of its key; lists become tuples."""
    kind = KINDS.get(key, SECTIONS[key.split(".")[0]])
    number = type(value) in (int, float)
    rule, holds = {
        "count": ("an integer above 0", type(value) is int and value > 0),
        "flag": ("true or false", type(value) is bool),
        "tolerance": ("a finite number of at least 0", number and 0 <= value < float("inf")),
        "fraction": ("a number between 0 and 1", number and 0 <= value <= 1),
        "grid": (
            "three integers above 0",
            type(value) is list and len(value) == 3 and all(type(v) is int and v > 0 for v in value),
        ),
    }[kind]
    if not holds:
        raise FileFormatError(str(path), key, value, f"is not {rule}")
    return tuple(value) if isinstance(value, list) else value


def _caller() -> str:
    """The function that asked, outside of this module."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_name}"


def _said(paths: Iterable[Path]) -> str:
    return ", ".join(str(path) for path in paths)
