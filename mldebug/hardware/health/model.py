"""Health as data: states, actions and their order, and the health of one component."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from mldebug.core.model import MeasuredData


class HealthState(StrEnum):
    """The health of a component: healthy, degraded, unhealthy, or unknown."""

    HEALTHY = "healthy"
    UNKNOWN = "unknown"  # not readable: never taken for healthy
    DEGRADED = "degraded"  # it works, and something is wrong
    UNHEALTHY = "unhealthy"  # no job should start here


BAD = (HealthState.UNHEALTHY, HealthState.DEGRADED)


class SuggestedAction(StrEnum):
    """What a person should do, from least to most drastic; of several, only the most drastic is shown."""

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
    SuggestedAction.NONE: "nothing to do",
    SuggestedAction.WATCH: "watch it",
    SuggestedAction.CHECK_JOB: "look at the job",
    SuggestedAction.CHECK_SETTINGS: "check the settings of the driver",
    SuggestedAction.CHECK_COOLING: "check cooling and airflow",
    SuggestedAction.CHECK_HARDWARE: "check seating, cables and power, then run diagnostics",
    SuggestedAction.RESET_WHEN_IDLE: "reset the GPU when its job has ended",
    SuggestedAction.RESET: "drain the node and reset the GPU",
    SuggestedAction.REBOOT: "drain the node and reboot it",
    SuggestedAction.REPLACE: "drain the node and return the GPU (RMA)",
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
    "gpu_errors",
    "kernel",
    "memory",
    "network",
    "ports",
    "storage",
)

MAX_REASONS = 3


class ComponentHealth(MeasuredData, frozen=True, kw_only=True):
    """The health of one component of one GPU, or of the node (`uuid` "")."""

    component: str  # of COMPONENTS
    state: HealthState
    reason: str = ""  # one sentence without a full stop
    reason_code: str = ""  # short and stable, for machines
    action: SuggestedAction = SuggestedAction.NONE
    uuid: str = ""
    gpu: int | None = None
    at: float | None = (
        None  # unix: of the newest event that `reason` tells of; None: a state that holds now
    )


class RuleFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one rule: `state` is HEALTHY where the value was read and is fine, UNKNOWN where it could not be read."""

    state: HealthState
    code: str = ""
    reason: str = ""
    action: SuggestedAction = SuggestedAction.NONE
    at: float | None = (
        None  # unix: when the event was that it tells of; None: a state that holds now
    )


FINE = RuleFinding(state=HealthState.HEALTHY)
OFF = RuleFinding(state=HealthState.UNKNOWN, code="off")
"""A rule that is turned off: it neither finds fault nor proves health."""
_SEVERITY = (HealthState.HEALTHY, HealthState.UNKNOWN, HealthState.DEGRADED, HealthState.UNHEALTHY)


def unread(what: str) -> RuleFinding:
    """The result of a rule whose value could not be read: UNKNOWN, with what is missing."""
    return RuleFinding(state=HealthState.UNKNOWN, code="not_readable", reason=what)


def bad(
    state: HealthState, code: str, reason: str, action: SuggestedAction, at: float | None = None
) -> RuleFinding:
    """The result of a rule that found something wrong. `at`: unix time of an event; None: a state that holds now."""
    return RuleFinding(state=state, code=code, reason=reason, action=action, at=at)


def combine(
    component: str, found: Iterable[RuleFinding], uuid: str = "", gpu: int | None = None
) -> ComponentHealth:
    """Combine the findings of all rules for one component into its health: the worst state, and the most drastic action.

    It is healthy only if a value was read and is fine; where nothing could be read, it is unknown. `uuid` and `gpu` (the
    index) name the GPU; "" and None for a component of the node.
    """
    findings = tuple(one for one in found if one is not OFF)
    faults = [finding for finding in findings if finding.state in BAD]
    missing = [one.reason for one in findings if one.state is HealthState.UNKNOWN]
    if faults:
        return _faulty(component, faults, uuid, gpu)
    if any(one.state is HealthState.HEALTHY for one in findings):
        reason = f"not readable: {_sentence(missing, ', ')}" if missing else ""
        return ComponentHealth(
            component=component, state=HealthState.HEALTHY, reason=reason, uuid=uuid, gpu=gpu
        )
    return ComponentHealth(
        component=component,
        state=HealthState.UNKNOWN,
        reason=f"not readable: {_sentence(missing, ', ')}" if missing else "nothing tells it",
        reason_code="not_readable",
        uuid=uuid,
        gpu=gpu,
    )


def _faulty(
    component: str, faults: Sequence[RuleFinding], uuid: str, gpu: int | None
) -> ComponentHealth:
    """The fault with the greatest action speaks; the next ones stand behind it."""
    ordered = sorted(faults, key=lambda one: (-_rank(one.action), -_SEVERITY.index(one.state)))
    worst = max(ordered, key=lambda one: _SEVERITY.index(one.state))
    return ComponentHealth(
        component=component,
        state=worst.state,
        reason=_sentence([one.reason for one in ordered], "; "),
        reason_code=ordered[0].code,
        action=ordered[0].action,
        uuid=uuid,
        gpu=gpu,
        at=max((one.at for one in faults if one.at is not None), default=None),
    )


def _sentence(reasons: Sequence[str], between: str) -> str:
    """The first three, and how many more."""
    more = len(reasons) - MAX_REASONS
    shown = reasons[:MAX_REASONS]
    return between.join((*shown, f"and {more} more") if more > 0 else shown)


def _rank(action: SuggestedAction) -> int:
    return list(SuggestedAction).index(action)


def worst_of(health: Iterable[ComponentHealth]) -> dict[str, HealthState]:
    """By component, the worst state of all GPUs."""
    found: dict[str, HealthState] = {}
    for one in health:
        before = found.get(one.component, HealthState.HEALTHY)
        found[one.component] = max(before, one.state, key=_SEVERITY.index)
    return found


def instructions(health: Iterable[ComponentHealth]) -> tuple[ComponentHealth, ...]:
    """What a person has to do: at most one entry for each GPU and one for the node, the most drastic first."""
    greatest: dict[str, ComponentHealth] = {}
    for one in health:
        before = greatest.get(one.uuid)
        if one.action is not SuggestedAction.NONE and (
            before is None or _rank(one.action) > _rank(before.action)
        ):
            greatest[one.uuid] = one
    return tuple(sorted(greatest.values(), key=lambda one: (-_rank(one.action), one.uuid)))
