"""What an analysis of Flight Recorders says, in sentences."""

from collections.abc import Container, Iterable, Mapping, Sequence

from mldebug.capture.flight_recorder.votes import GATHERS, SCATTERS, TO_ALL, View, Vote
from mldebug.capture.flight_recorder.waits_for import Claim, where
from mldebug.capture.frames import site
from mldebug.core.model import Collective, Frame
from mldebug.core.ranksets import fold_ranks, shorten_ranks

NOTHING = "No dump holds a call of a process group whose members are known, so there is nothing to compare."
MAX_SIDES = 4
MAX_LINKS = 8


def group(view: View) -> str:
    """The name of a process group for a sentence: `dp`, or its number where the job gave it none."""
    return view.title.removeprefix("group ")


def ranks(numbers: Iterable[int]) -> str:
    """Ranks for a sentence: `rank 2`, `ranks 0-1,3`."""
    found = sorted(set(numbers))
    return f"rank{'s' if len(found) > 1 else ''} {shorten_ranks(fold_ranks(found), 60)}"


def _verb(numbers: Iterable[int], one: str, many: str) -> str:
    return one if len(set(numbers)) == 1 else many


def _wait(numbers: Iterable[int]) -> str:
    return f"{ranks(numbers)} {_verb(numbers, 'waits', 'wait')}"


def _at(frames: Sequence[Frame]) -> str:
    frame = site(frames)
    return f" at {frame.place}" if frame else ""


def _of(claim: Claim) -> str:
    return f"{claim.what} of {claim.view.title}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def waits(claim: Claim, broken: Container[int] = ()) -> str:
    """One evidence sentence: which ranks wait in which call, and for which ranks. `broken`: ranks whose dump cannot be used."""
    head = f"{_wait(claim.waiting)} in {_of(claim)}{_at(claim.frames)}"
    others = [rank for rank in claim.on if rank not in claim.waiting]
    if others:
        return f"{head}, for {ranks(others)}"
    if claim.ended_on_some:
        return f"{head}, which has ended on {ranks(claim.finished)}"
    if claim.held:
        return f"{head}; {ranks(claim.held)} behind an older call elsewhere"
    unread = [rank for rank in claim.absent if rank in broken]
    missing_ = [rank for rank in claim.absent if rank not in broken]
    head += f"; no dump of {ranks(missing_)}" if missing_ else ""
    return f"{head}; no usable dump of {ranks(unread)}" if unread else head


def missing(claim: Claim, found: tuple[int, ...]) -> str:
    """The sentences for: ranks `found` have not called a collective in which others wait, and what they called last."""
    head = f"{ranks(found)} {_verb(found, 'has', 'have')} not called"
    if claim.transfer:
        head = f"{ranks(found)} {_verb(found, 'has', 'have')} not met"
    text = f"{head} {_of(claim)}, in which {_wait(claim.waiting)}{_at(claim.frames)}"
    blind = (
        ("it may wait in a send or receive, which gloo does not record",)
        if _has_gloo((claim.view,)) and len(found) == 1
        else ()
    )
    return " ".join(map(_sentence, (text, *_last(claim, found), *blind, *_minority(claim))))


def _last(claim: Claim, found: tuple[int, ...]) -> Iterable[str]:
    """Of a single one."""
    if len(found) != 1 or claim.transfer:
        return
    call = where(found[0], claim)
    place = _at(call.frames) if call else ""
    if call is None:
        group_ = claim.view.by_rank.get(found[0])
        known = group_ is not None and group_.enqueued
        yield f"its last call there was number {known}" if known else "it has called nothing in this group yet"  # fmt: skip
    elif call.done:
        yield f"its last call there was {call.op} {call.sequence}{place}"
    else:
        yield f"it is still in {call.op} {call.sequence}{place}"


def _minority(claim: Claim) -> Iterable[str]:
    if claim.outnumbered:
        yield f"fewer wait than are missing, so {ranks(claim.waiting)} may have made a call too many"


