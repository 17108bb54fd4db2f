"""Health in words: one line for the node, and one for each GPU that is not well, the worst first. Pure."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

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


def complaints(health: Iterable[ComponentHealth], names: Mapping[str, GpuName]) -> tuple[str, ...]:
    """One line for each GPU that is not healthy, and one for the node: `GPU 3 (0000:3b:00.0) is unhealthy: reason → what to
    do`. `names`: how sentences call a GPU, by uuid.
    """
    faulty = [one for one in health if one.state in BAD]
    return tuple(_line(one, faulty, names) for one in instructions(faulty))


def name_of(one: ComponentHealth, names: Mapping[str, GpuName]) -> str:
    """The name of the component's GPU for a sentence, or `the node`."""
    if one.uuid in names:
        return str(names[one.uuid])
    if one.gpu is not None:
        return f"GPU {one.gpu}"
    return f"GPU {one.uuid}" if one.uuid else NODE


def _line(
    one: ComponentHealth, faulty: Sequence[ComponentHealth], names: Mapping[str, GpuName]
) -> str:
    state = state_of_gpu(faulty, one.uuid)
    words = f"{name_of(one, names)} is {state.value}: {one.reason}"
    return f"{words} → {ACTION_WORDS[one.action]}"
