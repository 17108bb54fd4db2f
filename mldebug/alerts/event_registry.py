"""The events of this node: alerts begin, fire and are resolved, and each channel is sent each of these states once.

Pure: the clock is an argument, and `changed` returns what must be stored. All times are unix
seconds.
"""

from collections import Counter
from collections.abc import Collection, Iterable

import msgspec

from mldebug.alerts.model import Alert, AlertEvent, EventState
from mldebug.jobs.owners import Owner

MOST = 2000  # events that are remembered, those included of which a channel has not heard
KEPT = 600.0  # seconds for which a resolved event is shown


class EventRegistry:
    """All events that last, that ended recently, or whose state some channel has not acknowledged yet."""

    def __init__(self, pending: float = 30.0) -> None:
        self.pending = pending  # seconds for which an alarm must stand before it fires
        self.dropped = 0
        self._events: dict[str, AlertEvent] = {}
        self._changed: set[str] = set()
        self._refined: set[str] = set()  # only their words have changed

    def set_pending(self, pending: float) -> None:
        """Set `pending`: an alert that lasts for this many seconds fires."""
        self.pending = pending

    def restore(self, stored: Iterable[AlertEvent]) -> None:
        """Add events that an earlier agent stored.

        If this agent has raised the same alert since, its newer text stays; the event's times are
        the stored ones, and acknowledgements of both count.
        """
        for one in stored:
            mine = self._events.get(one.key)
            if mine is None:
                self._events[one.key] = one
            elif one.state is not EventState.RESOLVED:
                self._set(
                    msgspec.structs.replace(
                        one, alert=mine.alert, acknowledged=one.acknowledged | mine.acknowledged
                    )
                )

    def raise_(self, alert: Alert, now: float, *, at_once: bool = False) -> None:
        """Begin an event for this alert, or update the one with its key.

        The event fires once the alert has lasted for the registry's `pending` seconds; with `at_once` immediately. `now`:
        unix time.
        """
        known = self._events.get(alert.key)
        if known is None or known.state is EventState.RESOLVED:
            self._begin(alert, now)
        elif known.ended is not None:  # it goes on
            self._set(msgspec.structs.replace(known, alert=alert, ended=None, outcome=""))
        elif known.alert != alert:
            self._events[alert.key] = msgspec.structs.replace(known, alert=alert)
            self._refined.add(alert.key)
        self._fire(alert.key, now, 0.0 if at_once else self.pending)

    def clear(self, key: str, now: float, outcome: str = "cleared") -> None:
        """End the event with this key at unix time `now`; one that has not fired yet is forgotten.

        `outcome`: how it ended.
        """
        known = self._events.get(key)
        if known is None or known.state is EventState.RESOLVED or known.ended is not None:
            return
        if known.state is EventState.PENDING:
            self._drop(key)
            return
        ended = max(now, known.started)  # a clock that was set back ends nothing before it began
        over = msgspec.structs.replace(known, ended=ended, outcome=outcome)
        self._set(over)
        self._resolve(over, now)

    def acknowledge(self, key: str, channel: str, state: str, started: float) -> None:
        """Store that a channel has sent this state of the event with this key.

        Does nothing where that event began at another time than `started` (unix), because it is then another event.
        """
        known = self._events.get(key)
        if known is not None and known.started == started:
            self._set(
                msgspec.structs.replace(known, acknowledged=known.acknowledged | {channel: state})
            )

    def unsent(self, channel: str) -> list[AlertEvent]:
        """Events whose present state the channel has not acknowledged, the oldest change first."""
        waiting = [one for one in self._events.values() if _waits(one, channel)]
        return sorted(waiting, key=lambda one: one.ended or one.fired or 0.0)

    def firing(self) -> list[AlertEvent]:
        """The events whose alert is raised at present, and not pending or resolved."""
        return [one for one in self._events.values() if one.state is EventState.FIRING]

    def keys(self, beginning: str) -> list[str]:
        """Return the keys that begin with this text, of events that are not resolved."""
        alive = (one for one in self._events.values() if one.state is not EventState.RESOLVED)
        return [one.key for one in alive if one.key.startswith(beginning)]

    def get(self, key: str) -> AlertEvent | None:
        """The event with this key; None where there is none."""
        return self._events.get(key)

    def all(self) -> tuple[AlertEvent, ...]:
        """All events, resolved ones included, the oldest first."""
        return tuple(sorted(self._events.values(), key=lambda one: one.started))

    def tidy(self, channels: Collection[str], now: float) -> None:
        """Resolve what is over, and forget resolved events that ended more than `KEPT` seconds ago and that all `channels` have acknowledged.

        `now`: unix time.
        """
        for one in list(self._events.values()):
            self._resolve(one, now)
            over = one.state is EventState.RESOLVED and not any(
                _waits(one, name) for name in channels
            )
            if over and not 0 <= now - (one.ended or 0.0) < KEPT:
                self._drop(one.key)

    def changed(self, *, words: bool = True) -> list[tuple[str, AlertEvent | None]]:
        """(key, event) of all events that changed since the last call, for storing; None in place of an event that is to be deleted.

        With `words` also events whose alert only changed its text or details, which some do all the
        time.
        """
        keys, self._changed = self._changed, set()
        if words:
            keys, self._refined = keys | self._refined, set()
        return [(key, self._events.get(key)) for key in keys]

    # --- inside --------------------------------------------------------------------------------------

    def _begin(self, alert: Alert, now: float) -> None:
        if (
            alert.key not in self._events
            and len(self._events) >= MOST
            and not self._make_room(alert.share)
        ):
            self.dropped += 1
            return
        since = now if alert.since is None else min(now, alert.since)
        self._set(AlertEvent(alert=alert, state=EventState.PENDING, started=since, fired=now))

    def _fire(self, key: str, now: float, pending: float) -> None:
        known = self._events.get(key)
        if known is None or known.state is not EventState.PENDING or known.fired is None:
            return
        if now - known.fired >= pending or now < known.fired:
            self._set(msgspec.structs.replace(known, state=EventState.FIRING, fired=now))

    def _resolve(self, event: AlertEvent, now: float) -> None:
        """Resolve an event that is over, once it has stood for as long as its alert demands; a clock that was set back delays nothing."""
        if event.state is not EventState.FIRING or event.ended is None or event.fired is None:
            return
        if not 0 <= now - event.fired < event.alert.stands:
            self._set(msgspec.structs.replace(event, state=EventState.RESOLVED))

    def _make_room(self, owner: Owner) -> bool:
        """Forget what is over, else the newest event of the owner with most events, unless that owner is the one who wants one more."""
        over = [one for one in self._events.values() if one.state is EventState.RESOLVED]
        if not over:
            held = Counter(one.alert.share for one in self._events.values())
            heaviest = max(held, key=lambda one: (held[one], one))
            if held[heaviest] <= held[owner] + 1:
                return False
            self.dropped += 1
            newest = next(
                k for k, one in reversed(self._events.items()) if one.alert.share == heaviest
            )
            self._drop(newest)
            return True
        oldest = min(over, key=lambda one: one.ended or 0.0)
        self.dropped += not oldest.acknowledged
        self._drop(oldest.key)
        return True

    def _set(self, event: AlertEvent) -> None:
        self._events[event.key] = event
        self._changed.add(event.key)

    def _drop(self, key: str) -> None:
        del self._events[key]
        self._changed.add(key)


def _waits(event: AlertEvent, channel: str) -> bool:
    return event.state is not EventState.PENDING and event.acknowledged.get(channel) != event.state
