"""Whether a GPU computes or only spins in a kernel that waits: decided by the power levels that the run itself has shown.

While a collective waits, the GPU's utilization still reads 100 %. Memory traffic and power do differ (2 x H200: 35 % and 690 W at
work, 0 % and 125 W in a hang). The level between the two is learned for each GPU of each run, so no fixed figure is needed.
"""

import msgspec

SLOWLY = 0.05
APART = 1.3


class DeviceLevels(msgspec.Struct, kw_only=True):
    """The power that one GPU draws in one run: the lowest reading (`floor`) and the mean while it works (`working`). Any unit, if
    all readings have the same. Can be stored as JSON.
    """

    floor: float | None = None
    working: float | None = None
    looks: int = 0  # at work

    def look(self, power: float | None, memory_utilization: float | None) -> bool | None:
        """Learn from one reading and return whether the GPU makes progress; None where that is not known.

        `power`: best the average since the previous reading (from the energy counter), else a momentary value.
        `memory_utilization`: above 0 always means progress.
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
        """Add one reading of the power; None and 0 are ignored. `works`: whether the GPU computed or moved memory during it."""
        if power is None or power <= 0:
            return
        self.floor = power if self.floor is None else min(self.floor, power)
        if works:
            self.looks += 1
            self.working = toward(self.working, power, self.looks)

    def share(self, power: float | None) -> float | None:
        """Where a power reading lies between the lowest reading (0.0) and the mean at work (1.0). None where there is no reading,
        or the mean at work is less than 1.3 times the lowest.
        """
        floor, working = self.floor, self.working
        if power is None or floor is None or working is None or working < APART * floor:
            return None
        return (power - floor) / (working - floor)


def toward(mean: float | None, value: float, looks: int) -> float:
    """The running mean after one more `value`; `looks` counts the values so far, this one included. Exact for the first 20
    values; later each new value has a weight of 5 %.
    """
    return value if mean is None else mean + max(SLOWLY, 1 / max(looks, 1)) * (value - mean)
