"""GPUs for which the driver asked for a reset or a reboot (NVML's recovery action) and does no longer.

Pure.

This ends what Xids had reported before, as an Xid 154 "… to 0x0 (None)" in the kernel's log does
where that can be read.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from mldebug.hardware.gpu.readings import GpuReading
from mldebug.hardware.kernel_log.bursts import Burst
from mldebug.hardware.kernel_log.lines.reader import bus_id

NOTHING = "none"
NEVER: Mapping[str, float] = MappingProxyType({})


def requests(bursts: Iterable[Burst]) -> dict[str, float]:
    """PCI address -> unix time of the newest burst with a request of the driver (Xid 154) that the kernel's log has not taken back."""
    wanted = [one for one in bursts if one.recovery and not one.over]
    return {one.root.device: one.last_at for one in sorted(wanted, key=lambda one: one.last_at)}


class RecoveryWatch:
    """Follows the recovery action of each GPU. For one thread."""

    def __init__(self) -> None:
        self._requests: set[str] = set()  # PCI addresses of GPUs with a request
        self._calm: dict[
            str, float
        ] = {}  # of those: unix time of the reading that asked for nothing
        self._recovered: dict[str, float] = {}

    def update(
        self, gpus: Iterable[GpuReading], at: float, requested: Mapping[str, float] = NEVER
    ) -> Mapping[str, float]:
        """Add a full reading of unix time `at`. `requested`: the requests of the kernel's log (see `requests`), which may be from before
        the agent's time.

        Returns PCI address -> unix time since which the driver asks for nothing any more.

        Two readings in a row must agree, as drivers give a wrong answer now and then. A GPU whose
        action cannot be read stays as it was: it may be just being reset.
        """
        for gpu in gpus:
            address, action = bus_id(gpu.bus_id), gpu.recovery_action
            if address and action is not None:
                open_request = requested.get(address, 0.0) > self._recovered.get(address, 0.0)
                self._take(address, action, at, open_request=open_request)
        return self._recovered

    def _take(self, address: str, action: str, at: float, *, open_request: bool) -> None:
        if action != NOTHING:
            self._requests.add(address)
            self._calm.pop(address, None)
            self._recovered.pop(address, None)
        elif address in self._requests or open_request:
            since = self._calm.setdefault(address, at)
            if since < at:
                self._requests.discard(address)
                self._recovered[address] = self._calm.pop(address)
