"""The words of health: states, actions and their order, and what one component says."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from mldebug.core.model import Noun


class State(StrEnum):
    """How a component does."""

    HEALTHY = "healthy"
    UNKNOWN = "unknown"  # not readable: never taken for healthy
    DEGRADED = "degraded"  # it works, and something is wrong
    UNHEALTHY = "unhealthy"  # no job should start here


BAD = (State.UNHEALTHY, State.DEGRADED)


class Action(StrEnum):
    """What to do, from the least to the most; of several, only the greatest is told."""

    NONE = "none"
    WATCH = "watch"
    CHECK_JOB = "check_job"
    CHECK_SETTINGS = "check_settings"
    CHECK_COOLING = "check_cooling"
    CHECK_HARDWARE = "check_hardware"
    RESET_WHEN_IDLE = "reset_when_idle"
    RESET = "reset"
    REBOOT = "reboot"
    REPLACE = "replace"


ACTION_WORDS = {
    Action.NONE: "nothing to do",
    Action.WATCH: "watch it",
    Action.CHECK_JOB: "look at the job",
    Action.CHECK_SETTINGS: "check the settings of the driver",
    Action.CHECK_COOLING: "check cooling and airflow",
    Action.CHECK_HARDWARE: "check seating, cables and power, then run diagnostics",
    Action.RESET_WHEN_IDLE: "reset the GPU when its job has ended",
    Action.RESET: "drain the node and reset the GPU",
    Action.REBOOT: "drain the node and reboot it",
    Action.REPLACE: "drain the node and return the GPU (RMA)",
}
COMPONENTS = (
    "gpu_ecc",
    "gpu_remapped_rows",
    "gpu_retired_pages",
    "gpu_temperature",
    "gpu_power",
    "gpu_clocks",
    "gpu_pcie",
    "gpu_nvlink",
    "gpu_recovery",
    "gpu_count",
    "gpu_xid",
    "gpu_driver",
    "kernel",
    "memory",
)

MAX_REASONS = 3


class Health(Noun, frozen=True, kw_only=True):
    """One component, of one GPU or of the node (`uuid` "")."""

    component: str  # of COMPONENTS
    state: State
    reason: str = ""  # one sentence without a full stop
    reason_code: str = ""  # short and stable, for machines
    action: Action = Action.NONE
    uuid: str = ""
    gpu: int | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What one rule says: `state` HEALTHY where the value was read and is fine, UNKNOWN where it was not read."""

    state: State
    code: str = ""
    reason: str = ""
    action: Action = Action.NONE


FINE = Found(state=State.HEALTHY)
OFF = Found(state=State.UNKNOWN, code="off")
"""A rule that is turned off: it neither finds fault nor proves health."""
_SEVERITY = (State.HEALTHY, State.UNKNOWN, State.DEGRADED, State.UNHEALTHY)


def unread(what: str) -> Found:
    """A rule whose value could not be read."""
    return Found(state=State.UNKNOWN, code="not_readable", reason=what)


def bad(state: State, code: str, reason: str, action: Action) -> Found:
    """A rule that found something."""
    return Found(state=state, code=code, reason=reason, action=action)


def combine(
    component: str, found: Iterable[Found], uuid: str = "", gpu: int | None = None
) -> Health:
    """One component from its rules: the worst that was found, with the one greatest action.

    Healthy needs a value that was read: where nothing could be, the component is unknown.
    """
    told = tuple(one for one in found if one is not OFF)
    faults = [one for one in told if one.state in BAD]
    missing = [one.reason for one in told if one.state is State.UNKNOWN]
    if faults:
        return _faulty(component, faults, uuid, gpu)
    if any(one.state is State.HEALTHY for one in told):
        reason = f"not readable: {_sentence(missing, ', ')}" if missing else ""
        return Health(component=component, state=State.HEALTHY, reason=reason, uuid=uuid, gpu=gpu)
    return Health(
        component=component,
        state=State.UNKNOWN,
        reason=f"not readable: {_sentence(missing, ', ')}" if missing else "nothing tells it",
        reason_code="not_readable",
        uuid=uuid,
        gpu=gpu,
    )


def _faulty(component: str, faults: Sequence[Found], uuid: str, gpu: int | None) -> Health:
    """The fault with the greatest action speaks; the next ones stand behind it."""
    ordered = sorted(faults, key=lambda one: (-_rank(one.action), -_SEVERITY.index(one.state)))
    worst = max(ordered, key=lambda one: _SEVERITY.index(one.state))
    return Health(
        component=component,
        state=worst.state,
        reason=_sentence([one.reason for one in ordered], "; "),
        reason_code=ordered[0].code,
        action=ordered[0].action,
        uuid=uuid,
        gpu=gpu,
    )


def _sentence(reasons: Sequence[str], between: str) -> str:
    """The first three, and how many more."""
    more = len(reasons) - MAX_REASONS
    told = reasons[:MAX_REASONS]
    return between.join((*told, f"and {more} more") if more > 0 else told)


def _rank(action: Action) -> int:
    return list(Action).index(action)


def worst_of(told: Iterable[Health]) -> dict[str, State]:
    """The state of each component over all GPUs: the worst."""
    found: dict[str, State] = {}
    for one in told:
        before = found.get(one.component, State.HEALTHY)
        found[one.component] = max(before, one.state, key=_SEVERITY.index)
    return found


def instructions(told: Iterable[Health]) -> tuple[Health, ...]:
    """One instruction for each GPU and one for the node, the greatest first: what a person has to do."""
    greatest: dict[str, Health] = {}
    for one in told:
        before = greatest.get(one.uuid)
        if one.action is not Action.NONE and (
            before is None or _rank(one.action) > _rank(before.action)
        ):
            greatest[one.uuid] = one
    return tuple(sorted(greatest.values(), key=lambda one: (-_rank(one.action), one.uuid)))
