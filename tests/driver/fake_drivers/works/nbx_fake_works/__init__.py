"""A third party's driver that works: two devices of different memory, with a device file of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nbxtensor.backend.contract import DRIVER_API, Context, DeviceInfo
from nbxtensor.errors import Unavailable


class WorksDriver:
    """Two made-up devices; kernels run in Triton's interpreter, in host memory."""

    name = "works"
    device_type = "works"
    api_version = DRIVER_API
    priority = 1000  # before any real device, so that the tests find the same default everywhere
    device_files: str | None = str(Path(__file__).with_name("device_files"))

    def probe(self) -> Sequence[DeviceInfo]:
        return [
            DeviceInfo(
                ordinal=ordinal,
                name=f"Works {ordinal}",
                architecture="works1",
                memory_bytes=(ordinal + 1) << 30,
                pci_id=f"0000:0{ordinal + 1}:00.0",
                uuid=f"works-{ordinal}",
                profile="works/one",
            )
            for ordinal in range(2)
        ]

    def open(self, ordinal: int) -> Context:
        from nbxtensor.backend.reference.driver import ReferenceContext

        devices = self.probe()
        if ordinal not in range(len(devices)):
            raise Unavailable("no device", f"works:{ordinal} of {len(devices)} devices")
        return ReferenceContext(devices[ordinal])


driver = WorksDriver()