def behind(claim: Claim, found: tuple[int, ...]) -> str:
    """The sentence for: ranks `found` have called the collective, but their GPUs have not come to it."""
    others = [rank for rank in claim.waiting if rank not in found]
    has = _verb(found, "has", "have")
    return _sentence(
        f"{ranks(found)} {has} called {_of(claim)}, but the GPU {has} not come to it; those of {ranks(others)}"
        f" {_verb(others, 'is', 'are')} in it{_at(claim.frames)}: look for what runs before it on the same stream"
    )


def unfinished(claim: Claim) -> str:
    """The sentence for: some ranks are still in a collective that most have finished."""
    return _sentence(
        f"{ranks(claim.waiting)} {_verb(claim.waiting, 'is', 'are')} still in {_of(claim)}{_at(claim.frames)},"
        f" which {ranks(claim.finished)} {_verb(claim.finished, 'has', 'have')} finished"
    )


def victim(claim: Claim, rank: int) -> str:
    """The sentence for: a rank is behind in a call that the others may leave early."""
    return _sentence(
        f"rank {rank} is still in an earlier call of {claim.view.title}, in which members leave at different times,"
        f" while {_wait(claim.waiting)} in {claim.what}; whether it is held up itself the dumps do not tell"
    )


def mismatch(result: Vote) -> str:
    """The sentence for: some ranks called another collective than most."""
    assert result.model is not None  # noqa: S101 - a vote with names has one
    alike = [rank for rank in result.calls if rank not in result.differs]
    odd = "; ".join(
        f"{ranks(some)} {_verb(some, 'calls', 'call')} {words}"
        for words, some in _sides(result.differs)
    )
    return _sentence(
        f"collective {result.sequence} of {result.view.title} is not the same for all: {odd}; {ranks(alike)}"
        f" {_verb(alike, 'calls', 'call')} {_call(result.model)}"
    )


def split(result: Vote) -> str:
    """The sentence for: ranks called different collectives, and none has a majority."""
    sides = "; ".join(f"{ranks(some)} {words}" for words, some in _sides(result.calls))
    return _sentence(
        f"collective {result.sequence} of {result.view.title} is not the same for all ({sides}), and no majority of its"
        f" {len(result.view.members)} members tells who is wrong"
    )


def _sides(calls: dict[int, Collective]) -> list[tuple[str, list[int]]]:
    """By what they called; the place is that of the first."""
    found: dict[tuple[object, ...], list[int]] = {}
    for rank, call in sorted(calls.items()):
        sizes = call.elements, call.outputs if call.op in TO_ALL | GATHERS | SCATTERS else None
        found.setdefault((call.op, *sizes, call.dtypes), []).append(rank)
    some = sorted(found.values())[:MAX_SIDES]
    return [(_call(calls[one[0]]), one) for one in some]


def _call(call: Collective) -> str:
    size = "" if call.elements is None else f" of {call.elements:,} elements"
    if call.op in TO_ALL | GATHERS | SCATTERS and call.outputs is not None:
        size += f" into {call.outputs:,}"
    dtype = f" of {call.dtypes}" if call.dtypes else ""
    return f"{call.op}{size}{dtype}{_at(call.frames)}"


def circle(links: list[tuple[int, Claim]], odd: tuple[int, ...]) -> str:
    """The sentence for: each rank waits for the next one, and the last for the first."""
    after = [rank for rank, _ in links[1:]] + [links[0][0]]
    lines = [
        f"rank {rank} waits in {_of(claim)}{_at(claim.frames)} for rank {other}"
        for (rank, claim), other in zip(links, after, strict=True)
    ]
    more = f"; and {len(lines) - MAX_LINKS} more" if len(lines) > MAX_LINKS else ""
    text = f"ranks wait for each other in a circle: {'; '.join(lines[:MAX_LINKS])}{more}"
    order = f"{ranks(odd)} {_verb(odd, 'takes', 'take')} the groups in another order than most"
    return _sentence(
        f"{text}; {order}" if odd else f"{text}; who left the common order is not told"
    )


