"""Which ranks of a run are frozen and which move: all ranks, sorted by what they did in a window of time."""

import functools
import hashlib
import math
from collections.abc import Mapping

import msgspec

from mldebug.capture.step_pauses import pause_place
from mldebug.stall.rank_activity import CPU_STILL, STOPPED, Condition, RankActivity, new_activity
from mldebug.stall.signals import RankLook, RunLook

STEPS_SHOWN = 2  # backward passes of a rank in stack samples, after which it is known to train


@functools.lru_cache(maxsize=64)
def _digest(place: str) -> str:
    """Short for frames, as they are stored."""
    return hashlib.blake2b(place.encode(errors="replace"), digest_size=8).hexdigest()


class StillnessSummary(msgspec.Struct, frozen=True):
    """The ranks of one run sorted by `Condition`, within each by rank number. `gone`: ranks that exited; `missing`: ranks that
    never started.
    """

    waiting: tuple[RankActivity, ...] = ()
    blind: tuple[RankActivity, ...] = ()
    inert: tuple[RankActivity, ...] = ()
    busy: tuple[RankActivity, ...] = ()
    gone: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()

    @property
    def frozen(self) -> bool:
        """Whether no rank moves.

        Ranks that spin in a wait on a device that cannot be read (`blind`) may be computing: they count as frozen only if another
        rank does something else than wait.
        """
        if self.busy or not (self.waiting or self.blind or self.inert):
            return False
        return not self.blind or bool(self.inert or self.gone or self.missing)

    @property
    def only_waits(self) -> bool:
        """Whether no rank moves and all of them wait for others."""
        return self.frozen and not (self.inert or self.gone or self.missing)

    @property
    def somebody_stands(self) -> bool:
        """Whether at least one rank stands still, waiting or not, whatever the others do."""
        return bool(self.waiting or self.blind or self.inert)

    @property
    def stood(self) -> tuple[int, ...]:
        """The numbers of the ranks that stand still."""
        return tuple(activity.last.rank for activity in (*self.waiting, *self.blind, *self.inert))

    def stood_for(self, now: float) -> float:
        """Seconds since ranks were frozen: since all of them were or, while other ranks still work, since the first one was. 0.0
        where none is frozen. `now`: the caller's clock.
        """
        standing = (*self.waiting, *self.blind, *self.inert)
        spans = [
            now - (activity.unchanged_since if activity in self.blind else activity.frozen_since)
            for activity in standing
        ]
        return (max if self.busy else min)(spans, default=0.0)

    @property
    def suspects(self) -> tuple[int, ...]:
        """The numbers of the ranks that do not wait for others: inert, busy, gone or missing."""
        ranks = [activity.last.rank for activity in (*self.inert, *self.busy)]
        return tuple(sorted((*ranks, *self.gone, *self.missing)))


