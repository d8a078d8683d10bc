"""Drivers found through entry points: what is broken stays in the list, hurts nobody, and says why when asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.backend import registry
from nbxtensor.backend.contract import DRIVER_API, DeviceInfo, Driver
from nbxtensor.errors import ArgumentError, Unavailable


def driver(name: str, device_type: str | None = None, **changes: Any) -> SimpleNamespace:
    """A driver with one device, changed as asked; a value of ``...`` removes the attribute."""
    attributes = {
        "name": name,
        "device_type": device_type or name,
        "api_version": DRIVER_API,
        "priority": 10,
        "device_files": None,
        "probe": lambda: [DeviceInfo(0, name, "none", 1 << 20)],
        "open": lambda ordinal: None,
        **changes,
    }
    return SimpleNamespace(**{key: value for key, value in attributes.items() if value is not ...})


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Installs drivers in place of the real ones: each a name, and the object or the exception its module gives."""
    points: list[EntryPoint] = []

    def install_drivers(*named: tuple[str, Any], distribution: str = "third-party") -> None:
        for name, found in named:
            module = f"_driver_{len(points)}_of_{tmp_path.name}".replace("-", "_")
            if isinstance(found, BaseException):
                (tmp_path / f"{module}.py").write_text(f"raise {type(found).__name__}({str(found)!r})\n")
            else:
                monkeypatch.setitem(sys.modules, module, SimpleNamespace(driver=found))
            point = EntryPoint(name, f"{module}:driver", registry.GROUP)
            points.append(point._for(SimpleNamespace(name=distribution, version="1.0")))  # type: ignore[attr-defined]

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "entry_points", lambda: list(points))
    registry.refresh()
    yield install_drivers
    registry.refresh()


@pytest.mark.parametrize(
    "text, parsed",
    [("cpu", ("cpu", None)), ("cuda:0", ("cuda", 0)), ("cuda:17", ("cuda", 17)), ("my-gpu_2:1", ("my-gpu_2", 1))],
)
def test_device_strings(text: str, parsed: tuple[str, int | None]) -> None:
    assert registry.parse(text) == parsed


@pytest.mark.parametrize(
    "text",
    ["", " cpu", "cpu ", "cpu\n", ":0", "cuda:", "cuda:-1", "cuda:x", "cuda:01", "cuda:1:2", "cuda:1.0", "cuda 0",
     "CUDA", "cuda:٣", "cuda:+1", "0", "-", 3, None, b"cpu", ("cuda", 0)],
)  # fmt: skip
def test_a_malformed_device_string_is_refused_with_the_rule(text: Any) -> None:
    with pytest.raises(ArgumentError) as raised:
        registry.parse(text)
    assert raised.value.value == text
    assert "cuda:1" in raised.value.rule


@given(st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True), st.none() | st.integers(0, 10**6))
def test_a_device_string_is_read_as_it_is_written(name: str, index: int | None) -> None:
    assert registry.parse(name if index is None else f"{name}:{index}") == (name, index)


@given(st.text(max_size=12))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        name, index = registry.parse(text)
    except ArgumentError:
        return
    assert text == (name if index is None else f"{name}:{index}")


def test_drivers_stand_by_priority_then_by_name(install: Any) -> None:
    install(
        ("b", driver("b", "acme")),
        ("a", driver("a", "acme")),
        ("c", driver("c", "acme", priority=20)),
        ("d", driver("d")),
    )
    assert [entry.name for entry in registry.for_type("acme")] == ["c", "a", "b"]
    assert [entry.name for entry in registry.drivers()] == ["c", "a", "b", "d"]
    assert registry.for_type("absent") == []
    assert isinstance(registry.load(registry.by_name("a")[0]), Driver)


def test_two_drivers_of_one_name_are_both_listed_always_in_the_same_order(install: Any) -> None:
    second, first = driver("acme"), driver("acme")
    install(("acme", second), distribution="zeta")
    install(("acme", first), distribution="alpha")
    assert [(e.distribution, e.driver) for e in registry.by_name("acme")] == [("alpha", first), ("zeta", second)]
    assert registry.for_type("acme") == registry.by_name("acme")


@pytest.mark.parametrize(
    "found, words",
    [
        (ImportError("libacme.so.3 is missing"), ["ImportError", "libacme.so.3 is missing"]),
        (SystemExit("leaving"), ["SystemExit", "leaving"]),
        (KeyError("boom"), ["KeyError", "boom"]),
        (None, ["NoneType", "lacks", "api_version", "device_type", "open", "probe"]),
        (driver("acme", probe=..., device_files=...), ["lacks", "device_files", "probe"]),
        (driver("acme", api_version=DRIVER_API + 1), [f"contract {DRIVER_API + 1}", f"contract {DRIVER_API}"]),
        (driver("acme", api_version=DRIVER_API + 1, probe=...), [f"contract {DRIVER_API + 1}"]),
        (driver("acme", priority="high"), ["priority", "'high'", "int"]),
        (driver("acme", open=3), ["open", "callable"]),
        (driver("other"), ["'acme'", "'other'"]),
        (driver("acme", "Acme GPU"), ["'Acme GPU'", "device string"]),
        (SimpleNamespace, ["class", "SimpleNamespace"]),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, list) else value[0],
)
def test_a_broken_driver_is_kept_with_its_exception_and_hurts_nobody(
    install: Any, found: Any, words: list[str]
) -> None:
    install(("acme", found), ("works", driver("works")))
    works, broken = registry.drivers()
    assert (works.name, works.error) == ("works", None)
    assert (broken.name, broken.driver, broken.device_type) == ("acme", None, "acme")
    assert registry.probe(works) == [DeviceInfo(0, "works", "none", 1 << 20)]
    assert registry.for_type("acme") == registry.by_name("acme") == [broken]
    with pytest.raises(Unavailable) as raised:
        registry.load(broken)
    assert raised.value.__cause__ is broken.error
    for word in (*words, "acme", "third-party 1.0"):
        assert word in str(raised.value)


