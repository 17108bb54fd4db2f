"""Alerts about the health of a node's components (GPU memory, links, kernel log, …). Pure."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from mldebug.alerts.model import Alert, Severity
from mldebug.hardware.health.model import (
    ACTION_WORDS,
    BAD,
    ComponentHealth,
    HealthState,
    SuggestedAction,
)
from mldebug.hardware.health.sentences import GpuName, name_of

HEALTH = "health/"


def health_alerts(
    components: Iterable[ComponentHealth], names: Mapping[str, GpuName]
) -> Iterator[Alert]:
    """One alert for each component that is degraded or unhealthy (not for unknown ones).

    `names`: what sentences call a GPU, by uuid.
    """
    for one in components:
        if one.state not in BAD:
            continue
        gpu = {"uuid": one.uuid} if one.uuid else {}
        yield Alert(
            key=health_key(one),
            kind=one.component,
            severity=Severity.CRITICAL if one.state is HealthState.UNHEALTHY else Severity.WARNING,
            sentence=f"{name_of(one, names)} is {one.state.value}: {one.reason}{_when(one)}",
            labels={"component": one.component, **gpu},
            next_steps=() if one.action is SuggestedAction.NONE else (ACTION_WORDS[one.action],),
            culprits=(name_of(one, names),) if one.uuid else (),
            verdict=one.reason_code,
            confidence="high" if one.state is HealthState.UNHEALTHY else "medium",
        )


def _when(one: ComponentHealth) -> str:
    """The time of the event: the agent may have met it hours later, at its start."""
    return f", at {datetime.fromtimestamp(one.at, UTC):%Y-%m-%d %H:%M:%S} UTC" if one.at else ""


def healthy_keys(components: Iterable[ComponentHealth]) -> Iterator[str]:
    """Keys of the alerts of components that are healthy, which are therefore over.

    A component that cannot be read keeps its alert.
    """
    return (health_key(one) for one in components if one.state is HealthState.HEALTHY)


def health_key(one: ComponentHealth) -> str:
    """The key of a component's alert. It depends on component and GPU, not on what is wrong."""
    return f"{HEALTH}{one.component}/{one.uuid}"
