"""Events and channels as lines of `mldebug status`. Pure."""

from collections.abc import Collection, Iterator
from datetime import UTC, datetime

from mldebug.alerts.view import ActionState, ChannelState, EventsView, EventView
from mldebug.core.redact import clean
from mldebug.core.units import duration_words

MOST = 8
HIDDEN = (
    "health/",
    "scheduler/",
    "orphan/",
    "training/",
)  # `status` has these elsewhere, the last in its JSON alone


def event_lines(view: EventsView, shown: Collection[str], now: float) -> Iterator[str]:
    """Lines about alerts that the rest of `mldebug status` does not show, and about channels and actions.

    `shown`: ids of incidents that it shows; `now`: unix time.
    """
    firing = [
        one for one in view.events if one.state == "firing" and not one.key.startswith(HIDDEN)
    ]
    lines = [_firing(one, now) for one in firing if one.report not in {*shown} - {""}]
    yield from lines[:MOST]
    if len(lines) > MOST:
        yield f"… and {len(lines) - MOST} more events: --json lists them"
    for channel in view.channels:
        if channel.trouble:
            yield _trouble(channel)
    for action in view.actions:
        if action.last:
            yield _done(action)
    if view.actions_trouble:
        yield f"actions: {view.actions_trouble}"
    if view.dropped:
        yield f"{view.dropped} events were dropped: there was no room for them"


def _firing(one: EventView, now: float) -> str:
    """`critical: Rank 1 was killed, 2 h ago (report 20261121T055041Z-1a2b3c)`."""
    since = duration_words(max(0, int(now - one.started)))
    words = f"{one.severity}: {clean(one.sentence, 300)}"
    return (
        f"{words}, {since} ago (report {one.report})"
        if one.report
        else f"{words} (raised {since} ago)"
    )


def _done(one: ActionState) -> str:
    """Its last decision, and how many have failed."""
    when = datetime.fromtimestamp(one.at or 0.0, UTC).isoformat(timespec="seconds")[:-6]
    failed = one.counts.get("failed", 0)
    more = f" ({failed} failed since the agent's start)" if failed else ""
    return (
        f"action {one.name} ({one.kind}): {one.last.replace('_', ' ')} at {when}Z: {one.why}{more}"
    )


def _trouble(one: ChannelState) -> str:
    if one.kind == "ping":
        return f"channel {one.name} fails: {one.trouble}; whoever waits for it may think that the agent is dead"
    count = f"{one.waiting} {'event waits' if one.waiting == 1 else 'events wait'} for it"
    return f"channel {one.name} fails: {one.trouble}; {count}"
