"""How long a run may be quiet, what is measured for that, and when a rank is blamed.

| the run | what is measured | counts as a stall after |
|---|---|---|
| reports steps, log records or heartbeats, and has started | time without progress | `timeout` |
| reports steps, and has not made its first one (no stack shows that it trains) | all ranks frozen; one that indexes or compiles is not, before a GPU worked | `init_timeout` |
| reports nothing at all, only lines in a log, or that it is in the midst of an evaluation before its first step | all ranks frozen | 60 s; 240 s while a frozen rank's main thread writes lines |
| reports nothing here, has ranks on other nodes | all ranks wait for others | 0.75 x the collective's own timeout |

A rank that keeps the others waiting in an evaluation or a checkpoint (`mldebug.capture.step_pauses`) is not blamed before `STEP_PAUSE`: no step is
due there, so the gaps between steps say nothing. Nor is a run of which all ranks here stand in the same frames of their own code, waiting for
no other rank: so looks a program that pauses as a whole (an upload, a server, a validation of its own). Where there are several, and none
elsewhere, they have `ALL_PAUSE`. A pause that was reported all the same and ended by itself has 1.5 x its length from then on, in its place of the program alone.
The capture is taken at the timeout all the same.

Lines without a step say little: a background thread, a bar's monitor or another process writes them while the training hangs. Only a
main thread that wakes, prints and waits again buys time: it looks for something that may come (a server, a lock), but not for ever.

A launched collective starts every measurement anew; that none is launched proves nothing, because NCCL does not count work in a
CUDA graph. CPU time, switches and I/O never delay the first row's timeout.

An incident opens when no rank moves. While some ranks move and others stand, it opens at the smaller of `busy_timeout` and 0.75 x the
collective's own timeout: before torch kills the job, and the evidence with it. That also caps every automatic timeout, so that a
capture is kept by then. A run that is usually quiet for longer (a log line every ten minutes) is not blamed within its usual gap.

A checkpoint that grows counts as a job that moves, up to the same moment: a rank that still waits then is about to be killed, and a
hung job may write a debug log for ever. A rank that stands in one line while its GPU works may evaluate, or hang in a kernel that
never ends, or share its GPU with another program. Only time tells these apart, so it counts as moving for `DEVICE_LIMIT` at most.

A run that reports nothing is taken to be before its first step until one of its GPUs has worked, or a rank was found in two backward passes:
the first epoch of a bar that counts epochs is watched as a run that tells no steps is. Until then, a rank that prepares data
while the others wait for it is blamed only when the collective is about to end the job. A timeout that the configuration gives as a
number is used unchanged, but for a run whose own signs of progress come more seldom (`ProgressGaps.at_least`).
"""

import math
from typing import Literal

import msgspec

from mldebug.jobs.heartbeat import LEGITIMATE
from mldebug.stall.progress_clock import ProgressClock
from mldebug.stall.signals import RunLook
from mldebug.stall.stillness import RunActivity, StillnessSummary
from mldebug.stall.timeouts import MOST, Timeout

BUSY_FACTOR, BUSY_LEAST = 4.0, 300.0
BEFORE_EVIDENCE_DIES = 0.75
DEVICE_LIMIT = 1800.0  # seconds; more where the run has survived such a pause
SURVIVED = 1.5
NO_SIGNAL, SAYS_IT_WAITS = 60.0, 240.0
STEP_PAUSE = 75.0  # what hangs in an evaluation or a checkpoint is noticed within 90 s
ALL_PAUSE = (
    240.0  # what all ranks do alike is what the program says, and nobody keeps another waiting
)
NEWCOMER = 30.0  # an agent that came later than the stall looks at least so long before it speaks
STANDS = 3.0  # seconds without a context switch after which a run may have come to a stand
CLOSER = 0.6  # of the timeout, after which a native stack is asked about who may wait or work
# Of the timeout, or seconds before it: then ranks of which none moves are captured, and the report need not wait
READY, AHEAD = 0.75, 4.0
LOOKS = 10  # within a timeout that is set by hand
AGAIN = 10.0  # timeouts until it is asked again in a run that tells no steps: it stops a rank for a moment
SAMPLES = 10  # planned over a window, so that at least 8 fit
LATER = 10.0  # seconds between samples after the confirmation
SOONEST = 0.25
STARTING = frozenset({"init", "store"})
SET_BY_HAND = "stall.timeout in the config"


class StallSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The section `stall` of the configuration, and the interval between two looks. All times are seconds."""

    timeout: Literal["auto"] | float = "auto"
    busy_timeout: Literal["auto"] | float = "auto"
    init_timeout: float = 300.0
    interval: float = 5.0


class StallRule(msgspec.Struct, frozen=True):
    """The timeouts that hold for a run at this moment, in seconds. `by`: whether time without progress or ranks that stand still
    decide.
    """

    by: Literal["progress", "stillness"]
    timeout: Timeout
    window: float  # a rank is frozen when it was so for this long
    busy_limit: float | None  # None: nobody is blamed for being busy
    device_limit: float = math.inf  # quiet for so long, a busy device excuses nobody
    # quiet for so long, those who stand are blamed, where that is later than the timeout
    patience: float = 0.0
    silence: float = (
        0.0  # up to then a run is usually quiet: nothing is captured while a rank moves
    )
    checkpoint_limit: float = math.inf  # quiet for so long, a growing checkpoint excuses no rank
    pause: float = 0.0  # seconds that the pause may take in which the ranks stand; 0: in none


def choose(
    settings: StallSettings, look: RunLook, clock: ProgressClock, ranks: RunActivity, watched: float
) -> StallRule:
    """The timeouts that hold at the time of this reading of the run. `watched`: seconds for which this agent has watched the
    attempt.
    """
    started = clock.started(look)
    dies = BEFORE_EVIDENCE_DIES * look.evidence_lives
    if started and clock.has_rhythm:
        timeout, patience = _by_rhythm(settings, look, clock)
        young = settings.timeout == "auto" and not clock.gaps.enough
        window = _window(timeout, watched, young=young)
        excused = _is_excused(ranks, clock.now, window)
        least = MOST if young else 0.0
        limit = _busy_limit(settings, look, max(timeout.seconds, least), excused)
        pause = 0.0
        if settings.timeout == "auto":
            pause = _pause(look, clock, ranks, window)
        patience = max(patience, pause)
        busy = max(patience, limit)
        device = _device_limit(clock, busy, excused)
        silence = min(clock.gaps.silence, dies)
        return StallRule("progress", timeout, window, busy, device, patience, silence, dies, pause)
    begins = not (started or ranks.trained or look.evaluates)
    if begins and (clock.has_rhythm or ranks.any_class(STARTING)):
        timeout = Timeout(settings.init_timeout, "before the first step")
        working: float | None = None
        if clock.has_rhythm and ranks.worked:  # it may train already: a bar of epochs tells no step
            excused = _is_excused(ranks, clock.now, timeout.seconds)
            working = _busy_limit(settings, look, timeout.seconds, excused)
        return StallRule("stillness", timeout, timeout.seconds, working)
    timeout = _without_signal(settings, look, clock, ranks)
    others = settings.timeout == "auto" and look.elsewhere
    patience = max(timeout.seconds, dies) if others else timeout.seconds
    excused = _is_excused(ranks, clock.now, timeout.seconds)
    epochs = settings.init_timeout if clock.has_rhythm else 0.0  # of a bar that counts them
    slowest = max(timeout.seconds, _talks(settings, clock), epochs)
    busy = _busy_limit(settings, look, slowest, excused)
    if not (started or ranks.worked) and settings.busy_timeout == "auto":
        busy = max(busy, dies)
    return StallRule(
        "stillness", timeout, timeout.seconds, busy, patience=patience, checkpoint_limit=dies
    )


def is_blamed(
    rule: StallRule, quiet: float, standing: StillnessSummary, ranks: RunActivity, now: float
) -> bool:
    """Whether an incident opens now: the timeout is over and no rank moves, or a rank has kept the others waiting for too
    long. `quiet`: seconds of quiet as `counted_quiet` gives them. `now`: the caller's clock, in seconds.
    """
    if rule.by == "stillness":
        early = waits_for_others(rule, standing) and standing.stood_for(now) < rule.patience
        return (standing.frozen and not early) or _kept_waiting(rule, ranks, now)
    if quiet < max(rule.timeout.seconds, rule.patience):
        return False
    late = rule.busy_limit is not None and quiet >= rule.busy_limit
    return standing.frozen or (late and standing.somebody_stands)


def is_overdue(rule: StallRule, quiet: float, standing: StillnessSummary) -> bool:
    """Whether a run that has progress signals is quiet for so long that its ranks are captured, even if none can be blamed.

    That is so after the timeout if no rank moves; else only after the silence that is usual between two flushes of its log.
    `quiet`: seconds of quiet as `counted_quiet` gives them.
    """
    timeout = rule.timeout.seconds
    least = timeout if standing.frozen else max(timeout, rule.silence)
    return rule.by == "progress" and quiet >= least


def is_spared(rule: StallRule, quiet: float) -> bool:
    """Whether the timeout is over, but no incident is opened yet because this run often pauses for as long in all ranks at once,
    or has come out of such a pause at this place of its code before. `quiet`: seconds as `counted_quiet` gives them.
    """
    return rule.pause > STEP_PAUSE and rule.timeout.seconds <= quiet < rule.pause


def waits_for_others(rule: StallRule, standing: StillnessSummary) -> bool:
    """Of a run without progress signals: whether all ranks of this node wait, perhaps for ranks on another node that are well."""
    return rule.patience > rule.timeout.seconds and standing.only_waits


def counted_quiet(rule: StallRule, quiet: float, ranks: RunActivity, now: float) -> float:
    """Return the seconds of quiet that are held against the run: since its last progress or, until the checkpoint limit of
    the rule is over, since a checkpoint last grew if that was later. `quiet`: seconds since the last progress; `now`:
    the caller's clock in seconds.
    """
    if rule.by == "stillness" or quiet >= rule.checkpoint_limit:
        return quiet
    return min(quiet, now - ranks.checkpoint_moved_at(now, rule.window))


def keeps_waiting(rule: StallRule, some_unmoved: float) -> bool:
    """Of a run without progress signals: whether one rank has not moved for so long (`some_unmoved`, seconds) that a stack sample
    is worth its cost.
    """
    limit = rule.busy_limit
    return rule.by == "stillness" and limit is not None and some_unmoved >= limit / 2


def sparse_spacing(rule: StallRule, changed: bool, unmoved: float) -> float:
    """Seconds between two stack samples of a run without progress signals, while CPU, switches or I/O suggest that it moves.

    Ranks that wait for each other by polling look alive to every counter, so they are sampled too. A run whose frames `changed`
    is sampled less often, unless no rank has moved for a while (`unmoved`: seconds).
    """
    if rule.busy_limit is None:
        return max(SOONEST, min(LATER, rule.timeout.seconds / SAMPLES))
    if unmoved >= STANDS:
        return rule.timeout.seconds / 6
    often = not changed or rule.timeout.seconds < NO_SIGNAL
    return rule.timeout.seconds / (4.0 if often else 2.5)


def spacing(rule: StallRule, over: bool) -> float:
    """Seconds between two stack samples: about eight in the second half of the timeout, fewer when the timeout is `over`."""
    half = rule.window if rule.by == "progress" else rule.timeout.seconds / 2
    planned = max(SOONEST, half / SAMPLES)
    return max(planned, min(LATER, half / 4)) if over else planned


def wants_closer(rule: StallRule, quiet: float, ranks: RunActivity, now: float) -> bool:
    """Whether a capture is to be taken before the timeout, because stack samples do not show which ranks wait and which
    work. `quiet`: seconds without progress; `now`: the caller's clock in seconds.
    """
    limit = rule.timeout.seconds
    return CLOSER * limit <= quiet and ranks.any_open(now, limit / 4)


def is_nearly_blamed(
    rule: StallRule, quiet: float, standing: StillnessSummary, ranks: RunActivity, now: float
) -> bool:
    """Whether an incident opens in a moment unless a rank moves: a capture takes seconds (many where the machine is busy), and what is
    begun now is there by then. `quiet`: seconds of quiet as `counted_quiet` gives them; `now`: the caller's clock, in seconds.
    """
    limit = max(rule.timeout.seconds, rule.patience)
    if not standing.frozen or quiet < max(READY * limit, limit - AHEAD):
        return False
    return rule.by == "progress" and math.isinf(ranks.checkpoint_moved_at(now, rule.window))


def usual_pace(settings: StallSettings) -> float:
    """Seconds between two looks at a run that moves: what happened between them is known no more closely, and a short timeout counts from
    there.
    """
    if settings.timeout == "auto":
        return settings.interval
    return min(settings.interval, settings.timeout / LOOKS)


def _kept_waiting(rule: StallRule, ranks: RunActivity, now: float) -> bool:
    """Without progress signals: a rank was frozen all that time while another worked."""
    if rule.busy_limit is None:
        return False
    standing = ranks.stillness(now, rule.busy_limit)
    writes = now - ranks.checkpoint_moved_at(now, rule.window) < rule.busy_limit
    if writes and standing.stood_for(now) < rule.checkpoint_limit:
        return False
    return bool(standing.busy) and bool(standing.waiting or standing.blind)


def _by_rhythm(
    settings: StallSettings, look: RunLook, clock: ProgressClock
) -> tuple[Timeout, float]:
    """The timeout, and from when on those who stand are blamed."""
    dies = BEFORE_EVIDENCE_DIES * look.evidence_lives
    usual = clock.gaps.timeout(dies)
    if settings.timeout != "auto":
        longer = clock.gaps.at_least(settings.timeout, min(usual.seconds, dies))
        chosen = longer or Timeout(settings.timeout, SET_BY_HAND)
        return chosen, chosen.seconds
    slow = clock.gaps.reach(dies)
    # no capture at every step of a job whose steps outlast its collectives
    cap = max(dies, MOST) if slow else dies
    if usual.seconds <= cap:
        return usual, usual.seconds
    why = f"at most {cap:.3g} s, as a collective may end the job after {look.evidence_lives:.3g} s"
    return Timeout(cap, why), cap if clock.gaps.enough and not slow else usual.seconds


def _without_signal(
    settings: StallSettings, look: RunLook, clock: ProgressClock, ranks: RunActivity
) -> Timeout:
    if settings.timeout != "auto":
        return Timeout(settings.timeout, SET_BY_HAND)
    stood = ranks.steady_for(clock.now) - 2 * settings.interval  # lines before that are older
    if clock.log_grows(within=min(NO_SIGNAL, stood)):
        why = "no progress signal, but a rank that waits goes on writing lines"
        return clock.gaps.widen(Timeout(SAYS_IT_WAITS, why))
    survived = _survived_pause(look, clock, ranks, NO_SIGNAL)
    if survived > STEP_PAUSE:
        why = f"no progress signal, and the run has survived a pause of {survived / SURVIVED:.3g} s in this place"
        return Timeout(survived, why)
    if _pause(look, clock, ranks, NO_SIGNAL):
        why = "no progress signal, and an evaluation, a checkpoint or a pause of all ranks may take its time"
        return clock.gaps.widen(Timeout(STEP_PAUSE, why))
    return clock.gaps.widen(Timeout(NO_SIGNAL, "no progress signal"))


def _pause(look: RunLook, clock: ProgressClock, ranks: RunActivity, window: float) -> float:
    """Seconds that a pause of the run may take in which its ranks have stood for the last `window` seconds; 0 where it is none."""
    dies = BEFORE_EVIDENCE_DIES * look.evidence_lives
    alike = ranks.pauses_alike(clock.now, window)
    usual = STEP_PAUSE if alike or ranks.pauses(clock.now, window, look.elsewhere) else 0.0
    if alike > 1 and not look.elsewhere:
        usual = ALL_PAUSE
    return max(min(usual, dies), _survived_pause(look, clock, ranks, window))


def _survived_pause(
    look: RunLook, clock: ProgressClock, ranks: RunActivity, window: float
) -> float:
    """Seconds that a pause may take in the place where the run is, because it has survived one there: before torch ends a collective in
    which others wait for it. 0 where it has not.
    """
    gaps, now = clock.gaps, clock.now
    survived = gaps.pause_at(ranks.pause_places(now, window)) if gaps.memory.pauses else 0.0
    if ranks.pauses_alike(now, window) and not look.elsewhere:  # nobody waits for another
        return survived
    return min(survived, BEFORE_EVIDENCE_DIES * look.evidence_lives)


def _is_excused(ranks: RunActivity, now: float, window: float) -> bool:
    """Whether a busy rank's own hook reports a phase in which no steps are due. The phase of a rank that waits excuses nobody."""
    standing = ranks.stillness(now, window)
    works = standing.busy or standing.blind  # who is blind may be computing
    return any(activity.last.phase in LEGITIMATE for activity in works)


