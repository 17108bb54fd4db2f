"""Limits how often a configured action ("step") runs: not again for one job within its cool-down, and so many times an hour.

Pure.
"""

from collections import Counter

import msgspec

from mldebug.jobs.owners import Owner

HOUR = 3600.0
MOST = 2000  # runs that are remembered
NODE: Owner = (-1, "")  # of what concerns nobody's job


class PastAction(msgspec.Struct, frozen=True, array_like=True):
    """One run of an action at unix time `at`.

    `subject`: the job's run, or the event where it concerns no run.
    """

    step: str
    subject: str
    at: float
    uid: int = -1  # whose job it concerned; -1: the node's
    container: str = ""  # with the user its owner

    @property
    def owner(self) -> Owner:
        """Whose share of the hour it took."""
        return self.uid, self.container


class ActionRateLimits:
    """Remembers when actions ran, and says whether one may run again.

    `past` is to be stored, so that it survives a restart.
    """

    def __init__(self, past: tuple[PastAction, ...] = ()) -> None:
        self.past = past

    def refusal(
        self, step: str, subject: str, now: float, cooldown: float, hourly: int, owner: Owner = NODE
    ) -> str:
        """Why the action `step` must not run now for `subject`; "" where it may.

        `cooldown`: seconds between two runs for one subject. `hourly`: runs in an hour; an owner with few of them still gets
        an equal share when others have used them up. Past runs that seem to lie in the future count as now. `now`: unix
        time.
        """
        mine = [one for one in self.past if one.step == step]
        ages = [max(0.0, now - one.at) for one in mine if one.subject == subject]
        if ages and min(ages) < cooldown:
            return f"it ran {min(ages):.0f} s ago for the same, and its cool-down is {cooldown:g} s"
        lately = Counter(one.owner for one in mine if now - one.at < HOUR)
        # what one owner's jobs have used up is not missing to another: each has his share
        share = max(1, hourly // len(lately.keys() | {owner}))
        if lately.total() >= hourly and lately[owner] >= share:
            return f"it ran {lately.total()} times in the last hour, and may {hourly} times"
        return ""

    def note(
        self, step: str, subject: str, now: float, cooldown: float, owner: Owner = NODE
    ) -> None:
        """Remember that the action `step` runs at unix time `now` for this subject (a job, for example) of this owner.

        It is remembered for `cooldown` seconds, and for at least an hour.
        """
        longest = max(HOUR, cooldown)
        kept = [one for one in self.past if now - one.at < longest]
        self.past = (*kept, PastAction(step, subject, now, *owner))[-MOST:]