class RunActivity:
    """The activity of all ranks of one attempt (start) of a run. All times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self._by_rank: dict[int, RankActivity] = {}
        self._exited: tuple[int, ...] = ()
        self._missing: tuple[int, ...] = ()
        self._checkpoint_grew_at = -math.inf
        self._gpu_worked = False
        self._elsewhere = False

    def update(self, run_look: RunLook, now: float) -> None:
        """Add one reading of every rank at `now`. Ranks that are not in it are forgotten."""
        before, self._exited, self._missing = self._by_rank, run_look.exited, run_look.missing
        self._elsewhere = run_look.elsewhere
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
            activity.note_device(run_look.backend == "nccl" or look.device_progress is not None)
            self._gpu_worked = self._gpu_worked or look.device_progress is True
            self._by_rank[look.rank] = activity

    @property
    def trained(self) -> bool:
        """Whether stack samples of this attempt have shown a rank in a backward pass, elsewhere, and in another one: it makes steps."""
        return any(one.backward_passes >= STEPS_SHOWN for one in self._by_rank.values())

    @property
    def worked(self) -> bool:
        """Whether a GPU of the run has computed in this attempt, or a rank has trained."""
        return self._gpu_worked or self.trained

    def forget(self, at: float) -> None:
        """Note that the job made progress at `at` (the caller's clock, in seconds): what its ranks did before does not count for a
        later stall.
        """
        for activity in self._by_rank.values():
            activity.forget(at)

    def asleep_since(self, run_look: RunLook) -> tuple[float, ...]:
        """For each rank whose main thread has not run at all up to this reading, which `update` has not been given yet: since
        when, on the caller's clock.
        """
        known = ((self._by_rank.get(look.rank), look) for look in run_look.ranks)
        return tuple(
            max(activity.asleep_since, activity.cpu_idle_since)
            for activity, look in known
            if activity is not None
            and look.switches == activity.compared.switches
            and look.cpu_ratio <= CPU_STILL
        )

    def miss_sample(self) -> None:
        """Note that the ranks could not be sampled, because there was no time to read their stacks."""
        for activity in self._by_rank.values():
            activity.miss_sample()

    def prove(self, found: Mapping[int, RankLook]) -> None:
        """Take over the roles (by rank) that a capture's native stacks have shown, where the Python frames left them open."""
        for rank, look in found.items():
            if rank in self._by_rank:
                self._by_rank[rank].prove(look)

    def any_open(self, now: float, window: float) -> bool:
        """Whether any rank stood in the same frames for `window` seconds, and stack samples do not tell whether it waits or
        works. `now`: the caller's clock, in seconds.
        """
        return any(activity.is_open(now, window) for activity in self._by_rank.values())

    @property
    def on_devices(self) -> bool:
        """Whether the GPU of every rank computed or moved memory at its last reading; False without ranks."""
        activities = self._by_rank.values()
        return bool(activities) and all(one.device_moves for one in activities)

    def unmoved_for(self, now: float) -> tuple[float, float]:
        """Two numbers: for how many seconds no rank, and for how many at least one rank, has not moved by any sign but CPU
        time. `now`: the caller's clock, in seconds.
        """
        spans = [now - activity.unmoved_since for activity in self._by_rank.values()]
        return min(spans, default=0.0), max(spans, default=0.0)

    def steady_for(self, now: float) -> float:
        """Seconds for which every rank has shown the same stack, whatever its CPU and I/O counters did; 0.0 without ranks.
        `now`: the caller's clock, in seconds.
        """
        return min(
            (now - activity.same_frames_since for activity in self._by_rank.values()), default=0.0
        )

    def checkpoint_moved_at(self, now: float, window: float) -> float:
        """When a growing checkpoint last counted as movement of the job, on the caller's clock; -inf where none has.
        `window`: seconds a rank must stand before what its other threads write is ignored. `now`: the caller's clock, in
        seconds.
        """
        activities = self._by_rank.values()
        by_rank = (activity.checkpoint_moved_at(now, window) for activity in activities)
        return max((self._checkpoint_grew_at, *by_rank))

    def pauses(self, now: float, window: float, elsewhere: bool) -> bool:
        """Whether every rank that others may wait for stood still for `window` seconds in an evaluation or a checkpoint. Where all
        wait, these are ranks on other nodes (`elsewhere`), and all ranks here must stand in one.
        """
        if not any(activity.in_pause for activity in self._by_rank.values()):
            return False
        standing = self.stillness(now, window)
        waited_for = standing.inert or (standing.waiting if elsewhere else ())
        lost = standing.gone or standing.missing
        return bool(waited_for) and not lost and all(one.in_pause for one in waited_for)

    def pauses_alike(self, now: float, window: float) -> int:
        """How many ranks there are, where all of them stood still for `window` seconds in the same frames of their own, in which
        nobody waits for another rank; else 0.

        A program that pauses in all ranks, for a server, a child or a download, looks like that. The result is 0 also where a
        rank is blocked by storage, stopped, or waits for something unknown, which may be another rank.
        """
        standing = self.stillness(now, window)
        if len(standing.inert) < len(self._by_rank) or standing.gone or standing.missing:
            return 0
        places = {one.own_place for one in standing.inert}
        return len(standing.inert) if len(places) == 1 and "" not in places else 0

    def pause_places(self, now: float, window: float) -> frozenset[str]:
        """The places in the program, as digests of frames, where the ranks are that others may wait for; empty where these make no pause: they are
        in an evaluation or a checkpoint, standing or busy, or all ranks have stood alike for `window` seconds.
        """
        if self.pauses_alike(now, window):
            return frozenset(_digest(one.own_place) for one in self._by_rank.values())
        standing = self.stillness(now, window)
        waited_for = (*standing.inert, *standing.busy) or (
            standing.waiting if self._elsewhere else ()
        )
        stopped = any(one.last.state in STOPPED for one in waited_for)
        lost = standing.gone or standing.missing or stopped
        places = frozenset(pause_place(one.signature or "") for one in waited_for)
        return frozenset() if lost or "" in places else frozenset(map(_digest, places))

    @property
    def checkpoint_writers(self) -> tuple[RankActivity, ...]:
        """The ranks, by number, that wrote as fast as a checkpoint is written (1 MiB/s) since the job last made progress."""
        return tuple(
            activity for _, activity in sorted(self._by_rank.items()) if activity.checkpoint_bytes
        )

    @property
    def changed(self) -> bool:
        """Whether the last stack sample showed any rank in other frames than the sample before."""
        return any(activity.changed for activity in self._by_rank.values())

    def moved_since(self, ranks: tuple[int, ...], moment: float) -> bool:
        """Whether any of these ranks has moved after `moment` (caller's clock): other frames, progress of its GPU, or a
        compiler.
        """
        return any(
            activity.unchanged_since > moment
            for rank in ranks
            if (activity := self._by_rank.get(rank))
        )

    def stillness(self, now: float, window: float, *, devices: bool = True) -> StillnessSummary:
        """Sort the ranks by what they did in the last `window` seconds. With `devices` False progress of GPUs is ignored.
        `now`: the caller's clock, in seconds.
        """
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
        """Whether the last stack sample of any rank put it in one of these classes (`mldebug.diagnosis.classify`)."""
        samples = [activity.classified for activity in self._by_rank.values()]
        return any(look.class_name in names for look in samples if look)
