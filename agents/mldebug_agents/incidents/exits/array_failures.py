"""The last failure of each job array, kept on disk: after a restart of the agent, the next failed
task continues the same incident.

Used by the main loop's thread only.
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


class ArrayFailure(msgspec.Struct, frozen=True):
    """The incident that the failed tasks of one job array share.

    `sign`: how the last task failed, as `sign_of` returns it; `failed_at`: unix time of that;
    `runs`: runs of the same script until then.
    """

    sign: str
    failed_at: float
    incident: Incident
    runs: tuple[EarlierRun, ...] = ()


class ArrayFailures:
    """The last failure of each job array. An array is named by what all its tasks have in common."""

    def __init__(self, memory: KeyValueStore) -> None:
        self._memory = memory

    def remember(self, array: Hashable, failure: ArrayFailure) -> None:
        """Store the failure in place of an earlier one of that array.

        Captures of a very large incident are left out; arrays beyond the newest `MAX_STORED`, and
        those that failed longer ago than `LATELY`, are dropped.
        """
        data = msgspec.json.encode(failure)
        if len(data) > MAX_BYTES:
            bare = msgspec.structs.replace(failure.incident, captures=(), node_captures=())
            data = msgspec.json.encode(msgspec.structs.replace(failure, incident=bare))
        self._memory.remember(_name(array), data)
        stored = {name: self._failure(name) for name in self._memory.memos(_NAME)}
        ages = {name: one.failed_at if one else 0.0 for name, one in stored.items()}
        newest = sorted(ages, key=lambda name: -ages[name])[:MAX_STORED]
        for name, at in ages.items():
            if name not in newest or failure.failed_at - at > LATELY:
                self._memory.remember(name, b"")

    def recent(self, array: Hashable, sign: str, now: float) -> ArrayFailure | None:
        """The stored failure of this array; None unless its last task failed with this sign at most
        `LATELY` seconds before `now` (unix).
        """
        failure = self._failure(_name(array))
        if failure is None or failure.sign != sign or not 0 <= now - failure.failed_at <= LATELY:
            return None
        return failure

    def _failure(self, name: str) -> ArrayFailure | None:
        data = self._memory.memo(name)
        try:
            return msgspec.json.decode(data, type=ArrayFailure) if data else None
        except msgspec.MsgspecError:
            return None  # stored by another version


def _name(array: Hashable) -> str:
    return f"{_NAME}{hashlib.sha256(repr(array).encode()).hexdigest()[:32]}"
