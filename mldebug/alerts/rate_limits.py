"""How often a step may run: not again for the same job within its cool-down, and so often in an hour. Pure, unix seconds."""

from collections import Counter

import msgspec

HOUR = 3600.0
MOST = 2000  # runs that are remembered


class PastAction(msgspec.Struct, frozen=True, array_like=True):
    """One run of an action; `subject`: the run of the job, or the event where there is none."""

    step: str
    subject: str
    at: float
    uid: int = -1  # whose job it concerned; -1: the node's


class ActionRateLimits:
    """Remembers which actions ran when; `past` is what must survive a restart."""

    def __init__(self, past: tuple[PastAction, ...] = ()) -> None:
        self.past = past

    def refusal(
        self, step: str, subject: str, now: float, cooldown: float, hourly: int, uid: int = -1
    ) -> str:
        """Why the action must not run now; "" where it may. Times in the future (after a clock was set back) count as now."""
        mine = [one for one in self.past if one.step == step]
        ages = [max(0.0, now - one.at) for one in mine if one.subject == subject]
        if ages and min(ages) < cooldown:
            return f"it ran {min(ages):.0f} s ago for the same, and its cool-down is {cooldown:g} s"
        lately = Counter(one.uid for one in mine if now - one.at < HOUR)
        # what one user's jobs have used up is not missing to another: each has his share
        share = max(1, hourly // len(lately.keys() | {uid}))
        if lately.total() >= hourly and lately[uid] >= share:
            return f"it ran {lately.total()} times in the last hour, and may {hourly} times"
        return ""

    def note(self, step: str, subject: str, now: float, cooldown: float, uid: int = -1) -> None:
        """Remember that this action runs now for this subject, a job of this user. `now` and `cooldown`: seconds."""
        longest = max(HOUR, cooldown)
        kept = [one for one in self.past if now - one.at < longest]
        self.past = (*kept, PastAction(step, subject, now, uid))[-MOST:]
