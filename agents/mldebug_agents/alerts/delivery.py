"""One channel as the main loop knows it: what it sends next and when, and how earlier deliveries went."""

import logging
import queue
import time
from collections.abc import Collection
from typing import Any

import msgspec

from mldebug.alerts.event_registry import EventRegistry
from mldebug.alerts.model import AlertEvent, Channel, EventMessage
from mldebug.alerts.view import ChannelState
from mldebug.core.errors import UsageError
from mldebug.core.files import read_secret
from mldebug.core.plugin_options import Plugin
from mldebug.core.plugins import create
from mldebug.core.redact import safe_line
from mldebug_agents.system.workers import Result, Worker

log = logging.getLogger("mldebug")

DEADLINE = 60.0  # seconds after which a channel counts as stuck
PAUSE_FIRST, PAUSE_MOST = 1.0, 300.0  # seconds between two tries of a channel that fails
WORKER = "channel:"


class ChannelOrder(msgspec.Struct, frozen=True):
    """One message that the thread of a channel has to send."""

    message: EventMessage
    event: AlertEvent | None  # None: it only tells that the agent lives
    line: Any  # the `ChannelDelivery` that has sent it


def unusable_secret(options: object) -> str:
    """Why no secret is read from one of the files that a channel's options name (`token_file`, `password_file`, …), as a sentence; ""
    where all can be used.
    """
    for name in getattr(options, "__struct_fields__", ()):
        file = getattr(options, name)
        if name.endswith("_file") and name != "ca_file" and file is not None:
            try:
                read_secret(file, f"chmod 600 {file}", 1, any_group=True)
            except UsageError as error:
                return safe_line(f"{error.message}: {error.way_out}", 200)
    return ""


class ChannelDelivery:
    """The deliveries of one channel: which event is sent next, and how earlier ones went. All `now` are monotonic seconds.

    A channel with `every` sends no events, but a sign of life at that interval (seconds).
    """

    def __init__(
        self, name: str, plugin: Plugin, inbox: "queue.SimpleQueue[Result | None]"
    ) -> None:
        self.name = name
        self.plugin = plugin
        channel: Channel = create("channels", plugin.kind, plugin.options)
        self.repeat = channel.repeat
        self.every: float = getattr(channel, "every", 0.0)  # seconds; 0: it is told of events
        self._beat = 0.0  # when it was last told that the agent lives
        self.worker = Worker(
            WORKER + name, lambda order: channel.send(order.message), inbox, DEADLINE
        )
        self.under_way = False
        self.state = ChannelState(
            name=name, kind=plugin.kind, trouble=unusable_secret(plugin.options)
        )
        if self.state.trouble:  # told now, and not with the first stall
            log.error("channel %s sends nothing: %s", name, self.state.trouble)
        self.not_before = 0.0
        self._pause = PAUSE_FIRST
        self._repeated: dict[str, float] = {}  # key -> when it was sent last
        self._tries: dict[str, int] = {}  # key -> failures: one that nobody takes holds up no other

    def next(self, registry: EventRegistry, now: float) -> AlertEvent | None:
        """The event to send now: one that this channel has not sent yet, else one that is due to be repeated.

        None where there is nothing to send, or the channel is busy, pauses after a failure, or sends only signs of life.
        `now`: monotonic seconds.
        """
        if self.every or self.under_way or now < self.not_before:
            return None
        if waiting := registry.unsent(self.name):
            return min(waiting, key=lambda one: self._tries.get(one.key, 0))
        if not self.repeat:
            return None
        due = (
            one
            for one in registry.firing()
            if now - self._repeated.get(one.key, now) >= self.repeat
        )
        return next(due, None)

    def beats(self, now: float) -> bool:
        """Whether a sign of life is due now; where True is returned it counts as sent. Only for channels with `every`.
        `now`: monotonic seconds.
        """
        due = self.every and (not self._beat or now - self._beat >= self.every)
        if self.under_way or now < self.not_before or not due:
            return False
        self._beat = now
        return True

    def send(self, message: EventMessage, event: AlertEvent | None) -> None:
        """Hand the message to the channel's thread; the result comes into the main loop's inbox. `event`: None for a sign
        of life.
        """
        self.under_way = self.worker.order(ChannelOrder(message, event, self))

    def answered(self) -> None:
        """Note that the channel's thread has finished and is free for the next message."""
        self.under_way = False

    def done(self, key: str, now: float) -> None:
        """Note that the message with this event key was delivered. `now`: monotonic seconds."""
        self._pause, self.not_before = PAUSE_FIRST, 0.0
        self._note(sent=self.state.sent + 1, last_success=time.time(), trouble="")
        self._repeated[key] = now
        self._tries.pop(key, None)

    def refusal(self, key: str, error: Exception) -> None:
        """Note that the receiver refused this message for good; it is not sent again. `state.trouble` says so until a
        message is delivered.
        """
        trouble = f"refused: {safe_line(str(error), 200)}"
        self._note(refused=self.state.refused + 1, trouble=trouble)
        self._tries.pop(key, None)
        log.error("channel %s: %s", self.name, trouble)

    def failure(self, key: str, error: Exception, now: float) -> None:
        """Note that the message may not have arrived. It is tried again after a pause, which doubles up to `PAUSE_MOST`
        seconds. `now`: monotonic seconds.
        """
        self._tries[key] = self._tries.get(key, 0) + 1
        reason = safe_line(str(error) or type(error).__name__, 200)
        if not self.state.trouble:
            later = "it is tried again" if self.every else "what waits is sent later"
            log.error("channel %s: %s; %s", self.name, reason, later)
        self._note(failed=self.state.failed + 1, trouble=reason)
        self.not_before, self._beat = now + self._pause, 0.0
        self._pause = min(PAUSE_MOST, 2 * self._pause)

    def _note(self, **changed: Any) -> None:
        self.state = msgspec.structs.replace(self.state, **changed)

    def keep_only(self, keys: Collection[str]) -> None:
        """Forget when events other than those with these keys were sent last, and how often they failed."""
        self._repeated = {key: at for key, at in self._repeated.items() if key in keys}
        self._tries = {key: count for key, count in self._tries.items() if key in keys}
