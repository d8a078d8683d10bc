"""The machine as the interpreter finds it, and what the interpreter can do on any."""

from __future__ import annotations

import functools
import os
import platform

from nbxtensor.backend.contract import Capabilities

UNLIMITED = 2**31 - 1  # what a 32-bit launch parameter holds


def capabilities() -> Capabilities:
    """What the interpreter can do: all but to run programs side by side."""
    from nbxtensor.dtype import DTYPES

    return Capabilities(
        executes=True,
        binds_by_extent=False,
        host_addressable=True,
        pinned_host=False,
        timed_events=True,
        graph_capture=False,
        cooperative=False,
        max_grid=(UNLIMITED, UNLIMITED, UNLIMITED),
        max_threads=UNLIMITED,
        max_shared=UNLIMITED,
        dtypes=frozenset(name for name, dtype in DTYPES.items() if dtype.triton is not None),
    )


def memory() -> tuple[int, int]:
    """(free, total) of the machine in bytes; systems that do not tell what is free (macOS) give the total twice."""
    page, total = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    free = os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in os.sysconf_names else total
    return free * page, total * page


@functools.cache
def processor() -> str:
    """The processor's model, as the system names it."""
    if os.path.exists("/proc/cpuinfo"):  # Linux
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
