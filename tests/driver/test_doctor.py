"""The doctor with third-party drivers that work, that are broken, that hang and that crash; and its verdicts."""

from __future__ import annotations

import io
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from driver.fake_drivers.installing import environment, python, variant, wheel
from nbxtensor.__main__ import main
from nbxtensor.backend import pci, registry
from nbxtensor.backend.pci import PciGpu
from nbxtensor.doctor import report, survey
from nbxtensor.doctor.children import Answer, ask

LONG = 120.0  # seconds that a healthy child is given, however busy the machine is
H100 = PciGpu("0000:3b:00.0", "nvidia", 0x2330, 0x0302, "nvidia")


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel("works", tmp_path_factory.mktemp("works"))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel("broken", tmp_path_factory.mktemp("broken"))


@pytest.fixture(scope="module")
def both(works: Path, broken: Path) -> dict[str, Any]:
    """The doctor's JSON where the one that works and the one that is broken are installed."""
    run = python("-m", "nbxtensor", "doctor", "--json", "--timeout", str(LONG), env=environment(works, broken))
    assert run.returncode == 1, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def named(found: dict[str, Any], name: str) -> dict[str, Any]:
    (driver,) = (driver for driver in found["drivers"] if driver["name"] == name)
    return dict(driver)


def test_every_installed_driver_is_listed(both: dict[str, Any]) -> None:
    names = {driver["name"] for driver in both["drivers"]}
    assert names >= {"works", "broken", "reference", "meta", "cpu", "cuda", "hip", "metal", "xpu"}
    assert {driver["state"] for driver in both["drivers"]} <= {"OK", "UNAVAILABLE", "BROKEN"}
    for driver in both["drivers"]:
        assert driver["version"]
        assert (driver["state"] == "OK") == bool(driver["devices"])
        assert (driver["state"] == "OK") == (driver["reason"] == "")


def test_the_driver_that_works_computes_on_each_of_its_devices(both: dict[str, Any]) -> None:
    driver = named(both, "works")
    assert (driver["distribution"], driver["version"], driver["state"]) == ("nbx-fake-works", "1.0", "OK")
    assert [(d["device"], d["check"], d["uuid"]) for d in driver["devices"]] == [
        ("works:0", "passed", "works-0"),
        ("works:1", "passed", "works-1"),
    ]
    assert driver["devices"][1]["memory_bytes"] == 2 << 30
    assert named(both, "meta")["devices"][0]["check"] == "executes nothing"


def test_the_broken_driver_is_named_with_its_exception(both: dict[str, Any]) -> None:
    driver = named(both, "broken")
    assert (driver["distribution"], driver["version"], driver["state"]) == ("nbx-fake-broken", "2.0", "BROKEN")
    assert driver["detail"] == "ImportError: libbroken.so.3: cannot open shared object file"
    assert both["works"] is False


def test_the_default_device_is_the_best_and_the_doctor_says_why(both: dict[str, Any]) -> None:
    default = both["default"]
    assert (default["works"], default["device"], default["driver"]) == (True, "works:1", "works")
    assert "memory" in default["why"]


def test_the_json_has_the_names_that_programs_rely_on(both: dict[str, Any]) -> None:
    assert list(both) == ["works", "nbxtensor", "python", "platform", "triton", "default", "drivers", "gpus"]
    assert list(both["default"]) == ["works", "device", "driver", "why", "detail"]
    assert list(both["drivers"][0]) == list(survey.DriverReport._fields)
    assert list(named(both, "works")["devices"][0]) == list(survey.DeviceReport._fields)


def test_a_broken_driver_hurts_nobody_and_is_raised_where_it_is_asked_for(works: Path, broken: Path) -> None:
    code = """
import numpy as np, nbxtensor as nbx
from nbxtensor.errors import NBXError
a = np.arange(5, dtype=np.float32)
print((nbx.from_numpy(a) + nbx.from_numpy(a)).numpy().tolist(), nbx.from_numpy(a).device)
for name in ("works:0", "cpu", "reference"):
    print(nbx.from_numpy(a, device=name).device)
print(nbx.device("works:1").facts["elementwise.block"], nbx.device("cpu").facts["elementwise.block"])
for name in ("broken", "broken:0", "works:2", "absent"):
    try:
        nbx.from_numpy(a, device=name)
    except NBXError as error:
        print(type(error).__name__, type(error.__cause__).__name__, " ".join(str(error).split()))
"""
    run = python("-c", code, env=environment(works, broken))
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[:5] == ["[0.0, 2.0, 4.0, 6.0, 8.0] works:1", "works:0", "cpu", "cpu", "1024 65536"]
    assert all(line.startswith("Unavailable ImportError broken") and "broken" in line for line in lines[5:7])
    assert lines[7].startswith("ArgumentError") and "works:2" in lines[7]
    assert lines[8].startswith("ArgumentError") and "absent" in lines[8]


