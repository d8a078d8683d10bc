"""Child processes with a time limit: a library that hangs or crashes takes its own process with it and no other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import IO, Any, NamedTuple

_LINES = 6
_AFTER_KILL = 5.0  # seconds that the system gets to end a killed process


class Answer(NamedTuple):
    """What a child ``said`` (None: nothing), and how it failed ("": it did not); it may fail after it has answered."""

    said: dict[str, Any] | None
    failure: str


def ask(*question: str, timeout: float) -> Answer:
    """Runs ``python -m nbxtensor doctor QUESTION`` in a process group of its own, at most ``timeout`` seconds."""
    command = [sys.executable, "-X", "faulthandler", "-m", "nbxtensor", "doctor", *question]
    # The child finds what this process finds, however it was started.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    group: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        group = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    # Files, not pipes: a grandchild that keeps a pipe open would hold this process up.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        with open(os.devnull, "rb") as nothing:
            child = subprocess.Popen(command, stdin=nothing, stdout=output, stderr=errors, env=environment, **group)
        try:
            child.wait(timeout)
            failure = "" if child.returncode in (0, 1) else f"process {child.pid} {_ending(child.returncode)}"
        except subprocess.TimeoutExpired:
            failure = f"did not end within {timeout:g} s; {_kill(child)}"
        finally:
            _kill(child)  # and what it may have left running
        said = _json(output)
        if said is None and not failure:
            failure = f"process {child.pid} {_ending(child.returncode)} without an answer"
        return Answer(said, failure + _tail(errors) if failure else "")


def _kill(child: subprocess.Popen[bytes]) -> str:
    """Kills the child with its process group; says what became of it."""
    try:
        if sys.platform == "win32":
            child.kill()
        else:
            os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # a group of which only an ended process is left
        return f"process {child.pid} had ended"
    try:
        child.wait(_AFTER_KILL)
    except subprocess.TimeoutExpired:
        return f"process {child.pid} was killed and still hangs inside the kernel"
    return f"process {child.pid} was killed"


def _ending(status: int) -> str:
    if status < 0:
        try:
            return f"was ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"was ended by signal {-status}"
    return f"ended with status {status}"


def _json(output: IO[bytes]) -> dict[str, Any] | None:
    output.seek(0)
    lines = output.read().decode("utf-8", "replace").splitlines()
    try:
        said = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def _tail(errors: IO[bytes]) -> str:
    """The telling lines of what the child wrote to standard error: the last ones, or where it was when it crashed."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - 20000))
    lines = [line for line in errors.read().decode("utf-8", "replace").splitlines() if line.strip()]
    crash = next((i for i, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    shown = lines[-_LINES:] if crash is None else lines[max(0, crash - 2) : crash + _LINES]
    return "".join(f"\n{line}" for line in shown)
