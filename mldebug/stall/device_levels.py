"""Whether a GPU computes, or one waiting kernel only spins: decided by the power levels that the run itself has shown.

A collective that waits keeps utilization at 100 %; memory traffic and power do not lie (2 x H200: 35 % and 690 W at work,
0 % and 125 W in a hang). Where the middle lies is learned per GPU: no figure here belongs to one machine.
"""

import msgspec

SLOWLY = 0.05
APART = 1.3


class DeviceLevels(msgspec.Struct, kw_only=True):
    """How much power one GPU draws in one run when it works and when it only waits. Any unit, always the same one; serialisable."""

    floor: float | None = None
    working: float | None = None
    looks: int = 0  # at work

    def look(self, power: float | None, memory_utilization: float | None) -> bool | None:
        """Learn from one reading. Returns whether the GPU makes progress; None where that is not known.

        `power` is better an average since the look before (from the energy counter) than a momentary value.
        """
        if power is None and memory_utilization is None:
            return None
        traffic = memory_utilization is not None and memory_utilization > 0
        self.learn(power, works=traffic)
        if traffic:
            return True
        share = self.share(power)
        if share is not None:
            return share > 0.5
        return None if memory_utilization is None else False

    def learn(self, power: float | None, *, works: bool) -> None:
        """Add one reading of the power; `works`: whether the GPU computed or moved memory during it."""
        if power is None or power <= 0:
            return
        self.floor = power if self.floor is None else min(self.floor, power)
        if works:
            self.looks += 1
            self.working = toward(self.working, power, self.looks)

    def share(self, power: float | None) -> float | None:
        """The position of a power reading between the lowest seen (0) and usual work (1); None until the two are far enough apart."""
        floor, working = self.floor, self.working
        if power is None or floor is None or working is None or working < APART * floor:
            return None
        return (power - floor) / (working - floor)


def toward(mean: float | None, value: float, looks: int) -> float:
    """Update a running mean, which is exact for the first values and then forgets slowly."""
    return value if mean is None else mean + max(SLOWLY, 1 / max(looks, 1)) * (value - mean)