def _talks(settings: StallSettings, clock: ProgressClock) -> float:
    """The timeout of a run that tells no step while main threads of its ranks write lines, moving or not; else 0."""
    talks = settings.timeout == "auto" and clock.log_grows(within=NO_SIGNAL)
    return SAYS_IT_WAITS if talks else 0.0


def _busy_limit(settings: StallSettings, look: RunLook, timeout: float, excused: bool) -> float:
    setting = settings.busy_timeout
    automatic = max(BUSY_FACTOR * timeout, BUSY_LEAST)
    patience = automatic if setting == "auto" else setting
    if setting == "auto" and excused:
        patience = math.inf
    return max(timeout, min(patience, BEFORE_EVIDENCE_DIES * look.evidence_lives))


def _device_limit(clock: ProgressClock, busy_limit: float, excused: bool) -> float:
    if excused:
        return math.inf
    return max(busy_limit, DEVICE_LIMIT, SURVIVED * clock.gaps.memory.longest)


def _window(timeout: Timeout, watched: float, *, young: bool) -> float:
    """Half the timeout, as the samples are spread; all of it in a young run, whose pause may have begun with a compilation.

    Less where the agent came later than the stall.
    """
    window = timeout.seconds if young else timeout.seconds / 2
    return min(window, NEWCOMER) if watched < timeout.seconds else window
