"""From quiet to verdict: the watch of one run, look by look, through suspicion, stall and incident to their end.

`mldebug.stall.rules` says which clock holds and who is to blame when; this file is the life of a stall. At the timeout a
capture is taken and kept whatever the ranks do; blame is separate, and opens the incident now or later.
Pure: no threads, no files, no clock; the same looks give the same decisions.
"""

import copy
from typing import Any

from mldebug.stall.progress_clock import ProgressClock, StallMemory
from mldebug.stall.rules import (
    StallRule,
    StallSettings,
    choose,
    glance,
    is_blamed,
    keeps_waiting,
    spacing,
    unexcused,
    waits_for_others,
)
from mldebug.stall.sentences import quietly, saving_words, seconds, standing_words
from mldebug.stall.signals import RunLook, Stage, StallDecision
from mldebug.stall.stillness import RunActivity, StillnessSummary
from mldebug.stall.timeouts import Timeout

LATER_CAPTURES = (
    30.0,
    90.0,
)  # seconds after the first; the last only where a Flight Recorder may still come
LATER = 10.0  # seconds between samples of an open incident
SOONEST = 0.25


class StallWatch:
    """Decides for one run, one look after the other. Never raises for what a look says."""

    def __init__(self, settings: StallSettings, memory: StallMemory | None = None) -> None:
        self._settings = settings
        self._memory = copy.deepcopy(memory) if memory else StallMemory()
        self._pulse = ProgressClock(settings.interval, self._memory.pulse)
        self._ranks = RunActivity()
        self._came: float | None = None
        self._asked: float | None = None
        self._resumed = self._memory.confirmed

    @property
    def _watched(self) -> float:
        """Seconds that this agent has watched this attempt."""
        return self._pulse.now - (self._came or 0.0)

    def memory(self) -> StallMemory:
        """Return a copy to store; a watch made from it goes on where this one stands."""
        self._memory.pulse = self._pulse.memory
        return copy.deepcopy(self._memory)

    def obey(self, settings: StallSettings) -> None:
        """Go on under other settings; what was learned and seen stays."""
        self._settings = settings
        self._pulse.look_every(settings.interval)

    def await_answer(self, awaits: bool) -> None:
        """Does a rank still owe its Flight Recorder after the newest capture? A full one takes a minute."""
        self._memory.awaits = awaits

    def look(self, look: RunLook) -> StallDecision:
        """Take one look and decide."""
        interrupted = self._meet(look)
        pause = self._pulse.hear(look, learn=self._memory.opened is None)
        self._came = self._pulse.now if self._came is None else self._came
        self._ranks.see(look, self._pulse.now)
        if interrupted is not None:
            return interrupted
        if self._is_over(look):
            return self._ended("all ranks have exited" if self._memory.lived else "no rank yet")
        if pause is not None:
            if self._memory.opened is not None:
                return self._recovered(pause)
            self._moved()
        rule = choose(self._settings, look, self._pulse, self._ranks, self._watched)
        return self._judge(rule) if self._memory.opened is None else self._follow(rule)

    # --- the life of an attempt ---

    def _meet(self, look: RunLook) -> StallDecision | None:
        """Begin anew with a new attempt; one that was stalled ends here."""
        memory = self._memory
        first = self._pulse.memory.looked_at is None
        restarted = memory.over and bool(look.living)
        same = (memory.run, memory.attempt) == (look.run, look.attempt)
        memory.run, memory.attempt = look.run, look.attempt
        if first or (same and not restarted):
            return None
        stalled = memory.opened is not None
        decision = self._ended(f"attempt {look.attempt} has begun") if stalled else None
        self._pulse.begin_attempt()
        self._ranks = RunActivity()
        self._came = None
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
        decision = self._say(stage, why, key=memory.key, stalled_since=memory.stalled_since)
        memory.over = memory.lived
        self._moved()
        return decision

    def _moved(self) -> None:
        """The job moves: nothing that was seen before counts for the next stall."""
        memory = self._memory
        memory.confirmed = memory.awaits = False
        memory.captured = 0
        memory.opened = memory.stalled_since = None
        memory.key, memory.stood, memory.timeout = "", (), 0.0
        self._resumed = False
        self._ranks.forget(self._pulse.now)
        self._asked = None

    # --- from quiet to verdict ---

    def _judge(self, rule: StallRule) -> StallDecision:
        now, limit = self._pulse.now, rule.timeout.seconds
        every, some = self._ranks.unmoved_for(now)
        quiet = self._pulse.quiet if rule.by == "progress" else every
        standing = self._standing(rule, quiet, rule.window)
        counted = unexcused(rule, quiet, self._ranks, now)
        if is_blamed(rule, counted, standing, self._ranks, now):
            return self._open(rule, quiet, standing)
        if rule.by == "progress" and counted >= limit and self._watched >= rule.window:
            return self._confirm(rule, quiet, standing)
        if rule.by == "stillness" and waits_for_others(rule, standing):
            return self._confirm(rule, standing.stood_for(now), standing)
        steady = self._ranks.steady_for(now) if rule.by == "stillness" else 0.0
        if max(quiet, steady) >= limit / 2 or keeps_waiting(rule, some):
            return self._suspect(rule, max(quiet, steady))
        self._memory.confirmed = self._memory.confirmed and rule.by == "progress"
        stage = Stage.QUIET if quiet >= limit / 4 else Stage.WATCHING
        pace = min(self._settings.interval, max(SOONEST, limit / 2 - quiet))
        return self._say(
            stage,
            self._quietly(rule, quiet),
            rule=rule,
            quiet=quiet,
            sample=self._glances(rule),
            next_look=pace,
        )

    def _standing(self, rule: StallRule, quiet: float, window: float) -> StillnessSummary:
        devices = min(quiet, self._watched) < rule.device_limit
        return self._ranks.standing(self._pulse.now, window, devices=devices)

    def _glances(self, rule: StallRule) -> bool:
        """Without a signal nobody is trusted for ever for looking alive: a sparse sample shows who polls."""
        pace = glance(rule, self._ranks.changed)
        return rule.by == "stillness" and self._watched >= pace and self._sample_due(pace)

    def _suspect(self, rule: StallRule, quiet: float) -> StallDecision:
        left = rule.timeout.seconds - quiet
        early = rule.by == "stillness" and left > rule.timeout.seconds / 2
        pace = spacing(rule, over=early or left <= 0)
        saves = saving_words(self._ranks.savers)
        return self._say(
            Stage.SUSPECT,
            f"{self._quietly(rule, quiet)}: {saves or 'looking closer'}",
            rule=rule,
            quiet=quiet,
            sample=self._sample_due(pace),
            next_look=min(pace, left) if left > 0 else pace,
        )

    def _confirm(self, rule: StallRule, quiet: float, standing: StillnessSummary) -> StallDecision:
        capture, self._memory.confirmed = not self._memory.confirmed, True
        until = rule.patience if standing.frozen else rule.busy_limit or 0.0
        pace, left = spacing(rule, over=True), until - quiet
        blamed_later = standing.somebody_stands and left > 0
        wait = f"; blamed at {seconds(until)}" if blamed_later else ""
        return self._say(
            Stage.CONFIRMED,
            f"{self._quietly(rule, quiet)}; {standing_words(standing)}{wait}",
            rule=rule,
            quiet=quiet,
            capture=capture,
            sample=self._sample_due(pace),
            suspects=standing.suspects,
            stalled_since=self._stalled_since(rule, quiet),
            next_look=min(pace, left) if left > 0 else pace,
        )

    def _open(self, rule: StallRule, quiet: float, standing: StillnessSummary) -> StallDecision:
        memory, pulse = self._memory, self._pulse
        if rule.by == "stillness":
            quiet = standing.stood_for(pulse.now)
        memory.confirmed, memory.opened = True, pulse.now
        memory.incidents += 1
        memory.key = f"{memory.run}/{memory.attempt}/{pulse.last_step or f'-{memory.incidents}'}"
        memory.stood = standing.stood
        memory.timeout = rule.timeout.seconds
        memory.stalled_since = self._stalled_since(rule, quiet)
        return self._blamed(rule, quiet, standing, open=True, capture=True)

    def _blamed(
        self, rule: StallRule, quiet: float, standing: StillnessSummary, **asked: bool
    ) -> StallDecision:
        saw = self._pulse.memory.heard if rule.by == "progress" else quiet < self._watched - 1
        already = "" if saw or not asked.get("open") else "already stalled when the agent came: "
        words = standing_words(standing)
        return self._say(
            Stage.BLAMED,
            f"{already}{self._quietly(rule, quiet, some=bool(standing.busy))}; {words}",
            rule=rule,
            quiet=quiet,
            suspects=standing.suspects,
            key=self._memory.key,
            stalled_since=self._memory.stalled_since,
            **asked,
        )

    def _stalled_since(self, rule: StallRule, quiet: float) -> float:
        if rule.by == "progress":
            return self._pulse.memory.progressed_at
        return (self._pulse.memory.looked_at or 0.0) - quiet

    # --- an open incident ---

    def _follow(self, rule: StallRule) -> StallDecision:
        """The incident is open: capture once more, and see whether the same frames advance by themselves."""
        memory, now = self._memory, self._pulse.now
        opened = memory.opened or 0.0
        quiet = (self._pulse.memory.looked_at or 0.0) - (memory.stalled_since or 0.0)
        seen_since = max(opened, self._came or 0.0)
        if rule.by == "stillness" and self._ranks.moved_since(memory.stood, seen_since):
            return self._recovered(quiet)
        again = self._is_due(now - opened)
        memory.captured += again
        standing = self._standing(rule, quiet, min(rule.window, now - seen_since))
        return self._blamed(rule, quiet, standing, capture=again, sample=self._sample_due(LATER))

    def _is_due(self, since: float) -> bool:
        done = self._memory.captured
        wanted = done == 0 or self._memory.awaits
        return wanted and done < len(LATER_CAPTURES) and since >= LATER_CAPTURES[done]

    def _recovered(self, pause: float) -> StallDecision:
        """It went on by itself: a false alarm, or a storage that came back. The run gets more time."""
        memory = self._memory
        self._pulse.gaps.false_alarm(pause, memory.timeout)
        decision = self._say(
            Stage.RECOVERED,
            f"moves again after {seconds(pause)} without a step",
            key=memory.key,
            stalled_since=memory.stalled_since,
        )
        self._moved()
        return decision

    # --- words ---

    def _quietly(self, rule: StallRule, quiet: float, some: bool = False) -> str:
        who = "some ranks have not" if some else "no rank has"
        return quietly(rule, quiet, self._pulse.gaps.usual, who)

    def _sample_due(self, spacing: float) -> bool:
        due = self._asked is None or self._pulse.now - self._asked >= 0.99 * spacing
        self._asked = self._pulse.now if due else self._asked
        return due

    def _say(
        self,
        stage: Stage,
        sentence: str,
        *,
        rule: StallRule | None = None,
        next_look: float | None = None,
        **said: Any,
    ) -> StallDecision:
        timeout = rule.timeout if rule else Timeout(0.0, "")
        pace = self._settings.interval if next_look is None else next_look
        return StallDecision(
            stage=stage,
            sentence=sentence,
            timeout=timeout.seconds,
            why_timeout=timeout.why,
            usual_gap=self._pulse.gaps.usual or 0.0,
            resumed=self._resumed,
            next_look=max(SOONEST, min(self._settings.interval, pace)),
            **said,
        )
