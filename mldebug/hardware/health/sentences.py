"""Health in words: one line for the node, and one for each GPU that is not well, the worst first. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from mldebug.core.units import duration_words
from mldebug.hardware.health.model import (
    ACTION_WORDS,
    BAD,
    ComponentHealth,
    HealthState,
    instructions,
)

MAX_LINES = 8
NODE = "this node"
_ORDER = (HealthState.HEALTHY, HealthState.UNKNOWN, HealthState.DEGRADED, HealthState.UNHEALTHY)


class GpuName(msgspec.Struct, frozen=True):
    """How a GPU is named in a sentence."""

    index: int
    bus_id: str = ""  # 0000:3b:00.0

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.bus_id})" if self.bus_id else f"GPU {self.index}"


def state_of_gpu(health: Iterable[ComponentHealth], uuid: str) -> HealthState:
    """The worst state of one GPU's components. Unknown unless at least one component was read."""
    states = {one.state for one in health if one.uuid == uuid}
    bad = states & set(BAD)
    if bad:
        return max(bad, key=_ORDER.index)
    return HealthState.HEALTHY if HealthState.HEALTHY in states else HealthState.UNKNOWN


def headline(uuids: Sequence[str], health: Sequence[ComponentHealth]) -> str:
    """The health of these GPUs in words: `8 GPUs, all healthy`, or how many are in which state. The node's own components
    are left out.
    """
    states = [state_of_gpu(health, uuid) for uuid in uuids]
    count = f"{len(states)} {'GPU' if len(states) == 1 else 'GPUs'}"
    if states and all(one is HealthState.HEALTHY for one in states):
        return f"{count}, {'healthy' if len(states) == 1 else 'all healthy'}"
    parts = [(one, states.count(one)) for one in reversed(_ORDER)]
    words = ", ".join(f"{number} {state.value}" for state, number in parts if number)
    return f"{count}: {words}" if words else count


class Complaint(NamedTuple):
    """What is wrong with a GPU or the node, in words. `at`: unix time of the event that they tell of; None: it is so now."""

    text: str
    at: float | None = None


def complaints(
    health: Iterable[ComponentHealth], names: Mapping[str, GpuName], now: float
) -> tuple[Complaint, ...]:
    """One line for each GPU that is not healthy, and one for the node: `GPU 3 (0000:3b:00.0) is unhealthy: reason, 2 h ago → what to
    do`. `names`: how sentences call a GPU, by uuid; `now`: unix time.
    """
    faulty = [one for one in health if one.state in BAD]
    return tuple(Complaint(_line(one, faulty, names, now), one.at) for one in instructions(faulty))


def dated_reason(one: ComponentHealth, now: float) -> str:
    """Why a component is not well, with the time since the event that it tells of: `the kernel killed a process for memory, 2 h ago`."""
    if one.at is None:
        return one.reason
    several = "the last " if "; " in one.reason else ""
    return f"{one.reason}, {several}{duration_words(int(now - one.at))} ago"


def name_of(one: ComponentHealth, names: Mapping[str, GpuName]) -> str:
    """The name of the component's GPU for a sentence, or `the node`."""
    if one.uuid in names:
        return str(names[one.uuid])
    if one.gpu is not None:
        return f"GPU {one.gpu}"
    return f"GPU {one.uuid}" if one.uuid else NODE


def _line(
    one: ComponentHealth,
    faulty: Sequence[ComponentHealth],
    names: Mapping[str, GpuName],
    now: float,
) -> str:
    state = state_of_gpu(faulty, one.uuid)
    words = f"{name_of(one, names)} is {state.value}: {dated_reason(one, now)}"
    return f"{words} → {ACTION_WORDS[one.action]}"
