"""The load of one GPU at one reading ("look"), judged by the power and traffic that it has shown in this run.

Can be stored, so it survives a restart of the agent.
"""

from enum import StrEnum

import msgspec

from mldebug.hardware.gpu.samples import ABSURD, Average, GpuSign, ratio
from mldebug.stall.device_levels import DeviceLevels, toward

BUSY, HALF, QUIET = 0.9, 0.5, 0.2  # shares of the time with a kernel
PARTLY = 0.25  # of usual work
LITTLE = 0.05  # of the usual memory traffic: counts as none
TELLING = 0.02  # memory utilization in whole percents: what usually shows less proves nothing by showing none


class Load(StrEnum):
    """How busy a GPU is in one reading, whichever process uses it."""

    WORKING = "working"
    PARTLY = "partly"  # it computes now and then
    POWERED = "powered"  # no memory traffic, and nearly the power of work
    SPINNING = "spinning"  # a kernel runs all the time, moves nothing, and takes little power
    QUIET = "quiet"  # no kernel runs
    UNKNOWN = "unknown"


_OF_ANYBODY = (Load.WORKING, Load.PARTLY, Load.POWERED)
"""Loads that another program on the GPU may cause alone."""


class Baseline(msgspec.Struct, kw_only=True):
    """The usual power and load of one GPU in one run, and for how many readings its load has not changed."""

    levels: DeviceLevels = msgspec.field(default_factory=DeviceLevels)
    average: Average = msgspec.field(default_factory=Average)
    traffic: float | None = None  # usual memory utilization at work
    load: Load = Load.UNKNOWN
    looks: int = 0  # in a row with this load
    since: float = 0.0
    worked_at: float | None = None
    stepped_at: float | None = None
    power: float | None = None  # of the last look

    def look(self, sign: GpuSign, at: float) -> Load:
        """Learn from one reading of the GPU at unix time `at`, and return how busy it is now. Of a GPU that other programs use,
        only rest says something of the rank; its power at work is learned while the job makes steps, so that rest is known.
        """
        self.power = self.average.power(sign, at)
        memory = ratio(sign.memory_utilization_ratio)
        works = self._works(sign, memory)
        busy = sign.busy
        steady = works and (busy is None or busy >= HALF)
        steady = steady and self.load in (Load.WORKING, Load.UNKNOWN)
        stepping = sign.rank is not None and sign.rank.stepping is True
        steady = steady and (stepping or not sign.shared)
        if not self._absurd():
            self.levels.learn(self.power, works=steady)
        if steady and memory is not None and memory > 0 and not sign.shared:
            self.traffic = toward(self.traffic, memory, self.levels.looks)
        if stepping:
            self.stepped_at = at
        load = self._load(sign, memory, works)
        load = Load.UNKNOWN if sign.shared and load in _OF_ANYBODY else load
        self._keep(load, at)
        return load

    def settled(self, looks: int = 2) -> bool:
        """Whether the GPU's load was the same in the last `looks` readings.

        More than one is needed, as utilization and power do not change at the same moment.
        """
        return self.looks >= looks

    def _keep(self, load: Load, at: float) -> None:
        if load is Load.WORKING or load is Load.PARTLY:
            self.worked_at = at
        if load is not self.load or not self.looks:
            self.load, self.looks, self.since = load, 0, at
        self.looks += 1

    def _absurd(self) -> bool:
        usual = self.levels.working
        return usual is not None and self.power is not None and self.power > ABSURD * usual

    def _works(self, sign: GpuSign, memory: float | None) -> bool:
        """Is there proof of work: memory traffic, the hardware's counters, or, where neither is told, steps?"""
        if sign.moves or self._traffic(memory):
            return True
        measured = sign.moves is not None or memory is not None
        stepping = sign.rank is not None and sign.rank.stepping is True
        return not measured and stepping and (sign.busy or 0.0) >= HALF

    def _traffic(self, memory: float | None) -> bool:
        return memory is not None and memory > LITTLE * (self.traffic or 0.0)

    def _load(self, sign: GpuSign, memory: float | None, works: bool) -> Load:
        share, busy = self.levels.share(self.power), sign.busy
        if works:
            little = share is not None and share < PARTLY
            return Load.PARTLY if little and busy is not None and busy < HALF else Load.WORKING
        if busy is None:
            return Load.UNKNOWN
        if busy >= BUSY and _few_blocks(sign):
            return Load.SPINNING
        if share is not None and share >= HALF:
            measured = memory is not None or sign.moves is not None
            return Load.POWERED if measured or busy < HALF else Load.WORKING
        if busy <= QUIET:
            return Load.QUIET
        return Load.SPINNING if busy >= BUSY and self._spins(sign, memory, share) else Load.UNKNOWN

    def _spins(self, sign: GpuSign, memory: float | None, share: float | None) -> bool:
        """No work, and this run has shown what work looks like; the hardware's own counters need no such thing."""
        if sign.moves is False:
            return True
        if memory is None:
            return share is not None
        return share is not None or (self.traffic is not None and self.traffic >= TELLING)


def _few_blocks(sign: GpuSign) -> bool:
    """Whether the hardware counts no work and blocks on few multiprocessors, as kernels of collectives have them. A small model takes
    hardly more power at work than they do, so its usual power says nothing against it.
    """
    active = sign.activity.sm_active_ratio if sign.activity else None
    return sign.moves is False and active is not None and active < HALF