def test_the_report_is_for_people(works: Path) -> None:
    run = python(
        "-m", "nbxtensor", "doctor", "--timeout", str(LONG), env=environment(works, NBXTENSOR_DEVICE="works:0")
    )
    assert run.returncode == 0, run.stdout + run.stderr
    for part in (
        "nbx-fake-works 1.0",
        "works:1",
        "passed",
        "Works 0",
        "default device works:0: named by NBXTENSOR_DEVICE",
    ):
        assert part in run.stdout
    assert "everything that should work works" in run.stdout
    assert "\x1b" not in run.stdout
    assert run.stderr == ""


@pytest.mark.parametrize(
    "arguments, word",
    [
        ([], "COMMAND"),
        (["frobnicate"], "frobnicate"),
        (["doctor", "--frobnicate"], "--frobnicate"),
        (["doctor", "--timeout", "soon"], "soon"),
        (["doctor", "--timeout", "0"], "'0'"),
        (["doctor", "--timeout", "nan"], "nan"),
        (["doctor", "--check", "cpu"], "--check"),
        (["doctor", "--check", "cpu", "-1"], "-1"),
        (["doctor", "--check", "cpu", "one"], "one"),
    ],
)
def test_wrong_usage_is_status_2(arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    assert word in capsys.readouterr().err


def test_a_check_by_hand_prints_what_it_found() -> None:
    run = python("-m", "nbxtensor", "doctor", "--check", "reference", "0", env=environment())
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout)
    assert (said["device"], said["driver"], said["executes"]) == ("cpu", "reference", True)
    run = python("-m", "nbxtensor", "doctor", "--check", "reference", "7", env=environment())
    assert run.returncode == 1
    assert "reference:7" in json.loads(run.stdout)["unavailable"]["detail"]


Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a variant of the usual driver where this process and its children find it."""

    def install_variant(name: str, body: str) -> None:
        monkeypatch.syspath_prepend(str(variant(name, body, tmp_path / name)))

    return install_variant


def probed(name: str, timeout: float = LONG) -> Answer:
    return ask("--probe", name, f"nbx-{name}", timeout=timeout)


def test_the_usual_driver_answers(install: Install) -> None:
    install("usual", "driver = Usual()")
    said, failure = probed("usual")
    assert failure == ""
    assert said is not None
    assert said["devices"][0]["name"] == "usual"
    assert (said["device_type"], said["priority"], said["api_version"]) == ("usual", 1000, 1)


@pytest.mark.parametrize(
    "name, body",
    [
        ("hang_probe", "import time\nUsual.probe = lambda self: time.sleep(1000)\ndriver = Usual()"),
        ("hang_import", "import time\ntime.sleep(1000)"),
        ("hang_deaf", "import signal, time\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\ntime.sleep(1000)"),
    ],
)
def test_a_driver_that_hangs_is_killed_and_named(install: Install, name: str, body: str) -> None:
    install(name, body)
    start = time.monotonic()
    said, failure = probed(name, timeout=2)
    assert said is None
    assert failure.startswith("did not end within 2 s; process ")
    assert "was killed" in failure
    assert time.monotonic() - start < 500  # the driver sleeps twice as long


@pytest.mark.parametrize(
    "name, body, words",
    [
        ("exit", "import os\nUsual.probe = lambda self: os._exit(7)\ndriver = Usual()", ["ended with status 7"]),
        (
            "segv",
            "import ctypes\nUsual.probe = lambda self: ctypes.string_at(0)\ndriver = Usual()",
            ["SIGSEGV", "Segmentation fault", "probe"],
        ),
        ("abort", "import os\nos.abort()", ["SIGABRT"]),
        (
            "words",
            "import os, sys\nprint('vendor says 42', file=sys.stderr, flush=True)\nos._exit(9)",
            ["status 9", "vendor says 42"],
        ),
        ("silent", "import os\nos._exit(0)", ["status 0 without an answer"]),
    ],
)
def test_a_driver_that_crashes_takes_only_its_own_process(
    install: Install, name: str, body: str, words: list[str]
) -> None:
    install(name, body)
    said, failure = probed(name)
    assert said is None
    for word in words:
        assert word in failure


def test_a_crash_after_the_answer_is_told_too(install: Install) -> None:
    install("late", "import atexit, os\natexit.register(os.abort)\ndriver = Usual()")
    said, failure = probed("late")
    assert said is not None
    assert "SIGABRT" in failure


def test_what_a_library_prints_is_not_taken_for_the_answer(install: Install) -> None:
    body = """
    import os
    print('{"devices": []}', flush=True)
    os.system("echo '{}'")
    def probe(self, usual=Usual.probe):
        os.write(1, b'{"devices": 3}\\n')
        return usual(self)
    Usual.probe = probe
    driver = Usual()
    """
    install("loud", body)
    said, failure = probed("loud")
    assert failure == ""
    assert said is not None
    assert said["devices"][0]["name"] == "usual"


def test_processes_that_a_driver_leaves_behind_are_killed_with_it(install: Install, tmp_path: Path) -> None:
    left = tmp_path / "left"
    body = f"""
    import subprocess, sys
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    open({str(left)!r}, "w").write(str(child.pid))
    driver = Usual()
    """
    install("leaves", body)
    assert probed("leaves").failure == ""
    for _ in range(200):  # init reaps it in its own time
        state = Path(f"/proc/{left.read_text()}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("the grandchild is still running")


@pytest.mark.parametrize(
    "name, body, detail",
    [
        ("older", "Usual.api_version = 0\ndriver = Usual()", "contract 0; this nbxtensor has contract 1"),
        ("shapeless", "driver = object()", "lacks name, device_type"),
        ("keyless", "Usual.probe = lambda self: {}['gcn']\ndriver = Usual()", "KeyError: 'gcn'"),
        ("quitting", "raise SystemExit('no licence')", "SystemExit: no licence"),
    ],
)
def test_a_driver_that_keeps_no_contract_is_broken_by_name(install: Install, name: str, body: str, detail: str) -> None:
    install(name, body)
    (point,) = (point for point in registry.entry_points() if point.name == name)
    found = survey._driver(point, LONG)
    assert (found.name, found.state, found.devices) == (name, survey.BROKEN, ())
    assert detail in found.detail


def test_a_device_that_computes_wrongly_fails(install: Install) -> None:
    body = """
    class Wrong(ReferenceContext):
        def copy_out(self, host, device, nbytes, stream=None):
            super().copy_out(host, device, nbytes, stream)
            import ctypes
            ctypes.memset(host + 4, 0x7f, 4)
    Usual.open = lambda self, ordinal: Wrong(self.probe()[ordinal])
    driver = Usual()
    """
    install("wrong", body)
    answer = ask("--check", "wrong", "0", timeout=LONG)
    assert survey._failure(answer) == "DeviceError: a + b on wrong:0: 1 of 4099 elements are wrong"


def test_a_hanging_driver_does_not_hang_the_doctor(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("stuck", "import time\nUsual.probe = lambda self: time.sleep(1000)\ndriver = Usual()")
    points = [point for point in registry.entry_points() if point.name == "stuck"]
    monkeypatch.setattr(registry, "entry_points", lambda: points)
    monkeypatch.setattr(pci, "gpus", list)
    found = survey.survey(2)
    (stuck,) = found.drivers
    assert (stuck.name, stuck.distribution, stuck.state) == ("stuck", "nbx-stuck", survey.BROKEN)
    assert "did not end within 2 s" in stuck.detail
    # The default device is sought by asking every driver, as a program would: it hangs as well, and the doctor says so.
    assert not found.default.works
    assert not found.works


# The verdict, from answers that are made up here.

OK_DEVICE = {
    "ordinal": 0,
    "name": "Card",
    "architecture": "sm_90",
    "memory_bytes": 1 << 34,
    "pci_id": "00000000:3B:00.0",
    "uuid": None,
    "profile": "nvidia/hopper",
}
USUAL = {"device_type": "cuda", "priority": 100, "api_version": 1}
SERVES = Answer({**USUAL, "devices": [OK_DEVICE]}, "")
NO_LIBRARY = Answer({**USUAL, "unavailable": {"reason": "no library", "detail": "no libcuda.so.1", "fix": ""}}, "")
COMPUTES = Answer({"device": "cuda:0", "driver": "cuda", "executes": True, "seconds": 0.1}, "")
ON_CPU = Answer({"device": "cpu", "driver": "reference", "executes": True, "seconds": 0.1}, "")
WRONG = Answer({"unavailable": {"reason": "broken", "detail": "DeviceError: wrong", "fix": ""}}, "")
REFUSED = Answer({"unavailable": {"reason": "no library", "detail": "NVIDIA GPU: none opens", "fix": "do this"}}, "")
HANGS = Answer(None, "did not end within 5 s; process 7 was killed")


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[..., survey.Survey]:
    """A survey of one driver "cuda" that answers as given, on a machine with the given GPUs."""

    def surveyed(probe: Answer, check: Answer, default: Answer, gpus: list[PciGpu]) -> survey.Survey:
        class Point:
            name, value = "cuda", "vendor:driver"
            dist = type("Distribution", (), {"name": "nbxtensor-cuda", "version": "9"})

        answers = {"--probe": probe, "--check": check, "--check-default": default}
        monkeypatch.setattr(survey, "ask", lambda question, *_, timeout: answers[question])
        monkeypatch.setattr(registry, "entry_points", lambda: [Point])
        monkeypatch.setattr(pci, "gpus", lambda: gpus)
        monkeypatch.delenv("NBXTENSOR_DEVICE", raising=False)
        return survey.survey(5)

    return surveyed


@pytest.mark.parametrize(
    "probe, check, default, gpus, works, state, device_check",
    [
        (SERVES, COMPUTES, COMPUTES, [H100], True, "OK", "passed"),
        (SERVES, WRONG, COMPUTES, [H100], False, "OK", "failed"),
        (SERVES, HANGS, COMPUTES, [H100], False, "OK", "failed"),
        (SERVES, COMPUTES, WRONG, [H100], False, "OK", "passed"),
        (NO_LIBRARY, COMPUTES, ON_CPU, [], True, "UNAVAILABLE", None),
        (NO_LIBRARY, COMPUTES, REFUSED, [H100], False, "UNAVAILABLE", None),
        (HANGS, COMPUTES, ON_CPU, [], False, "BROKEN", None),
        (SERVES._replace(failure="process 7 was ended by SIGSEGV"), COMPUTES, COMPUTES, [], False, "BROKEN", None),
    ],
)
def test_the_verdict(
    made_up: Callable[..., survey.Survey],
    probe: Answer,
    check: Answer,
    default: Answer,
    gpus: list[PciGpu],
    works: bool,
    state: str,
    device_check: str | None,
) -> None:
    found = made_up(probe, check, default, gpus)
    assert found.works is works
    assert found.drivers[0].state == state
    assert [device.check for device in found.drivers[0].devices] == ([device_check] if device_check else [])


def test_a_served_gpu_lacks_nothing(made_up: Callable[..., survey.Survey]) -> None:
    (gpu,) = made_up(SERVES, COMPUTES, COMPUTES, [H100]).gpus
    assert (gpu.served, gpu.missing, gpu.commands) == (True, "", ())  # NVIDIA writes 8 digits of PCI domain


def test_a_gpu_that_its_driver_does_not_list_is_told(made_up: Callable[..., survey.Survey]) -> None:
    hidden = H100._replace(address="0000:5e:00.0")
    served, other = made_up(SERVES, COMPUTES, COMPUTES, [H100, hidden]).gpus
    assert served.served
    assert not other.served
    assert "lists 1 device(s)" in other.missing


def test_an_old_gpu_needs_no_fix(made_up: Callable[..., survey.Survey]) -> None:
    (gpu,) = made_up(NO_LIBRARY, COMPUTES, ON_CPU, [H100._replace(device_id=0x1D10)]).gpus
    assert (gpu.supported, gpu.served, gpu.commands) == (False, False, ())
    assert "Volta" in gpu.missing


def text_of(found: survey.Survey, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)
    report.show(found, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_fix_stands_in_unbroken_lines(
    made_up: Callable[..., survey.Survey], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbxtensor.backend.install_help.system", lambda: "wsl")
    found = made_up(NO_LIBRARY, COMPUTES, REFUSED, [H100])
    text = text_of(found, width=60)
    for command in found.gpus[0].commands:
        assert f"    {command}\n" in text
    assert '    or run on the host: device="cpu"\n' in text
    assert "no libcuda.so.1" in text
    assert "something that should work does not" in text


def test_a_drivers_text_is_not_read_as_markup(made_up: Callable[..., survey.Survey]) -> None:
    odd = {"reason": "no library", "detail": "[bold]no[/bold] :smile: [/]", "fix": ""}
    text = text_of(made_up(Answer({**USUAL, "unavailable": odd}, ""), COMPUTES, ON_CPU, []), width=200)
    assert "[bold]no[/bold] :smile: [/]" in text


def test_a_driver_of_the_same_name_is_shadowed() -> None:
    one = survey.DeviceReport("", 0, "Card", "sm_90", 1, None, None, None, "", "", None)
    first = survey.DriverReport("cuda", "a", "1", "v", "cuda", 100, 1, survey.OK, "", "", "", (one,))
    ranked = survey._ranked([first._replace(distribution="b"), first])
    assert [(d.distribution, d.devices[0].device, d.devices[0].check) for d in ranked] == [
        ("a", "cuda:0", ""),
        ("b", "cuda:0", survey.SHADOWED),
    ]
    assert survey._checked(ranked[1], ranked[1].devices[0], LONG).check == survey.SHADOWED


def test_the_child_finds_what_this_process_finds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(subprocess, "Popen", seen := Recorder())
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Recorder.Seen):
        ask("--check-default", timeout=1)
    assert seen.environment["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path)


class Recorder:
    """Stands for `subprocess.Popen` and keeps the environment that it is given."""

    class Seen(Exception):
        pass

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}

    def __call__(self, command: list[str], *, env: dict[str, str], **_: Any) -> None:
        self.environment = env
        raise self.Seen