def absent(claim: Claim, sure: bool) -> str:
    """The sentence for: ranks wait for others whose dumps are missing. `sure`: the ranks without a dump are most likely
    those that the others wait for.
    """
    them = _verb(claim.absent, "it", "they")
    word = f"{them} {_verb(claim.absent, 'is', 'are')} most likely what they wait for"
    doubt = "whom they wait for the dumps that are there do not tell"
    return _sentence(
        f"{_wait(claim.waiting)} in {_of(claim)}{_at(claim.frames)}; there is no dump of {ranks(claim.absent)}:"
        f" {word if sure else doubt}, so look at the process{_verb(claim.absent, '', 'es')}"
    )


def forgotten(claim: Claim) -> str:
    """The sentence for: the call is older than what the recorders keep."""
    return _sentence(
        f"{_wait(claim.waiting)} in {_of(claim)}{_at(claim.frames)}; the {_verb(claim.forgot, 'dump', 'dumps')} of"
        f" {ranks(claim.forgot)} {_verb(claim.forgot, 'holds', 'hold')} no call of this group any more:"
        " a larger TORCH_FR_BUFFER_SIZE would tell"
    )


def unplaced(claim: Claim, found: Sequence[int]) -> str:
    """The sentence for: the dumps of ranks `found` do not say which calls these ranks have made."""
    return _sentence(
        f"{_wait(claim.waiting)} in {_of(claim)}{_at(claim.frames)}; the {_verb(found, 'dump', 'dumps')} of {ranks(found)}"
        f" {_verb(found, 'holds', 'hold')} calls without a group, a number or a state, so that it does not tell what"
        f" {_verb(found, 'it has', 'they have')} called"
    )


def unreadable(claim: Claim, found: Mapping[int, str]) -> str:
    """The sentence for: ranks `found` have dumps that cannot be used, with the reason of the first."""
    first = min(found)
    of = f" (of rank {first}: {found[first]})" if len(found) > 1 else f" ({found[first]})"
    return _sentence(
        f"{_wait(claim.waiting)} in {_of(claim)}{_at(claim.frames)}; the {_verb(found, 'dump', 'dumps')} of {ranks(found)}"
        f" {_verb(found, 'is', 'are')} there and cannot be used{of}: what {_verb(found, 'it has', 'they have')} called is not known"
    )


def frozen(claim: Claim) -> str:
    """The sentence for: all ranks of the group have called the collective (the one in `claim`), and it does not end."""
    who = ranks(claim.waiting)
    if set(claim.waiting) == claim.members and len(claim.members) > 2:
        who = f"all {len(claim.members)} members"
    return _sentence(
        f"{who} {_verb(claim.waiting, 'is', 'are')} in {_of(claim)}{_at(claim.frames)}, all have called it alike,"
        " and it does not end: look at the GPUs and the network"
    )


def unclear(claim: Claim) -> str:
    """The sentence for: ranks wait, and nothing shows for whom."""
    return _sentence(
        f"{_wait(claim.waiting)} in {_of(claim)}{_at(claim.frames)}; whom they wait for in the end the dumps do not tell"
    )


def quiet_but(absent_: tuple[int, ...], count: int, broken: Container[int] = ()) -> str:
    """The sentence for: nobody waits, but the dumps of ranks `absent_` are missing, or `broken`. `count`: number of dumps."""
    missing_ = [rank for rank in absent_ if rank not in broken]
    unread = [rank for rank in absent_ if rank in broken]
    parts = [f"there is none of {ranks(missing_)}"] if missing_ else []
    parts += [f"that of {ranks(unread)} cannot be used"] if unread else []
    return _sentence(f"nobody waits in a collective in {_dumps(count)}; {', and '.join(parts)}")


def healthy(views: Sequence[View], count: int) -> str:
    """The sentence for: nobody waits, and all calls are done. `count`: number of dumps."""
    groups = "1 process group" if len(views) == 1 else f"{len(views)} process groups"
    blind = "; sends and receives of gloo are in no dump" if _has_gloo(views) else ""
    text = f"nobody waits in a collective: {_dumps(count)}, {groups}, all calls are done"
    return _sentence(text + blind)


def _has_gloo(views: Iterable[View]) -> bool:
    return any(view.backend == "gloo" for view in views)


def _dumps(count: int) -> str:
    return "1 dump" if count == 1 else f"{count} dumps"
