"""Network ports over time: which were up before, at what rate, how fast their errors grow, how often they lost the link ("flapped").

Pure.

A burst of errors is ordinary: a cable was plugged in, a peer restarted, a switch was full for a
second. So the median of the rates between readings of the last ten minutes is judged.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import msgspec

from mldebug.core.model import Gap, MeasuredData
from mldebug.hardware.ports.parse import PortReading

WINDOW = 600.0  # seconds of which the rates are judged
LEAST = 8  # rates between reads that a judgement needs
SETTLED = 2  # reads in a row in which a port has to be down
FLAP = "link_down"


class PortState(MeasuredData, frozen=True, kw_only=True):
    """One port with what is remembered of it."""

    now: PortReading
    once_up: bool = False  # since the node was booted, as far as an agent has watched it
    best_gigabits: float | None = None  # the highest rate since then
    down_reads: int = 0  # reads in a row in which it was not up
    down_seconds: float = 0.0  # from the first of these reads to the last
    rates: dict[
        str, float
    ] = {}  # kind of error -> a second, the median; a kind without enough reads is absent
    flaps: int = 0  # times that it went down within the event window
    used: bool = True  # False: a job here names the ports that it uses, and not this one


class NodePorts(MeasuredData, frozen=True, kw_only=True):
    """All ports of the node at one moment. `at`: unix."""

    at: float
    ports: tuple[PortState, ...] = ()
    gaps: tuple[Gap, ...] = ()


class _Counted(NamedTuple):
    at: float
    errors: Mapping[str, int]


class PortWatch:
    """Follows the ports of the node. For one thread."""

    def __init__(self, window: float = WINDOW, least: int = LEAST) -> None:
        self._window, self._least = window, least
        self._states: dict[str, PortState] = {}
        self._counted: dict[str, deque[_Counted]] = {}
        self._flaps: dict[str, deque[tuple[float, int]]] = {}
        self._down_since: dict[str, float] = {}
        self._earlier: Mapping[str, float] = {}

    def resume(self, earlier: Mapping[str, float]) -> None:
        """Go on from the ports that an earlier agent found up since the node was booted: name -> the highest rate in Gb/s, 0 where
        it is not known.
        """
        self._earlier = earlier

    def take(self, readings: Iterable[PortReading], at: float, flap_window: float, silent: Collection[str] = ()) -> tuple[PortState, ...]:  # fmt: skip
        """Add one reading of all ports at time `at` (monotonic seconds), and return their states.

        A lost link is counted as a flap for `flap_window` seconds. `silent`: names of ports that did not answer; they stay
        as they were. Ports that are in neither are forgotten.
        """
        states = {name: self._states[name] for name in silent if name in self._states}
        states |= {one.name: self._state(one, at, flap_window) for one in readings}
        self._counted = {name: kept for name, kept in self._counted.items() if name in states}
        self._flaps = {name: kept for name, kept in self._flaps.items() if name in states}
        self._down_since = {name: kept for name, kept in self._down_since.items() if name in states}
        self._states = states
        return tuple(states.values())

    def _state(self, now: PortReading, at: float, flap_window: float) -> PortState:
        before = self._states.get(now.name)
        best = (
            before.best_gigabits if before else None,
            self._earlier.get(now.name),
            now.gigabits if now.up else None,
        )
        self._note_flaps(now, at, flap_window)
        if now.up:
            self._down_since.pop(now.name, None)
        return PortState(
            now=now,
            once_up=bool(now.up or (before and before.once_up) or now.name in self._earlier),
            best_gigabits=max((one for one in best if one), default=None),
            down_reads=0 if now.up else (before.down_reads if before else 0) + 1,
            down_seconds=0.0 if now.up else at - self._down_since.setdefault(now.name, at),
            rates=self._rates(now, at),
            flaps=sum(count for _, count in self._flaps.get(now.name, ())),
        )

    def _note_flaps(self, now: PortReading, at: float, flap_window: float) -> None:
        kept = self._counted.get(now.name)
        flaps = self._flaps.setdefault(now.name, deque())
        more = now.errors.get(FLAP, 0) - kept[-1].errors.get(FLAP, 0) if kept and FLAP in kept[-1].errors else 0  # fmt: skip
        if more > 0:
            flaps.append((at, more))
        while flaps and at - flaps[0][0] > flap_window:
            flaps.popleft()

    def _rates(self, now: PortReading, at: float) -> dict[str, float]:
        kept = self._counted.setdefault(now.name, deque())
        kept.append(_Counted(at, now.errors))
        while at - kept[0].at > self._window:
            kept.popleft()
        return {kind: rate for kind in now.errors if (rate := self._rate(kind, kept)) is not None}

    def _rate(self, kind: str, kept: "deque[_Counted]") -> float | None:
        reads = list(kept)
        steps = [
            (new.errors[kind] - old.errors[kind]) / (new.at - old.at)
            for old, new in pairwise(reads)
            if kind in old.errors and kind in new.errors and new.at > old.at
            if new.errors[kind] >= old.errors[kind]
        ]
        return median(steps) if len(steps) >= self._least else None


def used_by(states: Iterable[PortState], wanted: Iterable[str]) -> tuple[PortState, ...]:
    """The ports, each marked whether a job uses it.

    `wanted`: values of NCCL_IB_HCA of the jobs on this node; without any, all count as used. Ethernet
    interfaces are not changed.

    NCCL's rule: `mlx5` is the beginning of a name, `=mlx5_0:1,mlx5_1` are whole names with a port,
    `^` excludes.
    """
    filters = [one for one in (parse_hca(text) for text in wanted) if one.names]
    if not filters:
        return tuple(states)
    return tuple(
        msgspec.structs.replace(one, used=any(each.takes(one.now.name) for each in filters))
        if one.now.link != "ethernet"
        else one
        for one in states
    )


class HcaFilter(NamedTuple):
    """The meaning of a value of NCCL_IB_HCA, which chooses the ports that NCCL uses."""

    names: tuple[str, ...]
    exact: bool = False
    excludes: bool = False

    def takes(self, port: str) -> bool:
        """Whether NCCL uses this port, given as `mlx5_0/1`."""
        device, _, number = port.partition("/")
        return any(self._is(one, device, number) for one in self.names) != self.excludes

    def _is(self, wanted: str, device: str, number: str) -> bool:
        name, _, only = wanted.partition(":")
        if only.split(":")[0] not in ("", number):
            return False
        return device == name if self.exact else device.startswith(name)


def parse_hca(text: str) -> HcaFilter:
    """Parse a value of the variable NCCL_IB_HCA, which says which network ports NCCL may use."""
    text = text.strip()
    excludes, text = text.startswith("^"), text.removeprefix("^")
    exact, text = text.startswith("="), text.removeprefix("=")
    names = tuple(one.strip() for one in text.split(",")[:64] if one.strip())
    return HcaFilter(names, exact, excludes)
