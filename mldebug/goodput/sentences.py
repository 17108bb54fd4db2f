"""What is found about slow ranks, in words. Pure."""

from mldebug.core.ranksets import fold_ranks
from mldebug.goodput.straggler import Excess, Slowness, SlowRank


def percent(share: float) -> str:
    """`7 %`."""
    return f"{100 * share:.0f} %"


def slow_words(found: Slowness, world_size: int) -> str:
    """`rank 3 slows the run down: the others wait for it 21 % of the time; it sleeps 20 % of the time in fetch (train.py:7)`; "" where nobody is slow."""
    if not found.ranks:
        return ""
    ranks = [one.rank for one in found.ranks]
    many = len(ranks) > 1
    who = f"rank{'s' if many else ''} {fold_ranks(ranks)} slow{'' if many else 's'} the run down"
    waits = f"the others wait for {'them' if many else 'it'} {percent(found.loss)} of the time"
    causes = list(dict.fromkeys(excess_words(one.excess) for one in found.ranks))
    cause = causes[0] if len(causes) == 1 else "each for a reason of its own"
    return (
        f"{who}: {waits}, {lost_words(found.loss, world_size)}; {'each' if many else 'it'} {cause}"
    )


def lost_words(loss: float, world_size: int) -> str:
    """`40 rank hours a day`: what a run of so many ranks loses."""
    return f"{24 * loss * world_size:.2g} rank hours a day" if loss else "nothing"


def excess_words(excess: Excess) -> str:
    """What a slow rank does more than the others, as a phrase that follows "it "."""
    more = f"{percent(excess.own)} of the time, the others {percent(excess.others)}"
    if excess.kind == "data":
        return f"waits for its DataLoader {more}"
    if excess.kind == "cpu":
        return f"is ready to run and gets no CPU {more}"
    if excess.kind == "sleep":
        return f"stands idle in {excess.place} {more}"
    if excess.kind == "work":
        return f"is in {excess.place} {more}"
    return "does what the others do, and takes longer for all of it: its work is larger, or its node is slower"


def rank_words(one: SlowRank) -> str:
    """The phrase for one slow rank that follows "rank 3 "."""
    return f"waits only {percent(one.waiting)} of the time, and {excess_words(one.excess)}"
