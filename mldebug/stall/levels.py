"""Does a GPU compute, or does its one waiting kernel only spin? Told by levels that the run itself has shown.

A collective that waits keeps utilization at 100 %; memory traffic and power do not lie (2 x H200: 35 % and 690 W at work,
0 % and 125 W in a hang). Where the middle lies is learned per GPU: no figure here belongs to one machine.
"""

import msgspec

SLOWLY = 0.05
APART = 1.3


class DeviceLevels(msgspec.Struct, kw_only=True):
    """The power levels of one GPU in one run, in any one unit; serialisable."""

    floor: float | None = None
    working: float | None = None

    def look(self, power: float | None, memory_utilization: float | None) -> bool | None:
        """Learn from one reading and tell whether the device makes progress; None: it cannot be told.

        `power` is better an average since the look before (from the energy counter) than a momentary value.
        """
        if power is None and memory_utilization is None:
            return None
        traffic = memory_utilization is not None and memory_utilization > 0
        self._learn(power, traffic)
        if traffic:
            return True
        threshold = self._threshold()
        if power is not None and threshold is not None:
            return power > threshold
        return None if memory_utilization is None else False

    def _learn(self, power: float | None, traffic: bool) -> None:
        if power is None or power <= 0:
            return
        self.floor = power if self.floor is None else min(self.floor, power)
        if traffic:
            before = power if self.working is None else self.working
            self.working = before + SLOWLY * (power - before)

    def _threshold(self) -> float | None:
        if self.floor is None or self.working is None or self.working < APART * self.floor:
            return None
        return (self.floor + self.working) / 2
