"""Decides from one reading of a run to the next whether it is well, suspect, stalled, or over.

`mldebug.stall.rules` says which timeout holds and who is to blame when; this file follows a stall from its beginning to its end.
At the timeout a capture is taken and kept, whatever the ranks do; blame is separate and opens the incident then or later. Pure:
no threads, files or clock of its own; the same readings give the same decisions.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from mldebug.stall.progress_clock import ProgressClock, StallMemory
from mldebug.stall.rules import (
    AGAIN,
    StallRule,
    StallSettings,
    choose,
    counted_quiet,
    is_blamed,
    is_nearly_blamed,
    is_overdue,
    is_spared,
    keeps_waiting,
    spacing,
    sparse_spacing,
    usual_pace,
    waits_for_others,
    wants_closer,
)
from mldebug.stall.sentences import checkpoint_words, quiet_words, seconds, standing_words
from mldebug.stall.signals import RankLook, RunLook, Stage, StallDecision
from mldebug.stall.stillness import RunActivity, StillnessSummary
from mldebug.stall.timeouts import Timeout

LATER_CAPTURES = (
    30.0,
    90.0,
)  # seconds after the first; the last only where a Flight Recorder may still come
LATER = 10.0  # seconds between samples of an open incident
SOONEST = 0.25


class StallWatch:
    """Decides for one run, from one reading after the other, whether it is stalled. Never raises, whatever a reading contains."""

    def __init__(self, settings: StallSettings, memory: StallMemory | None = None) -> None:
        self._settings = settings
        self._memory = copy.deepcopy(memory) if memory else StallMemory()
        self._clock = ProgressClock(settings.interval, self._memory.progress)
        self._ranks = RunActivity()
        self._first_look_at: float | None = None
        self._sampled_at: float | None = None
        self._closer_at: float | None = None
        self._limit = math.inf  # seconds, the timeout at the last look
        self._resumed = self._memory.confirmed
        self._spared = False  # at the last look the program paused as a whole

    @property
    def _watched(self) -> float:
        """Seconds that this agent has watched this attempt."""
        return self._clock.now - (self._first_look_at or 0.0)

    def memory(self) -> StallMemory:
        """A copy of the state, to be stored; a watch that is made from it goes on where this one stands."""
        self._memory.progress = self._clock.memory
        return copy.deepcopy(self._memory)

    def reload(self, settings: StallSettings) -> None:
        """Use other settings from now on. What was learned of the run is kept."""
        self._settings = settings
        self._clock.look_every(settings.interval)

    def await_answer(self, awaits: bool) -> None:
        """Set whether a rank's Flight Recorder is still to come after the newest capture (reading a full one takes a minute)."""
        self._memory.awaits = awaits

    def take_classes(self, found: Mapping[int, RankLook]) -> None:
        """Take over the roles (by rank) that native stacks of a capture have shown; ignored for a rank whose Python frames have
        changed since.
        """
        self._ranks.prove(found)

    def pass_over(self, at: float) -> bool:
        """Note that there was no time to read this run when the node's runs were read at `at` (monotonic seconds). Its quiet time
        goes on, so that a stall is not reported later because of it. Returns whether to sample its stacks at the next reading.
        """
        self._clock.pass_over(at)
        suspect = self._clock.quiet >= self._limit / 2
        if suspect:
            self._ranks.miss_sample()
        return suspect

    def look(self, look: RunLook) -> StallDecision:
        """Add one reading of the run, and decide whether it is well, quiet, suspect or stalled."""
        interrupted = self._begin_attempt(look)
        learn, spared, self._spared = self._memory.opened is None, self._spared, False
        asleep_since = self._ranks.asleep_since(look)
        pause = self._clock.update(look, learn=learn, spared=spared, asleep_since=asleep_since)
        self._first_look_at = (
            self._clock.now if self._first_look_at is None else self._first_look_at
        )
        self._ranks.update(look, self._clock.now)
        if interrupted is not None:
            return interrupted
        if self._is_over(look):
            return self._ended("all ranks have exited" if self._memory.lived else "no rank yet")
        if pause is not None:
            if self._memory.opened is None:
                self._moved(self._clock.memory.progressed)
            elif self._clock.memory.progressed > self._memory.opened:
                return self._recovered(pause)
        rule = choose(self._settings, look, self._clock, self._ranks, self._watched)
        self._limit = rule.timeout.seconds
        decision = self._judge(rule) if self._memory.opened is None else self._follow(rule)
        return replace(decision, collective_timeout=look.collective_timeout)

    # --- the life of an attempt ---

    def _begin_attempt(self, look: RunLook) -> StallDecision | None:
        """Begin anew where the look is of a new attempt. Returns the decision that ends an attempt which was stalled, else None."""
        memory = self._memory
        first = self._clock.memory.looked_at is None
        restarted = memory.over and bool(look.living)
        same = (memory.run, memory.attempt) == (look.run, look.attempt)
        memory.run, memory.attempt = look.run, look.attempt
        if first or (same and not restarted):
            return None
        stalled = memory.opened is not None
        decision = self._ended(f"attempt {look.attempt} has begun") if stalled else None
        self._clock.begin_attempt()
        self._ranks = RunActivity()
        self._first_look_at = None
        memory.lived = memory.over = False
        self._moved()
        return decision

    def _is_over(self, look: RunLook) -> bool:
        living = bool(look.living)
        self._memory.lived = self._memory.lived or living
        return not living

    def _ended(self, why: str) -> StallDecision:
        memory = self._memory
        stage = Stage.ENDED if memory.lived else Stage.WATCHING
        decision = self._decision(stage, why, key=memory.key, stalled_since=memory.stalled_since)
        memory.over = memory.lived
        self._moved()
        return decision

    def _moved(self, at: float | None = None) -> None:
        """The job has moved, now or at that time: what came before counts for no later stall."""
        memory = self._memory
        memory.confirmed = memory.awaits = False
        memory.captured = 0
        memory.opened = memory.stalled_since = None
        memory.key, memory.stood, memory.timeout = "", (), 0.0
        memory.places = frozenset()
        self._resumed = False
        self._ranks.forget(self._clock.now if at is None else at)
        self._sampled_at = None

    # --- from quiet to verdict ---

    def _judge(self, rule: StallRule) -> StallDecision:
        now, limit = self._clock.now, rule.timeout.seconds
        every, some = self._ranks.unmoved_for(now)
        quiet = self._clock.quiet if rule.by == "progress" else every
        standing = self._stillness(rule, quiet, rule.window)
        counted = counted_quiet(rule, quiet, self._ranks, now)
        self._spared = is_spared(rule, counted)
        if is_blamed(rule, counted, standing, self._ranks, now):
            return self._open(rule, quiet, standing)
        if is_overdue(rule, counted, standing) and self._watched >= rule.window:
            return self._confirm(rule, quiet, standing)
        if rule.by == "stillness" and waits_for_others(rule, standing):
            return self._confirm(rule, standing.stood_for(now), standing)
        steady = self._ranks.steady_for(now) if rule.by == "stillness" else 0.0
        if max(quiet, steady) >= limit / 2 or keeps_waiting(rule, some):
            near = is_nearly_blamed(rule, counted, standing, self._ranks, now)
            return self._suspect(rule, max(quiet, steady), near=near)
        self._memory.confirmed = self._memory.confirmed and rule.by == "progress"
        stage = Stage.QUIET if quiet >= limit / 4 else Stage.WATCHING
        pace = min(usual_pace(self._settings), max(SOONEST, limit / 2 - quiet))
        return self._decision(
            stage,
            self._quiet_words(rule, quiet),
            rule=rule,
            quiet=quiet,
            sample=self._sparse_sample_due(rule),
            next_look=pace,
        )

    def _stillness(self, rule: StallRule, quiet: float, window: float) -> StillnessSummary:
        devices = min(quiet, self._watched) < rule.device_limit
        return self._ranks.stillness(self._clock.now, window, devices=devices)

    def _sparse_sample_due(self, rule: StallRule) -> bool:
        """Whether to take a sparse sample: without progress signals, only frames show that a rank which looks alive merely polls.

        None is taken while the GPUs work, or NCCL has counted collectives a moment ago.
        """
        unmoved, _ = self._ranks.unmoved_for(self._clock.now)
        pace = sparse_spacing(rule, self._ranks.changed, unmoved)
        if rule.by != "stillness" or min(self._watched, self._clock.quiet) < pace:
            return False
        return not self._ranks.on_devices and self._sample_due(pace)

    def _closer_due(self, rule: StallRule, quiet: float, *, near: bool) -> bool:
        """Whether to capture now, so that at the timeout nobody's class is open for lack of asking, and where it is `near` the report
        need not wait.
        """
        now, before = self._clock.now, self._closer_at
        wanted = near or wants_closer(rule, quiet, self._ranks, now)
        if self._memory.confirmed or not wanted:
            return False
        pause = AGAIN * rule.timeout.seconds if rule.by == "stillness" else 0.0
        if before is not None and now - before < max(pause, quiet):
            return False
        self._closer_at = now
        return True

    def _suspect(self, rule: StallRule, quiet: float, *, near: bool) -> StallDecision:
        left = rule.timeout.seconds - quiet
        early = rule.by == "stillness" and left > rule.timeout.seconds / 2
        pace = spacing(rule, over=early or left <= 0)
        writers = checkpoint_words(self._ranks.checkpoint_writers)
        return self._decision(
            Stage.SUSPECT,
            f"{self._quiet_words(rule, quiet)}: {writers or 'looking closer'}",
            rule=rule,
            quiet=quiet,
            sample=self._sample_due(pace),
            capture=self._closer_due(rule, quiet, near=near),
            next_look=min(pace, left) if left > 0 else pace,
        )

    def _confirm(self, rule: StallRule, quiet: float, standing: StillnessSummary) -> StallDecision:
        capture, self._memory.confirmed = not self._memory.confirmed, True
        until = rule.patience if standing.frozen else rule.busy_limit or 0.0
        pace, left = spacing(rule, over=True), until - quiet
        blamed_later = standing.somebody_stands and left > 0
        wait = f"; blamed at {seconds(until)}" if blamed_later else ""
        return self._decision(
            Stage.CONFIRMED,
            f"{self._quiet_words(rule, quiet)}; {standing_words(standing)}{wait}",
            rule=rule,
            quiet=quiet,
            capture=capture,
            sample=self._sample_due(pace),
            suspects=standing.suspects,
            stalled_since=self._stalled_since(rule, quiet),
            next_look=min(pace, left) if left > 0 else pace,
        )

    def _open(self, rule: StallRule, quiet: float, standing: StillnessSummary) -> StallDecision:
        memory, clock = self._memory, self._clock
        if rule.by == "stillness":
            quiet = standing.stood_for(clock.now)
        memory.confirmed, memory.opened = True, clock.now
        memory.incidents += 1
        memory.key = f"{memory.run}/{memory.attempt}/{clock.last_step or f'-{memory.incidents}'}"
        memory.stood = standing.stood
        memory.places = self._ranks.pause_places(clock.now, rule.window)
        memory.timeout = rule.timeout.seconds
        memory.stalled_since = self._stalled_since(rule, quiet)
        return self._blamed(rule, quiet, standing, open=True, capture=True)

    def _blamed(
        self, rule: StallRule, quiet: float, standing: StillnessSummary, **actions: bool
    ) -> StallDecision:
        watched = (
            self._clock.memory.observed if rule.by == "progress" else quiet < self._watched - 1
        )
        already = (
            "" if watched or not actions.get("open") else "already stalled when the agent came: "
        )
        words = standing_words(standing)
        return self._decision(
            Stage.BLAMED,
            f"{already}{self._quiet_words(rule, quiet, some=bool(standing.busy))}; {words}",
            rule=rule,
            quiet=quiet,
            suspects=standing.suspects,
            key=self._memory.key,
            stalled_since=self._memory.stalled_since,
            **actions,
        )

    def _stalled_since(self, rule: StallRule, quiet: float) -> float:
        if rule.by == "progress":
            return self._clock.memory.progressed_at
        return (self._clock.memory.looked_at or 0.0) - quiet

    # --- an open incident ---

    def _follow(self, rule: StallRule) -> StallDecision:
        """The incident is open: capture once more, and see whether the same frames advance by themselves."""
        memory, now = self._memory, self._clock.now
        opened = memory.opened or 0.0
        quiet = (self._clock.memory.looked_at or 0.0) - (memory.stalled_since or 0.0)
        seen_since = max(opened, self._first_look_at or 0.0)
        if rule.by == "stillness" and self._ranks.moved_since(memory.stood, seen_since):
            return self._recovered(quiet)
        if memory.places:  # a checkpoint has several: files, an upload
            memory.places |= self._ranks.pause_places(now, min(rule.window, now - seen_since))
        again = self._is_due(now - opened)
        memory.captured += again
        standing = self._stillness(rule, quiet, min(rule.window, now - seen_since))
        return self._blamed(rule, quiet, standing, capture=again, sample=self._sample_due(LATER))

    def _is_due(self, since: float) -> bool:
        done = self._memory.captured
        wanted = done == 0 or self._memory.awaits
        return wanted and done < len(LATER_CAPTURES) and since >= LATER_CAPTURES[done]

    def _recovered(self, pause: float) -> StallDecision:
        """It went on by itself: a false alarm, or a storage that came back. The run gets more time."""
        memory = self._memory
        self._clock.gaps.false_alarm(pause, memory.timeout)
        self._clock.gaps.survive(memory.places, pause)
        decision = self._decision(
            Stage.RECOVERED,
            f"moves again after {seconds(pause)} without a step",
            key=memory.key,
            stalled_since=memory.stalled_since,
        )
        self._moved()
        return decision

    # --- words ---

    def _quiet_words(self, rule: StallRule, quiet: float, some: bool = False) -> str:
        who = "some ranks have not" if some else "no rank has"
        return quiet_words(rule, quiet, self._clock.gaps.usual, who)

    def _sample_due(self, spacing: float) -> bool:
        due = self._sampled_at is None or self._clock.now - self._sampled_at >= 0.99 * spacing
        self._sampled_at = self._clock.now if due else self._sampled_at
        return due

    def _decision(
        self,
        stage: Stage,
        sentence: str,
        *,
        rule: StallRule | None = None,
        next_look: float | None = None,
        **fields: Any,
    ) -> StallDecision:
        timeout = rule.timeout if rule else Timeout(0.0, "")
        pace = self._settings.interval if next_look is None else next_look
        return StallDecision(
            stage=stage,
            sentence=sentence,
            timeout=timeout.seconds,
            why_timeout=timeout.why,
            usual_gap=self._clock.gaps.usual or 0.0,
            resumed=self._resumed,
            next_look=max(SOONEST, min(self._settings.interval, pace)),
            **fields,
        )
