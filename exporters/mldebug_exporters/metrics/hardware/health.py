"""Health of the node's components, and what to do about those that are not well."""

from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.hardware.health.model import ACTION_WORDS, HealthState, SuggestedAction, worst_of
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import FamilyTable, Importance, MetricGroup, Sample

TABLE = FamilyTable("component", importance=Importance.RUN)
HEALTH = TABLE.gauge(
    "component_health",
    "State set: 1 for how the component does (of the GPUs' components the worst GPU), 0 for the other states."
    " unknown: it could not be read, which is never counted as healthy.",
    "state",
    absent="before the first look at the component, and where the node has no such thing",
)
ACTION = TABLE.info(
    "suggested_action",
    "What to do about a component that is not well, one action for each GPU and component, to join on `uuid`"
    " (empty for the node): "
    + ", ".join(word for word in ACTION_WORDS if word is not SuggestedAction.NONE)
    + ".",
    "uuid",
    "action",
    "reason_code",
    absent="while nothing is to be done",
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """The state of each component of the node's health, then the recommended actions."""
    for component, state in sorted(worst_of(snapshot.health).items()):
        for one in HealthState:
            yield Sample(HEALTH, (component, one.value), int(one is state))
    for component_health in snapshot.health:
        if component_health.action is not SuggestedAction.NONE:
            labels = (
                component_health.component,
                component_health.uuid,
                component_health.action.value,
                component_health.reason_code,
            )
            yield Sample(ACTION, labels)


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `health`: health of the node's components, and what to do about those that are not well."""
    return MetricGroup(TABLE.families, samples)
