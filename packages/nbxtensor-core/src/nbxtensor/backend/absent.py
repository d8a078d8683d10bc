"""The driver of a backend whose package exists before its driver does: every verb says so, none pretends."""

from __future__ import annotations

from typing import NoReturn

from nbxtensor.backend.contract import DRIVER_API, Reason
from nbxtensor.errors import Unavailable


class AbsentDriver:
    """A `nbxtensor.backend.contract.Driver` that can open nothing.

    ``detail`` says what this release lacks and ``fix`` what to use in its place; both reach the user through
    `Unavailable`, from `probe` and from `open` alike.
    """

    api_version = DRIVER_API
    device_files: str | None = None

    def __init__(self, name: str, device_type: str, *, reason: Reason, detail: str, fix: str, priority: int = 100):
        self.name, self.device_type, self.priority = name, device_type, priority
        self.reason: Reason = reason
        self.detail, self.fix = detail, fix

    def probe(self) -> NoReturn:
        """Raises `Unavailable`."""
        raise Unavailable(self.reason, self.detail, self.fix)

    def open(self, ordinal: int) -> NoReturn:
        """Raises `Unavailable`, whatever the ordinal."""
        raise Unavailable(self.reason, self.detail, self.fix)
