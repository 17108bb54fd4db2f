"""Actions: what was done about events, and what was not."""

from collections.abc import Iterator

from mldebug.alerts.action_model import ActionOutcome
from mldebug.core.plugins import NoOptions
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import FamilyTable, MetricGroup, Sample, known

TABLE = FamilyTable("action")
ACTIONS = TABLE.counter(
    "actions",
    "Decisions about an action since the agent's start: ran, dry_run (it would have), refused (it may not, or does not fit), failed,"
    " interrupted (the agent ended while it ran: it is not done again).",
    "outcome",
    absent="where no action is configured",
)
SUCCESS = TABLE.gauge(
    "action_last_success_timestamp_seconds",
    "Unix time at which the action last ran to a good end.",
    absent="before the first time since the agent's start",
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """How often each configured action ran, by outcome, and when it last succeeded."""
    for action in snapshot.events.actions:
        for outcome in ActionOutcome:
            yield Sample(ACTIONS, (action.name, str(outcome)), action.counts.get(outcome, 0))
        yield from known((action.name,), (SUCCESS, action.last_success))


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `actions`: actions: what was done about events, and what was not."""
    return MetricGroup(TABLE.families, samples)