def test_a_keyboard_interrupt_is_not_a_broken_driver(install: Any) -> None:
    install(("acme", KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        registry.drivers()


def test_a_driver_whose_attribute_raises_is_broken(install: Any) -> None:
    class Odd:
        @property
        def name(self) -> str:
            raise OSError("no such device node")

    install(("acme", Odd()))
    (entry,) = registry.drivers()
    assert isinstance(entry.error, OSError)


def test_a_broken_driver_does_not_stand_in_the_way_of_one_that_serves_its_type(install: Any) -> None:
    install(("acme", ImportError("no")), ("other", driver("other", "acme")))
    assert [entry.name for entry in registry.for_type("acme")] == ["other"]
    assert [entry.name for entry in registry.by_name("acme")] == ["acme"]


def test_an_entry_point_that_names_nothing_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("a", "nbxtensor.absent:driver", registry.GROUP),
        EntryPoint("b", "nbxtensor:nothing", registry.GROUP),
    ]
    first, second = registry.entries(points)
    assert isinstance(first.error, ModuleNotFoundError)
    assert isinstance(second.error, AttributeError)
    assert first.distribution == "unknown distribution"


def test_probing_is_done_once_until_refresh(install: Any) -> None:
    calls = []

    def probe() -> list[DeviceInfo]:
        calls.append(1)
        return [DeviceInfo(0, "acme", "none", 1)]

    install(("acme", driver("acme", probe=probe)))
    for _ in range(3):
        registry.probe(registry.drivers()[0])
    assert len(calls) == 1
    registry.refresh()
    registry.probe(registry.drivers()[0])
    assert len(calls) == 2


def raises(error: BaseException) -> Any:
    def probe() -> list[DeviceInfo]:
        raise error

    return probe


@pytest.mark.parametrize("error", [KeyError("gcn"), SystemExit(3), OSError("bad library"), AssertionError()])
def test_an_unexpected_exception_of_a_probe_is_kept_as_the_cause(install: Any, error: BaseException) -> None:
    install(("acme", driver("acme", probe=raises(error))), ("works", driver("works")))
    answers = {entry.name: registry.probe(entry) for entry in registry.drivers()}
    refusal = answers["acme"]
    assert isinstance(refusal, Unavailable)
    assert refusal.reason == "broken"
    assert refusal.__cause__ is error
    assert type(error).__name__ in refusal.detail
    assert isinstance(answers["works"], list)


@pytest.mark.parametrize("answer", [[], None, ["gpu 0"], 3])
def test_a_probe_that_answers_with_something_else_is_broken(install: Any, answer: Any) -> None:
    install(("acme", driver("acme", probe=lambda: answer)))
    refusal = registry.probe(registry.drivers()[0])
    assert isinstance(refusal, Unavailable)
    assert refusal.reason == "broken"


def test_refusals_hold_the_types_that_nobody_serves(install: Any) -> None:
    no_device = Unavailable("no device", "none here")
    install(
        ("acme", driver("acme", probe=raises(no_device))),
        ("better", driver("better", "acme", priority=20, probe=raises(Unavailable("no library")))),
        ("half", driver("half", "served", probe=raises(no_device))),
        ("whole", driver("whole", "served")),
        ("torn", ImportError("no")),
    )
    refusals = registry.refusals()
    assert sorted(refusals) == ["acme", "torn"]
    assert [refusal.reason for refusal in refusals["acme"]] == ["no library", "no device"]
    assert refusals["torn"][0].reason == "broken"


def test_a_driver_is_found_by_its_dist_info(tmp_path: Path) -> None:
    """What pip leaves behind is enough; and entry points are read at the first question, not at import."""
    info = tmp_path / "acme_gpu-3.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-gpu\nVersion: 3.1\n")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\nacme = acme_gpu:driver\n")
    (tmp_path / "acme_gpu.py").write_text("raise OSError('libacme.so.3: cannot open shared object file')\n")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from nbxtensor.backend import registry
assert "importlib.metadata" not in sys.modules and "acme_gpu" not in sys.modules
(entry,) = registry.by_name("acme")
print(entry.distribution, entry.version, type(entry.error).__name__)
assert registry.by_name("meta")[0].driver is not None
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.split() == ["acme-gpu", "3.1", "OSError"], result.stderr


@pytest.mark.parametrize("malformed", [False, True])
def test_a_torn_installation_hurts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, malformed: bool) -> None:
    """An interrupted pip leaves a distribution without metadata; a malformed file breaks Python's own question."""
    info = tmp_path / "torn-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\ntorn = torn:driver\n")
    if malformed:
        (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\ntorn\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    if malformed:
        with pytest.warns(RuntimeWarning, match="cannot be read"):
            points = registry.entry_points()
    else:
        points = registry.entry_points()
    assert {"reference", "meta"} <= {point.name for point in points}
    torn = [registry.distribution(point) for point in points if point.name == "torn"]
    assert torn == ([] if malformed else [("unknown distribution", "?")])


def test_the_installed_drivers_keep_the_contract() -> None:
    registry.refresh()
    ours = {entry.name: entry.error for entry in registry.drivers() if entry.distribution.startswith("nbxtensor")}
    assert ours == dict.fromkeys(("reference", "meta", "cpu", "cuda", "hip", "metal", "xpu"))
