"""From quiet to verdict: when does the watch of one run turn into suspicion, a stall, an incident, and end again?

Two clocks, one for each kind of run:

| the run | the clock | speaks after |
|---|---|---|
| tells steps, records, beats or collectives, and has started | time without progress; activity never delays it | `timeout` |
| has not made its first step | all ranks frozen; indexing and compiling ranks are not | `init_timeout` |
| tells nothing at all | all ranks frozen | 60 s (4 × as long while a log that nobody can read grows) |

On the first clock a capture is confirmed at the timeout whatever the ranks do. An incident opens when nobody moves, or,
while somebody moves and others wait, at the smaller of `busy_timeout` and 0.75 × the collective's own timeout.
Pure: no threads, no files, no clock; the same looks give the same decisions.
"""

import copy
from typing import Literal

import msgspec

from mldebug.gaps import Timeout
from mldebug.model import Role
from mldebug.pulse import Pulse, PulseMemory
from mldebug.sentences import seconds, silence, standing_words
from mldebug.signals import Decision, Look, Stage
from mldebug.stillness import Ranks, Standing

BUSY_FACTOR, BUSY_LEAST = 4.0, 300.0
BEFORE_EVIDENCE_DIES = 0.75
NO_SIGNAL = 60.0
UNREADABLE_LOG = 4.0
NEWCOMER = 30.0  # an agent that just came looks at least so long before it speaks
SECOND_CAPTURE = 30.0
SAMPLES = 10  # planned in the second half of the timeout; at least 8 must fit
LATER = 10.0  # seconds between samples after the confirmation
SOONEST = 0.25
STARTING = frozenset({"init", "store"})


class StallSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`stall:` of the configuration, and how often the watch looks. Seconds; a number is obeyed as it is."""

    timeout: Literal["auto"] | float = "auto"
    busy_timeout: Literal["auto"] | float = "auto"
    init_timeout: float = 300.0
    interval: float = 5.0


class StallMemory(msgspec.Struct, kw_only=True):
    """What survives a restart of the agent: the rhythm, the clock and the open incident."""

    run: str = ""
    attempt: int = 0
    pulse: PulseMemory = msgspec.field(default_factory=PulseMemory)
    lived: bool = False  # the attempt has had ranks
    over: bool = False
    confirmed: bool = False
    opened: float | None = None  # watched time
    captured_twice: bool = False
    key: str = ""
    stood: tuple[int, ...] = ()  # ranks that were frozen when the incident opened
    stalled_since: float | None = None
    timeout: float = 0.0  # the one that raised the alarm
    incidents: int = 0


class Rule(msgspec.Struct, frozen=True):
    """The clock that holds for a run at this moment."""

    by: Literal["progress", "stillness"]
    timeout: Timeout
    window: float  # a rank is frozen when it was so for this long
    busy_limit: float | None  # None: nobody is blamed for being busy


class StallWatch:
    """Decides for one run, one look after the other. Never raises for what a look says."""

    def __init__(self, settings: StallSettings, memory: StallMemory | None = None) -> None:
        self._settings = settings
        self._memory = copy.deepcopy(memory) if memory else StallMemory()
        self._pulse = Pulse(settings.interval, self._memory.pulse)
        self._ranks = Ranks()
        self._came: float | None = None
        self._asked: float | None = None

    def memory(self) -> StallMemory:
        """Return a copy to store; a watch made from it goes on where this one stands."""
        self._memory.pulse = self._pulse.memory
        return copy.deepcopy(self._memory)

    def look(self, look: Look) -> Decision:
        """Take one look and decide."""
        interrupted = self._meet(look)
        pause = self._pulse.hear(look, learn=self._memory.opened is None)
        self._came = self._pulse.now if self._came is None else self._came
        self._ranks.see(look.ranks, look.exited, self._pulse.now)
        if interrupted is not None:
            return interrupted
        if self._is_over(look):
            return self._ended("all ranks have exited" if self._memory.lived else "no rank yet")
        if pause is not None:
            if self._memory.opened is not None:
                return self._recovered(pause)
            self._moved()
        rule = self._rule(look)
        return self._judge(rule) if self._memory.opened is None else self._follow(rule)

    # --- the life of an attempt ---

    def _meet(self, look: Look) -> Decision | None:
        """Begin anew with a new attempt; one that was stalled ends here."""
        memory = self._memory
        first = self._pulse.memory.looked_at is None
        restarted = memory.over and bool(_living(look))
        same = (memory.run, memory.attempt) == (look.run, look.attempt)
        memory.run, memory.attempt = look.run, look.attempt
        if first or (same and not restarted):
            return None
        stalled = memory.opened is not None
        decision = self._ended(f"attempt {look.attempt} has begun") if stalled else None
        self._pulse.begin_attempt()
        self._ranks = Ranks()
        self._came = None
        memory.lived = memory.over = False
        self._moved()
        return decision

    def _is_over(self, look: Look) -> bool:
        living = bool(_living(look))
        self._memory.lived = self._memory.lived or living
        return not living

    def _ended(self, why: str) -> Decision:
        memory = self._memory
        stage = Stage.ENDED if memory.lived else Stage.WATCHING
        decision = self._say(stage, why, key=memory.key, stalled_since=memory.stalled_since)
        memory.over = memory.lived
        self._moved()
        return decision

    def _moved(self) -> None:
        """The job moves: nothing that was seen before counts for the next stall."""
        memory = self._memory
        memory.confirmed = memory.captured_twice = False
        memory.opened = memory.stalled_since = None
        memory.key, memory.stood, memory.timeout = "", (), 0.0
        self._ranks.forget(self._pulse.now)
        self._asked = None

    # --- which clock holds ---

    def _rule(self, look: Look) -> Rule:
        started = self._pulse.started(look)
        if started and self._pulse.has_rhythm:
            timeout = self._timeout(look)
            return Rule("progress", timeout, self._window(timeout), self._busy(look, timeout))
        tells = bool(look.progress) or bool(self._pulse.memory.values)
        if not started and (tells or self._ranks.any_class(STARTING)):
            seconds_ = self._settings.init_timeout
            return Rule("stillness", Timeout(seconds_, "before the first step"), seconds_, None)
        timeout = self._timeout_without_signal()
        return Rule("stillness", timeout, timeout.seconds, self._busy(look, timeout))

    def _timeout(self, look: Look) -> Timeout:
        if self._settings.timeout != "auto":
            return Timeout(self._settings.timeout, "as configured")
        return self._pulse.gaps.timeout(BEFORE_EVIDENCE_DIES * look.evidence_lives)

    def _timeout_without_signal(self) -> Timeout:
        if self._settings.timeout != "auto":
            return Timeout(self._settings.timeout, "as configured")
        if self._pulse.log_grows(within=NO_SIGNAL):
            why = "only an unreadable log grows: 240 s of all ranks frozen"
            return self._pulse.gaps.widen(Timeout(UNREADABLE_LOG * NO_SIGNAL, why))
        return self._pulse.gaps.widen(
            Timeout(NO_SIGNAL, "no progress signal: 60 s of all ranks frozen")
        )

    def _busy(self, look: Look, timeout: Timeout) -> float:
        told = self._settings.busy_timeout
        patience = max(BUSY_FACTOR * timeout.seconds, BUSY_LEAST) if told == "auto" else told
        return max(timeout.seconds, min(patience, BEFORE_EVIDENCE_DIES * look.evidence_lives))

    def _window(self, timeout: Timeout) -> float:
        """Half the timeout, as the samples are spread; less where the agent came later than the stall."""
        half = timeout.seconds / 2
        return min(half, NEWCOMER) if self._watched < timeout.seconds else half

    @property
    def _watched(self) -> float:
        """Seconds that this agent has watched this attempt."""
        return self._pulse.now - (self._came or 0.0)

    # --- from quiet to verdict ---

    def _judge(self, rule: Rule) -> Decision:
        limit = rule.timeout.seconds
        quiet = self._pulse.quiet if rule.by == "progress" else self._ranks.steady_for(self._pulse.now)
        standing = self._ranks.standing(self._pulse.now, rule.window)
        if self._is_blamed(rule, quiet, standing):
            return self._open(rule, quiet, standing)
        if rule.by == "progress" and quiet >= limit and self._watched >= rule.window:
            return self._confirm(rule, quiet, standing)
        if quiet >= limit / 2:
            return self._suspect(rule, quiet)
        stage = Stage.QUIET if quiet >= limit / 4 else Stage.WATCHING
        pace = min(self._settings.interval, max(SOONEST, limit / 2 - quiet))
        return self._say(stage, self._quietly(rule, quiet), rule=rule, quiet=quiet, next_look=pace)

    def _is_blamed(self, rule: Rule, quiet: float, standing: Standing) -> bool:
        if rule.by == "stillness":
            return standing.frozen or self._busy_too_long(rule)
        if quiet < rule.timeout.seconds:
            return False
        late = rule.busy_limit is not None and quiet >= rule.busy_limit
        return standing.frozen or (late and standing.others_wait)

    def _busy_too_long(self, rule: Rule) -> bool:
        """Without a signal: somebody has waited in one place all that time while others work."""
        if rule.busy_limit is None:
            return False
        standing = self._ranks.standing(self._pulse.now, rule.busy_limit)
        return bool(standing.waiting and standing.busy)

    def _suspect(self, rule: Rule, quiet: float) -> Decision:
        limit = rule.timeout.seconds
        spacing = max(SOONEST, limit / 2 / SAMPLES)
        if quiet >= limit:
            spacing = max(spacing, LATER)
        pace = max(SOONEST, min(spacing, limit - quiet)) if quiet < limit else spacing
        return self._say(
            Stage.SUSPECT,
            f"{self._quietly(rule, quiet)}: looking closer",
            rule=rule,
            quiet=quiet,
            sample=self._sample_due(spacing),
            next_look=min(self._settings.interval, pace),
        )

    def _confirm(self, rule: Rule, quiet: float, standing: Standing) -> Decision:
        capture, self._memory.confirmed = not self._memory.confirmed, True
        wait = ""
        if standing.others_wait and rule.busy_limit is not None:
            wait = f"; blamed at {seconds(rule.busy_limit)}"
        return self._say(
            Stage.CONFIRMED,
            f"{self._quietly(rule, quiet)}; {standing_words(standing)}{wait}",
            rule=rule,
            quiet=quiet,
            capture=capture,
            sample=self._sample_due(LATER if self._watched > rule.window else rule.window / SAMPLES),
            suspects=standing.suspects,
            stalled_since=self._pulse.memory.progressed_at,
        )

    def _open(self, rule: Rule, quiet: float, standing: Standing) -> Decision:
        memory = self._memory
        memory.confirmed, memory.opened = True, self._pulse.now
        memory.incidents += 1
        step = self._pulse.last_step or f"-{memory.incidents}"
        memory.key = f"{memory.run}/{memory.attempt}/{step}"
        memory.stood = tuple(
            trail.last.rank for trail in (*standing.waiting, *standing.blind, *standing.inert)
        )
        memory.timeout = rule.timeout.seconds
        memory.stalled_since = self._stalled_since(rule, quiet)
        already = "" if self._saw_it_begin(rule, quiet) else "already stalled when the agent came: "
        return self._say(
            Stage.BLAMED,
            f"{already}{self._quietly(rule, quiet)}; {standing_words(standing)}",
            rule=rule,
            quiet=quiet,
            open=True,
            capture=True,
            suspects=standing.suspects,
            key=memory.key,
            stalled_since=memory.stalled_since,
        )

    def _stalled_since(self, rule: Rule, quiet: float) -> float:
        if rule.by == "progress":
            return self._pulse.memory.progressed_at
        return (self._pulse.memory.looked_at or 0.0) - quiet
