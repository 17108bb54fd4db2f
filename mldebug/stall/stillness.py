"""Which ranks of a run are frozen and which move: the activity of all ranks, sorted by what they did in a window."""

import math

import msgspec

from mldebug.stall.rank_activity import Condition, RankActivity, new_activity
from mldebug.stall.signals import RunLook


class StillnessSummary(msgspec.Struct, frozen=True):
    """The ranks of one run by condition, each with its activity, sorted by rank."""

    waiting: tuple[RankActivity, ...] = ()
    blind: tuple[RankActivity, ...] = ()
    inert: tuple[RankActivity, ...] = ()
    busy: tuple[RankActivity, ...] = ()
    gone: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()

    @property
    def frozen(self) -> bool:
        """Whether no rank moves. Blind waiters count as frozen only beside a rank that does not wait."""
        if self.busy or not (self.waiting or self.blind or self.inert):
            return False
        return not self.blind or bool(self.inert or self.gone or self.missing)

    @property
    def only_waits(self) -> bool:
        """Whether all ranks are frozen, each in a wait for others."""
        return self.frozen and not (self.inert or self.gone or self.missing)

    @property
    def somebody_stands(self) -> bool:
        """Whether any rank waits or does nothing."""
        return bool(self.waiting or self.blind or self.inert)

    @property
    def stood(self) -> tuple[int, ...]:
        """Ranks that do not move."""
        return tuple(activity.last.rank for activity in (*self.waiting, *self.blind, *self.inert))

    def stood_for(self, now: float) -> float:
        """Seconds since the last rank froze; where other ranks work, since the first did."""
        standing = (*self.waiting, *self.blind, *self.inert)
        spans = [
            now - (activity.unchanged_since if activity in self.blind else activity.frozen_since)
            for activity in standing
        ]
        return (max if self.busy else min)(spans, default=0.0)

    @property
    def suspects(self) -> tuple[int, ...]:
        """Ranks that do not wait."""
        ranks = [activity.last.rank for activity in (*self.inert, *self.busy)]
        return tuple(sorted((*ranks, *self.gone, *self.missing)))


class RunActivity:
    """The activity of all ranks of one attempt."""

    def __init__(self) -> None:
        self._by_rank: dict[int, RankActivity] = {}
        self._exited: tuple[int, ...] = ()
        self._missing: tuple[int, ...] = ()
        self._checkpoint_grew_at = -math.inf

    def update(self, run_look: RunLook, now: float) -> None:
        """Take one look at every rank; a rank that is no longer listed is forgotten."""
        before, self._exited, self._missing = self._by_rank, run_look.exited, run_look.missing
        if run_look.checkpoint_grew_at is not None:
            age = max(0.0, run_look.at - run_look.checkpoint_grew_at)
            self._checkpoint_grew_at = now - age  # by the clock of the watch
        self._by_rank = {}
        for look in run_look.ranks:
            activity = before.get(look.rank)
            if activity is None:
                activity = new_activity(look, now)
            else:
                activity.update(look, now)
            self._by_rank[look.rank] = activity

    def forget(self, now: float) -> None:
        """The job moved."""
        for activity in self._by_rank.values():
            activity.forget(now)

    def unmoved_for(self, now: float) -> tuple[float, float]:
        """Seconds for which all ranks, and for which some rank, showed no cheap sign of movement."""
        spans = [now - activity.unmoved_since for activity in self._by_rank.values()]
        return min(spans, default=0.0), max(spans, default=0.0)

    def steady_for(self, now: float) -> float:
        """Seconds for which every rank showed the same frames, counters aside."""
        return min(
            (now - activity.same_frames_since for activity in self._by_rank.values()), default=0.0
        )

    def checkpoint_moved_at(self, now: float, window: float) -> float:
        """When a growing checkpoint last moved the job; -inf where none has since the last step."""
        activities = self._by_rank.values()
        by_rank = (activity.checkpoint_moved_at(now, window) for activity in activities)
        return max((self._checkpoint_grew_at, *by_rank))

    @property
    def checkpoint_writers(self) -> tuple[RankActivity, ...]:
        """Ranks that have written as one writes a checkpoint since the job last moved."""
        return tuple(
            activity for _, activity in sorted(self._by_rank.items()) if activity.checkpoint_bytes
        )

    @property
    def changed(self) -> bool:
        """Whether the last sample showed a rank in other frames than the one before."""
        return any(activity.changed for activity in self._by_rank.values())

    def moved_since(self, ranks: tuple[int, ...], moment: float) -> bool:
        """Whether the frames of one of these ranks have changed after `moment`."""
        return any(
            activity.unchanged_since > moment
            for rank in ranks
            if (activity := self._by_rank.get(rank))
        )

    def stillness(self, now: float, window: float, *, devices: bool = True) -> StillnessSummary:
        """Sort the ranks by what they did in the last `window` seconds; without `devices`, whatever those do."""
        found: dict[Condition, list[RankActivity]] = {condition: [] for condition in Condition}
        for _, activity in sorted(self._by_rank.items()):
            found[activity.condition(now, window, devices=devices)].append(activity)
        gone = {activity.last.rank for activity in found[Condition.GONE]} | set(self._exited)
        return StillnessSummary(
            waiting=tuple(found[Condition.WAITING]),
            blind=tuple(found[Condition.BLIND]),
            inert=tuple(found[Condition.INERT]),
            busy=tuple(found[Condition.BUSY]),
            gone=tuple(sorted(gone)),
            missing=self._missing,
        )

    def any_class(self, names: frozenset[str]) -> bool:
        """Whether a rank was last seen in one of these classes."""
        samples = [activity.classified for activity in self._by_rank.values()]
        return any(look.class_name in names for look in samples if look)
