"""The owner of a job, and how work is shared between owners: in turns, so that one with many things delays one with few by a
single turn.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from mldebug.core.model import Job

T = TypeVar("T")

Owner = tuple[int, str]
"""User id, and the container: those of root in two containers are two owners. All uids of a user's own namespaces are his."""


def owner_of(job: Job) -> Owner:
    """The owner of a job: user id and container of its first rank. What the node limits is shared out between owners."""
    first = next(iter(job.ranks), None)
    if first is None:
        return job.uid, ""
    return job.uid if first.owner is None else first.owner, first.container


def in_turns(things: Iterable[T], owner_key: Callable[[T], Hashable]) -> list[T]:
    """The things in a fair order: the first of each owner, then the second of each, and so on; within a turn the owner with the
    fewest things comes first. `owner_key`: gives a thing's owner.
    """
    ordered = list(things)
    all_of = Counter(map(owner_key, ordered))
    had: Counter[Hashable] = Counter()
    turns = []
    for number, one in enumerate(ordered):
        who = owner_key(one)
        turns.append((had[who], all_of[who], number))
        had[who] += 1
    return [ordered[number] for _, _, number in sorted(turns)]
