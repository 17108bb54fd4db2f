"""Events: what fires now, and how the channels do that tell people of it."""

from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import (
    FamilyTable,
    Importance,
    MetricGroup,
    Sample,
    known,
)

TABLE = FamilyTable(absent="where no channel is configured")
FIRING = TABLE.gauge(
    "events_firing",
    "Events that fire now: open incidents of jobs, components of the node that are not well, and the like.",
    "kind",
    "severity",
    absent="while none of the kind fires",
    importance=Importance.RUN,
)
DROPPED = TABLE.counter(
    "events_dropped",
    "Events of which nobody was told, for there was no room to remember them.",
    absent="never",
)
WAITING = TABLE.gauge(
    "channel_waiting",
    "Events of whose newest state the channel has not been told.",
    "channel",
    "kind",
)
MESSAGES = TABLE.counter(
    "channel_messages",
    "Messages since the agent's start: sent (acknowledged by the other side), failed (a try; it is repeated),"
    " refused (the other side does not want it; it is not repeated).",
    "channel",
    "kind",
    "result",
)
SUCCESS = TABLE.gauge(
    "channel_last_success_timestamp_seconds",
    "Unix time of the last message that the other side has acknowledged.",
    "channel",
    "kind",
    absent="before the first one since the agent's start",
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """Yield how many events fire, by kind and severity, and for each channel what waits and what was sent."""
    events = snapshot.events
    for name, count in sorted(events.counts.items()):
        kind, _, severity = name.partition("/")
        yield Sample(FIRING, (kind, severity), count)
    yield Sample(DROPPED, (), events.dropped)
    for channel in events.channels:
        whose = (channel.name, channel.kind)
        yield Sample(WAITING, whose, channel.waiting)
        results = {"sent": channel.sent, "failed": channel.failed, "refused": channel.refused}
        for result, count in results.items():
            yield Sample(MESSAGES, (*whose, result), count)
        yield from known(whose, (SUCCESS, channel.last_success))


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `events`: events: what fires now, and how the channels do that tell people of it."""
    return MetricGroup(TABLE.families, samples)
