"""Who coordinates: the first of the candidates that answers and has the key. Belongs to the thread that announces."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from mldebug.across.members import MAX_MESSAGE, Announcement, Welcome, check_incident, read
from mldebug.errors import MldebugError
from mldebug.redact import clean
from mldebug_agents.members.talk import Peer, SilentError, Talk

ANSWER = 5.0  # seconds
AGAIN = 5.0  # seconds until a candidate that did not answer is asked again
AT_ONCE = 8  # candidates asked in one round
ANNOUNCE = "/peer/v1/announce"


class Found(NamedTuple):
    """Who coordinates, and what he says."""

    peer: Peer
    welcome: Welcome
    passed: tuple[str, ...] = ()  # why none of those before him does


class Seeker:
    """`candidates` in their order; ourselves may be among them: who coordinates is asked like any other."""

    def __init__(
        self, talk: Talk, candidates: Sequence[Peer], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._talk = talk
        self._candidates = tuple(candidates)
        self._clock = clock
        self._not_before: dict[Peer, float] = {}

    def announce(self, told: Announcement) -> Found:
        """Tell the coordinator; SilentError where none of the candidates is one, with the first reasons."""
        body = msgspec.json.encode(told)
        why: list[str] = []
        for candidate in self._next():
            try:
                data = self._talk.ask(candidate, ANNOUNCE, body, timeout=ANSWER, most=MAX_MESSAGE)
                welcome = read(data, Welcome)
                welcome = msgspec.structs.replace(welcome, node=clean(welcome.node, 100))
                for run in welcome.runs:
                    check_incident(run.incident)
                return Found(candidate, welcome, tuple(why))
            except MldebugError as error:
                self._not_before[candidate] = self._clock() + AGAIN
                why.append(f"{candidate.host}: {error.message}")
        words = "; ".join(why[:3]) or "all are given some seconds"
        raise SilentError(f"no other agent coordinates: {words}")

    def _next(self) -> tuple[Peer, ...]:
        now = self._clock()
        ready = [one for one in self._candidates if self._not_before.get(one, 0.0) <= now]
        return tuple(ready[:AT_ONCE])
