"""Records every attempt to import a forbidden module, attempts whose ImportError is caught included.

`install` puts a finder before all others that finds nothing and writes down what it was asked for. The record is the
file that the environment variable `LOG` names, one line of JSON an attempt, shared by a test run and all processes it
starts."""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

LOG = "NBX_TEST_IMPORT_LOG"
FORBIDDEN = frozenset({"torch"})


class Recorder:
    """A meta path finder that records and finds nothing."""

    def __init__(self, log: str):
        self.log = log

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in FORBIDDEN:
            frames = [f for f in traceback.extract_stack() if "importlib" not in f.filename and f.filename != __file__]
            attempt = {
                "module": name,
                "test": os.environ.get("PYTEST_CURRENT_TEST", "outside of any test"),
                "from": f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "",
                "process": " ".join(sys.orig_argv),
            }
            with open(self.log, "a", encoding="utf-8") as log:
                log.write(json.dumps(attempt) + "\n")


def install() -> None:
    """Starts recording in this process, when the environment names a record."""
    if LOG in os.environ and not any(type(finder).__name__ == Recorder.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, Recorder(os.environ[LOG]))


def attempts(log: str) -> list[dict[str, str]]:
    """What the record holds."""
    with open(log, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
