"""Shortens an announcement that is larger than other agents accept: drops samples of stacks, then the GPUs, then long node lists of runs,
then relayed nodes, then runs.

In each step the user who takes up most room loses first, so that one user's many jobs do not crowd out another's. Pure.
"""

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from mldebug.cluster.messages import MAX_MESSAGE, MAX_RUNS, Announcement, Relayed, RunNews
from mldebug.cluster.run_identity import user_of
from mldebug.core.model import Gap

ROOM = MAX_MESSAGE * 3 // 4  # bytes
GAP = 250  # bytes that a gap takes in place of a list
LIST = "the scheduler's list of the nodes of the job"


def fitting(announcement: Announcement) -> Announcement:
    """The announcement, shortened where it has too many runs or bytes for other agents.

    First samples of stacks are dropped, then the GPUs, then the longest node lists of runs (a gap says so), then nodes whose announcements
    this one relays, then runs.
    """
    announcement = msgspec.structs.replace(
        announcement, runs=_fewest(announcement.runs, len(announcement.runs) - MAX_RUNS, _one)
    )
    over = _size(announcement) - ROOM
    if over <= 0:
        return announcement
    announcement = _without_samples(announcement)
    over = _size(announcement) - ROOM
    if over <= 0:
        return announcement
    bare = tuple(msgspec.structs.replace(one, gpus=()) for one in announcement.relayed)
    announcement = msgspec.structs.replace(announcement, gpus=(), relayed=bare)
    over = _size(announcement) - ROOM
    if over <= 0:
        return announcement
    announcement = _without_lists(announcement, over)
    while announcement.relayed and _size(announcement) > ROOM:
        announcement = msgspec.structs.replace(announcement, relayed=announcement.relayed[:-1])
    return msgspec.structs.replace(
        announcement, runs=_fewest(announcement.runs, _size(announcement) - ROOM, _size)
    )


def _size(what: object) -> int:
    return len(msgspec.json.encode(what))


def _one(_: object) -> int:
    return 1


def _list(news: RunNews) -> int:
    return max(0, len(news.node_list.encode()) - GAP)


def _without_samples(announcement: Announcement) -> Announcement:
    """Without how ranks wait: nobody of these runs is compared then."""

    def cut(some: tuple[RunNews, ...]) -> tuple[RunNews, ...]:
        return tuple(msgspec.structs.replace(one, samples=None) for one in some)

    relayed = tuple(msgspec.structs.replace(r, runs=cut(r.runs)) for r in announcement.relayed)
    return msgspec.structs.replace(announcement, runs=cut(announcement.runs), relayed=relayed)


def _without_lists(announcement: Announcement, over: int) -> Announcement:
    """Of all runs, those of other nodes among them, so many bytes less."""
    runs = [*announcement.runs, *(news for one in announcement.relayed for news in one.runs)]
    kept = {id(news) for news in _fewest(runs, over, _list)}

    def cut(some: tuple[RunNews, ...]) -> tuple[RunNews, ...]:
        return tuple(one if id(one) in kept else _bare(one) for one in some)

    def spoken_for(one: Relayed) -> Relayed:
        return msgspec.structs.replace(one, runs=cut(one.runs))

    relayed = tuple(map(spoken_for, announcement.relayed))
    return msgspec.structs.replace(announcement, runs=cut(announcement.runs), relayed=relayed)


def _bare(news: RunNews) -> RunNews:
    reason = f"it was left out: an announcement of a node has at most {ROOM >> 10} KiB"
    return msgspec.structs.replace(news, node_list="", gaps=(Gap(what=LIST, reason=reason),))


def _fewest(runs: Iterable[RunNews], over: int, weight: Callable[[RunNews], int]) -> tuple[RunNews, ...]:  # fmt: skip
    """In their order, without as many of the largest ones, of the owner with most of them, as make up `over`."""
    kept = list(runs)
    weights = list(map(weight, kept))
    had: Counter[str] = Counter()
    heaviest: dict[str, list[int]] = {}  # user -> places of his runs, the heaviest last
    for at in sorted((at for at, one in enumerate(weights) if one), key=weights.__getitem__):
        user = user_of(kept[at].key)
        heaviest.setdefault(user, []).append(at)
        had[user] += weights[at]
    gone = set()
    while over > 0 and heaviest:
        user = max(heaviest, key=had.__getitem__)
        gone.add(at := heaviest[user].pop())
        over -= weights[at]
        had[user] -= weights[at]
        if not heaviest[user]:
            del heaviest[user]
    return tuple(one for at, one in enumerate(kept) if at not in gone)
