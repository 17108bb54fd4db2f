"""Job arrays whose tasks failed lately, on disk: after a restart of the agent the next task continues their incident.

Belongs to the main loop's thread.
"""

import hashlib
from collections.abc import Hashable

import msgspec

from mldebug.incidents.incident import Incident
from mldebug_agents.incidents.exits.similar_runs import LATELY, EarlierRun
from mldebug_agents.state.key_value_store import KeyValueStore

MAX_STORED = 32  # arrays
MAX_BYTES = 1 << 20  # of one incident; of a larger one the captures stay in its report alone
_NAME = "array/"


class ArrayStory(msgspec.Struct, frozen=True):
    """The incident that the failed tasks of one job array share. `sign`: of `sign_of`; `failed_at`: unix time of the last one; `runs`: of
    its script, before that time."""

    sign: str
    failed_at: float
    incident: Incident
    runs: tuple[EarlierRun, ...] = ()


class ArrayStories:
    """The last failure of each job array, by what all its tasks have in common."""

    def __init__(self, memory: KeyValueStore) -> None:
        self._memory = memory

    def remember(self, array: Hashable, story: ArrayStory) -> None:
        """Store the failure in place of an earlier one of that array; the oldest are dropped."""
        data = msgspec.json.encode(story)
        if len(data) > MAX_BYTES:
            bare = msgspec.structs.replace(story.incident, captures=(), node_captures=())
            data = msgspec.json.encode(msgspec.structs.replace(story, incident=bare))
        self._memory.remember(_name(array), data)
        stored = {name: self._story(name) for name in self._memory.memos(_NAME)}
        ages = {name: one.failed_at if one else 0.0 for name, one in stored.items()}
        newest = sorted(ages, key=lambda name: -ages[name])[:MAX_STORED]
        for name, at in ages.items():
            if name not in newest or story.failed_at - at > LATELY:
                self._memory.remember(name, b"")

    def recent(self, array: Hashable, sign: str, now: float) -> ArrayStory | None:
        """What is known of the tasks of this array, where the last one failed with this sign at most `LATELY` before `now` (unix)."""
        story = self._story(_name(array))
        if story is None or story.sign != sign or not 0 <= now - story.failed_at <= LATELY:
            return None
        return story

    def _story(self, name: str) -> ArrayStory | None:
        data = self._memory.memo(name)
        try:
            return msgspec.json.decode(data, type=ArrayStory) if data else None
        except msgspec.MsgspecError:
            return None  # stored by another version


def _name(array: Hashable) -> str:
    return f"{_NAME}{hashlib.sha256(repr(array).encode()).hexdigest()[:32]}"
