"""What one quick reading gives of the GPUs of one run: the input of the hang fingerprint."""

import math

import msgspec

from mldebug.core.model import MeasuredData
from mldebug.hardware.gpu.readings import GpuActivity, GpuWatch

MOVES_RATIO = 0.005
"""Tensor or DRAM activity above this is work. A spinning collective was seen at 0.0007 at most, training at 0.09 and more."""
MOVES_BYTES_PER_SECOND = 1_000_000.0


class RankSign(MeasuredData, frozen=True, kw_only=True):
    """What is known of the rank that uses the GPU. None always means "not known"."""

    rank: int
    stepping: bool | None = None  # it made a step since the look before
    written_bytes_per_second: float | None = None  # to files
    waiting: bool | None = None  # a stack sample shows it in a collective or a device sync


class GpuSign(MeasuredData, frozen=True, kw_only=True):
    """One GPU at one reading.

    Any value may be None: a MIG slice has no utilization, an old card no energy counter.
    """

    uuid: str
    index: int
    node: str = ""
    utilization_ratio: float | None = None
    memory_utilization_ratio: float | None = None
    power_watts: float | None = None
    energy_joules: float | None = None  # counter; by turns, so not at every look
    activity: GpuActivity | None = None  # only where its window lies in this look
    rank: RankSign | None = None
    shared: bool = False  # other programs compute on it, too: what it does may be their work

    @property
    def busy(self) -> float | None:
        """The share of the time (0 to 1) in which some kernel ran; None where it was not read."""
        utilization = ratio(self.utilization_ratio)
        return (
            utilization
            if utilization is not None or self.activity is None
            else ratio(self.activity.graphics_ratio)
        )

    @property
    def moves(self) -> bool | None:
        """Whether the hardware's counters show tensor, memory or link work; None where the GPU has no such counters."""
        return None if self.activity is None else moves(self.activity)


def moves(activity: GpuActivity) -> bool | None:
    """Whether these counters show tensor, memory or link work; None where they do not count memory."""
    if activity.dram_ratio is None:
        return None
    ratios = (activity.dram_ratio, *activity.tensor_ratio.values())
    links = (activity.nvlink_receive_bytes_per_second, activity.nvlink_transmit_bytes_per_second)
    return any(one > MOVES_RATIO for one in ratios) or any(
        link is not None and link > MOVES_BYTES_PER_SECOND for link in links
    )


def sign_of(
    watch: GpuWatch,
    *,
    node: str = "",
    rank: RankSign | None = None,
    activity: GpuActivity | None = None,
    shared: bool = False,
) -> GpuSign:
    """Combine one GPU's quick reading with what is known of the rank that uses it. `shared`: other programs compute on it."""
    return GpuSign(
        uuid=watch.uuid,
        index=watch.index,
        node=node,
        utilization_ratio=watch.utilization_ratio,
        memory_utilization_ratio=watch.memory_utilization_ratio,
        power_watts=watch.power_watts,
        energy_joules=watch.energy_joules,
        activity=activity,
        rank=rank,
        shared=shared,
    )


def finite(value: float | None) -> float | None:
    """The value; None for NaN, infinities and negative numbers."""
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def ratio(value: float | None) -> float | None:
    """The value if it is a ratio from 0 to 1 (up to 1.05 counts as 1); None for anything else."""
    number = finite(value)
    return None if number is None or number > 1.05 else min(number, 1.0)


def watts(value: float | None) -> float | None:
    """The value if it can be the power of one board (0 to 100,000 W); None for anything else."""
    number = finite(value)
    return number if number is not None and number < 100_000 else None


class Average(msgspec.Struct, kw_only=True):
    """The mean power between two readings of the energy counter.

    Not every reading has that counter.
    """

    at: float | None = None
    energy: float | None = None

    def power(self, sign: GpuSign, at: float) -> float | None:
        """Return the average power in watts since the last call whose reading had an energy counter. Where there was none, or the
        counter stood still, fell or jumped, it is the momentary power; None where neither is known. `sign`: the new reading of
        the GPU; `at`: its unix time.
        """
        momentary, energy = watts(sign.power_watts), finite(sign.energy_joules)
        if energy is None:
            return momentary
        before, since = self.energy, self.at
        self.at, self.energy = at, energy
        if before is None or since is None or energy <= before:
            return momentary
        if not 0 < at - since <= LONGEST:
            return momentary
        mean = (energy - before) / (at - since)
        absurd = momentary is not None and mean > ABSURD * max(momentary, 1.0)
        return momentary if absurd else watts(mean)


LONGEST = 15.0
"""Seconds between two readings over which a mean still says something of now: a longer one hides a hang behind the work before."""
ABSURD = 20.0
"""A mean so many times the momentary power comes from a counter that jumped."""
