"""Fresh processes, for what a process can do once only: find the driver, lose a context, fork, exit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nbxtensor.backend.cuda import library

_TESTS = Path(__file__).resolve().parents[2]
_HIDDEN = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", library.VARIABLE)


def run(code: str, environment: Mapping[str, str] = MappingProxyType({}), *, silent: bool = True) -> str:
    """What a fresh process prints, which knows no other driver than that of ``environment``. It must succeed, and with
    ``silent`` write nothing to stderr."""
    inherited = {k: v for k, v in os.environ.items() if k not in _HIDDEN}
    paths = os.pathsep.join(filter(None, [str(_TESTS), os.environ.get("PYTHONPATH")]))
    merged = {**inherited, "PYTHONPATH": paths, **environment}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=merged, timeout=300)
    assert result.returncode == 0 and not (silent and result.stderr), result.stdout + result.stderr
    return result.stdout
