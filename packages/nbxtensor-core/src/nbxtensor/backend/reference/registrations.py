"""Host memory that tensors use in place."""

from __future__ import annotations

from nbxtensor.backend.reference.memory import AddressSpace, foreign

Range = tuple[int, int, bool]  # start, end, writable


class Registrations:
    """Ranges of the caller's memory in an address space. They may repeat and overlap, as views of one mapped file or of
    one array do: the space holds each connected union once, writable where one of its ranges is. Its owner locks."""

    def __init__(self, space: AddressSpace) -> None:
        self._space = space
        self._ranges: list[Range] = []

    def add(self, address: int, nbytes: int, writable: bool) -> None:
        """Raises ValueError where the range overlaps an allocation without lying inside of it."""
        added = (address, address + nbytes, writable)
        within = self._space.find(added[0], added[1])
        if within is None or within.origin == "register":
            connected = _connected(self._ranges, added)
            self._withdraw(connected)
            try:
                self._place([*connected, added])
            except ValueError:
                self._place(connected)
                raise
        self._ranges.append(added)

    def remove(self, address: int, nbytes: int) -> bool:
        """Whether a range of exactly these bytes was registered; one registration of it ends."""
        for writable in (True, False):
            removed = (address, address + nbytes, writable)
            if removed in self._ranges:
                connected = _connected(self._ranges, removed)
                self._withdraw(connected)
                self._ranges.remove(removed)
                connected.remove(removed)
                self._place(connected)
                return True
        return False

    def clear(self) -> None:
        self._ranges.clear()

    def _withdraw(self, ranges: list[Range]) -> None:
        for start, _, _ in ranges:
            self._space.remove(start, "register")

    def _place(self, ranges: list[Range]) -> None:
        unions: list[Range] = []
        for start, end, writable in sorted(ranges):
            within = self._space.find(start, end)
            if within is not None and within.origin != "register":
                continue  # inside of an allocation of the context's own
            if unions and start < unions[-1][1]:
                first, last, before = unions.pop()
                start, end, writable = first, max(last, end), writable or before
            unions.append((start, end, writable))
        for start, end, writable in unions:
            self._space.add(foreign(start, end - start, writable))


def _connected(ranges: list[Range], seed: Range) -> list[Range]:
    """The ranges that overlap the seed, directly or through others."""
    start, end, _ = seed
    found: list[Range] = []
    rest = list(ranges)
    while True:
        touching = [r for r in rest if r[0] < end and r[1] > start]
        if not touching:
            return found
        rest = [r for r in rest if not (r[0] < end and r[1] > start)]
        found += touching
        start, end = min(start, *(r[0] for r in touching)), max(end, *(r[1] for r in touching))
