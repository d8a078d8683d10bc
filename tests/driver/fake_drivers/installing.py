"""Installs fake drivers into folders that stand on a child's module path: what pip does, without pip."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
GROUP = "nbxtensor.drivers"

# A driver that the variants below change: put before their own lines.
_USUAL = """
from nbxtensor.backend.contract import DRIVER_API, DeviceInfo
from nbxtensor.backend.reference.driver import ReferenceContext

class Usual:
    name = device_type = NAME
    api_version, priority, device_files = DRIVER_API, 1000, None

    def probe(self):
        return [DeviceInfo(0, "usual", "none", 1 << 30, profile="cpu/reference")]

    def open(self, ordinal):
        return ReferenceContext(self.probe()[ordinal])
"""


def wheel(project: str, target: Path) -> Path:
    """Builds the wheel of a project beside this file and unpacks it into ``target``."""
    from hatchling.builders.wheel import WheelBuilder

    built = next(WheelBuilder(str(HERE / project)).build(directory=str(target / "wheel"), versions=["standard"]))
    with zipfile.ZipFile(built) as archive:
        archive.extractall(target)
    return target


def variant(name: str, body: str, target: Path) -> Path:
    """Installs a driver ``name`` of distribution ``nbx-<name>``: the usual driver, then ``body``, which may change it.

    ``body`` sees ``Usual`` and ``NAME`` and defines ``driver``."""
    module = f"nbx_{name}"
    info = target / f"{module}-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nbx-{name}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {module}:driver\n")
    (target / f"{module}.py").write_text(f"NAME = {name!r}\n{_USUAL}\n{textwrap.dedent(body)}\n")
    return target


def environment(*folders: Path, **more: str) -> dict[str, str]:
    """The environment of a child process that finds what is installed in the folders."""
    path = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
    kept = {key: value for key, value in os.environ.items() if key != "NBXTENSOR_DEVICE"}
    return {**kept, "PYTHONPATH": path, **more}


def python(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs Python to its end."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=env)
