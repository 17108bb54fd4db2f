"""Who of a run stands and who moves: the trails of all its ranks, sorted by what they did in a window."""

import math

import msgspec

from mldebug.stall.rank_activity import Condition, RankActivity, new_activity
from mldebug.stall.signals import RunLook


class StillnessSummary(msgspec.Struct, frozen=True):
    """The ranks of one run by condition, each with its trail, sorted by rank."""

    waiting: tuple[RankActivity, ...] = ()
    blind: tuple[RankActivity, ...] = ()
    inert: tuple[RankActivity, ...] = ()
    busy: tuple[RankActivity, ...] = ()
    gone: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()

    @property
    def frozen(self) -> bool:
        """Nobody moves. Blind waiters count as frozen only beside somebody who does not wait."""
        if self.busy or not (self.waiting or self.blind or self.inert):
            return False
        return not self.blind or bool(self.inert or self.gone or self.missing)

    @property
    def only_waits(self) -> bool:
        """All stand, and all of them wait for others."""
        return self.frozen and not (self.inert or self.gone or self.missing)

    @property
    def somebody_stands(self) -> bool:
        """Somebody waits, or does nothing, while others work."""
        return bool(self.waiting or self.blind or self.inert)

    @property
    def stood(self) -> tuple[int, ...]:
        """Ranks that stand."""
        return tuple(trail.last.rank for trail in (*self.waiting, *self.blind, *self.inert))

    def stood_for(self, now: float) -> float:
        """Seconds since the last rank came to stand, or where somebody works, since the first did."""
        standing = (*self.waiting, *self.blind, *self.inert)
        spans = [now - (trail.steady if trail in self.blind else trail.since) for trail in standing]
        return (max if self.busy else min)(spans, default=0.0)

    @property
    def suspects(self) -> tuple[int, ...]:
        """Ranks that do not wait."""
        found = [trail.last.rank for trail in (*self.inert, *self.busy)]
        return tuple(sorted((*found, *self.gone, *self.missing)))


class RunActivity:
    """The trails of all ranks of one attempt."""

    def __init__(self) -> None:
        self._trails: dict[int, RankActivity] = {}
        self._exited: tuple[int, ...] = ()
        self._missing: tuple[int, ...] = ()
        self._saved = -math.inf

    def see(self, seen: RunLook, now: float) -> None:
        """Take one look at every rank; a rank that is no longer listed is forgotten."""
        known, self._exited, self._missing = self._trails, seen.exited, seen.missing
        if seen.saved_at is not None:
            self._saved = now - max(0.0, seen.at - seen.saved_at)  # by the clock of the watch
        self._trails = {}
        for look in seen.ranks:
            trail = known.get(look.rank)
            if trail is None:
                trail = new_activity(look, now)
            else:
                trail.see(look, now)
            self._trails[look.rank] = trail

    def forget(self, now: float) -> None:
        """The job moved."""
        for trail in self._trails.values():
            trail.forget(now)

    def unmoved_for(self, now: float) -> tuple[float, float]:
        """Seconds for which all ranks, and for which some rank, showed no cheap sign of movement."""
        spans = [now - trail.unmoved for trail in self._trails.values()]
        return min(spans, default=0.0), max(spans, default=0.0)

    def steady_for(self, now: float) -> float:
        """Seconds for which every rank showed the same frames, counters aside."""
        return min((now - trail.same for trail in self._trails.values()), default=0.0)

    def saved_at(self, now: float, window: float) -> float:
        """When a growing checkpoint last moved the job; -inf where none has since the last step."""
        trails = self._trails.values()
        told = (trail.saved_at(now, window) for trail in trails)
        return max((self._saved, *told))

    @property
    def savers(self) -> tuple[RankActivity, ...]:
        """Ranks that have written as one writes a checkpoint since the job last moved."""
        return tuple(trail for _, trail in sorted(self._trails.items()) if trail.grown)

    @property
    def changed(self) -> bool:
        """Whether the last sample showed a rank in other frames than the one before."""
        return any(trail.changed for trail in self._trails.values())

    def moved_since(self, ranks: tuple[int, ...], moment: float) -> bool:
        """Whether the frames of one of these ranks have changed after `moment`."""
        return any(trail.steady > moment for rank in ranks if (trail := self._trails.get(rank)))

    def standing(self, now: float, window: float, *, devices: bool = True) -> StillnessSummary:
        """Sort the ranks by what they did in the last `window` seconds; without `devices`, whatever those do."""
        found: dict[Condition, list[RankActivity]] = {condition: [] for condition in Condition}
        for _, trail in sorted(self._trails.items()):
            found[trail.condition(now, window, devices=devices)].append(trail)
        gone = {trail.last.rank for trail in found[Condition.GONE]} | set(self._exited)
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
        told = [trail.told for trail in self._trails.values()]
        return any(look.class_name in names for look in told if look)
