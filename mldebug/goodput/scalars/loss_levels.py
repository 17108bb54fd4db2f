"""The levels between which the loss of a run goes to and fro: tasks, or kinds of data, that take turns, each with a loss of its own. Pure.

A level has a baseline of its own, so that what is usual on one hides no spike on another. It is known where

- the losses of a window lie in groups with clear gaps between them, and come from one to the other and back, or
- the loss left for it, stayed there as steadily as it does elsewhere, and came back: twice, or for long, or in warm-up.
"""

from itertools import pairwise

import msgspec

from mldebug.goodput.scalars.model import usual

CLEAR = 10.0  # spreads from the middle of a level, up to which a loss is one of it
STEADY = 3.0  # spreads of another level, that those of one may have at most
FEWEST = 8  # losses of a level
GAP = 6.0  # spreads between two groups of losses
LEAP = 0.15  # of the higher one, between them at least
MOST_LEVELS = 6  # beside the one of now
FORGOTTEN = 4096  # losses after which a level is no longer known that has not come again
SMALLEST = 0.01  # of the middle: a spread below it is none


class LossLevel(msgspec.Struct, kw_only=True):
    """The losses of one level, as far as they are judged. `left_at`: number of the loss at which it was left; `stays`: how often the loss has come
    and gone; `block`, `blocks`: the last of its losses, and the medians of those before.
    """

    losses: list[float]
    block: list[float] = []
    blocks: list[float] = []
    left_at: int = 0
    stays: int = 1

    @property
    def middle(self) -> float:
        """The median of the losses of this level."""
        return usual(self.losses)[0]

    @property
    def reach(self) -> float:
        """How far a loss of this level may be from its middle."""
        return CLEAR * spread(self.losses)


def spread(losses: list[float]) -> float:
    """The usual distance of losses from their median, which is never taken for smaller than `SMALLEST` of that."""
    middle, scatter = usual(losses)
    return max(scatter, SMALLEST * abs(middle), 1e-12)


def is_steady(losses: list[float], like: list[float]) -> bool:
    """Whether losses stay where they are, as steadily as those of another level (`like`) do: a spike that decays does not."""
    if len(losses) < FEWEST:
        return False
    half = len(losses) // 2
    limit = STEADY * spread(like)
    drift = abs(usual(losses[:half])[0] - usual(losses[half:])[0])
    return spread(losses) <= limit and drift <= limit


def level_of(loss: float, levels: list[LossLevel], now: float) -> LossLevel | None:
    """The level to which a loss belongs if not to the present one (its middle: `now`): the nearest that reaches it, of higher ones only those
    that came and went before; else the next one above. None: there is none.
    """
    known = [one for one in levels if one.stays > 1 or one.middle < now]
    reached = [one for one in known if abs(loss - one.middle) <= one.reach]
    if reached:
        return min(reached, key=lambda one: abs(loss - one.middle))
    above = [one for one in known if loss < one.middle] if loss > now else []
    return min(above, key=lambda one: one.middle, default=None)


def groups(losses: list[float]) -> list[list[float]]:
    """The losses in groups with clear gaps between them; one group where there are none."""
    order = sorted(losses)
    gaps = sorted(pairwise(order), key=lambda two: two[0] - two[1])[:MOST_LEVELS]
    for low, high in gaps:
        below = [one for one in losses if one <= low]
        over = [one for one in losses if one >= high]
        if min(len(below), len(over)) < FEWEST:
            continue
        if high - low > max(GAP * max(map(spread, (below, over))), LEAP * abs(high)):
            return [*groups(below), *groups(over)]
    return [losses]


def take_turns(losses: list[float], parts: list[list[float]]) -> bool:
    """Whether losses come from one of their groups to another, and back."""
    of_loss = [next(number for number, part in enumerate(parts) if one in part) for one in losses]
    changes = [two for two in pairwise(of_loss) if two[0] != two[1]]
    return len(changes) > len(parts)


def keep(levels: list[LossLevel], count: int) -> list[LossLevel]:
    """The levels that are still known after so many losses: those that came last, each once."""
    kept: list[LossLevel] = []
    for level in sorted(levels, key=lambda one: -one.left_at):
        if count - level.left_at > FORGOTTEN or len(kept) == MOST_LEVELS:
            break
        same = next((one for one in kept if _are_one(one, level)), None)
        if same is None:
            kept.append(level)
        else:
            same.stays = max(same.stays, level.stays)
    return kept


def _are_one(first: LossLevel, second: LossLevel) -> bool:
    return abs(first.middle - second.middle) <= min(first.reach, second.reach)
