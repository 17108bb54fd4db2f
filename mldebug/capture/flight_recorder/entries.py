"""The calls that a Flight Recorder holds, in PyTorch's spelling, and what a rank's record keeps of them.

A job may have written anything into them: what has not the expected shape is refused with the reason, names are cleaned,
and all that is kept is bounded. Missing times are 0 or null, as PyTorch spells them. Counts come from the calls alone: those
of `pg_status` include sends and receives on gloo, so that they differ among ranks that are in step.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from mldebug.capture.flight_recorder.raw_calls import RawCall, RawFrame, one_each
from mldebug.capture.stacks.form import named_frame
from mldebug.core.model import (
    Collective,
    FlightGroup,
    FlightRecord,
    Frame,
    Gap,
    GroupCount,
    NodeCapture,
    PairCount,
    Transfer,
)
from mldebug.core.ranksets import unfold
from mldebug.core.redact import clean

MAX_GROUPS = 64
MAX_CALLS = 8  # of one group
MAX_SENDS = 8
PAIR = 2  # members of a group whose sends and receives both number alike
MAX_NAME = 64
MAX_PATH = 200
MAX_RECORD = (
    4 << 20
)  # bytes of one rank's; 8 calls of each of 64 groups with 32 frames of 150 characters have 3.4 MB
MAX_TOGETHER = 64 << 20  # bytes of all ranks of one capture
ENTRY, FRAME = 160, 70  # bytes that a call and a frame take beside their texts
_OP = re.compile(r"[\w.-]{1,40}", re.ASCII)
_TRANSFER = re.compile(r"(send|recv) (\d{1,6})(?:->|<-)(\d{1,6})", re.ASCII)


class GroupInfo(NamedTuple):
    """What a dump says of a process group, without its calls: name, description, members, backend."""

    description: str = ""
    members: str = ""  # global ranks, folded
    calls: int = -1  # number of its last call; -1: not known
    backend: str = ""  # that counts them; "": not known

    def is_unused(self, backend: str) -> bool:
        """Whether the group has made no call with this backend, as far as its count tells (one that names no backend counts for
        all). Entries under its name then belong to an older group of this name.
        """
        return self.calls == 0 and self.backend in ("", backend)


def make_record(
    version: str,
    dumps: Sequence[Sequence[RawCall]],
    infos: Mapping[str, GroupInfo],
    *,
    keep: int = MAX_CALLS,
    silent: tuple[str, ...] = (),
    counts: tuple[GroupCount, ...] = (),
) -> FlightRecord:
    """The Flight Recorder of one rank, joined from the dumps of its backends, with at most `keep` calls of each process group."""
    current = [_current(entries) for entries in dumps]
    groups = [group for entries in current for group in _groups(_placed(entries), infos, keep)]
    sends = [call for entries in current for call in entries if call.is_p2p and not call.done]
    return FlightRecord(
        version=clean(version)[:MAX_NAME],
        groups=tuple([*_unused(infos), *groups][-MAX_GROUPS:]),
        sends=tuple(map(_send, sends[:MAX_SENDS])),
        transfers=tuple(_at_once(_transfer(send, infos) for send in sends[:MAX_SENDS])),
        pairs=tuple(_pairs([call for entries in current for call in entries], infos)),
        silent=silent,
        counts=counts,
        unplaced=sum(not call.placed for entries in current for call in entries),
        entries=sum(map(len, current)),
    )


def _placed(entries: list[RawCall]) -> list[RawCall]:
    """Without groups that have a call of which is not known which it is: the last known one would pass for the last of all."""
    lost = {call.process_group[0] for call in entries if not call.placed}
    if not lost:
        return entries
    return [] if "" in lost else [one for one in entries if one.process_group[0] not in lost]


def _pairs(calls: Iterable[RawCall], infos: Mapping[str, GroupInfo]) -> Iterable[PairCount]:
    """Of each group of two, the last send or receive that is done."""
    last: dict[str, int] = {}
    for call in calls:
        name = call.process_group[0]
        if call.is_p2p and call.done and name in infos and _size(infos[name].members) == PAIR:
            last[name] = max(call.p2p_seq_id, last.get(name, 0))
    for name, done in list(last.items())[-MAX_GROUPS:]:
        yield PairCount(group=short(name), members=infos[name].members, done=done)


def group_counts(status: object, entries: Sequence[RawCall]) -> tuple[GroupCount, ...]:
    """How far the rank is in each process group, by the `pg_status` of its dump. Empty where the dump also holds finished calls,
    or no group has finished one.
    """
    if not isinstance(status, dict) or any(call.done for call in entries):
        return ()
    names = {call.pg_id: call.process_group[0] for call in entries}
    found = []
    for number, one in list(status.items())[:MAX_GROUPS]:
        enqueued, completed = (
            _count(one, f"last_{what}_collective") for what in ("enqueued", "completed")
        )
        if type(number) is str and number.isdecimal() and len(number) < 10 and enqueued > 0:
            name = short(names.get(int(number), ""))
            found.append(GroupCount(number=int(number), name=name, enqueued=enqueued, completed=completed))  # fmt: skip
    return tuple(found) if any(one.completed > 0 for one in found) else ()


def _count(status: object, name: str) -> int:
    """A number, which JSON spells as text; 0 for none yet."""
    value = status.get(name) if isinstance(status, dict) else None
    if isinstance(value, str) and len(value) < 16 and value.isascii() and value.isdigit():
        value = int(value)
    return value if type(value) is int and 0 < value < 2**53 else 0


def _current(entries: Sequence[RawCall]) -> list[RawCall]:
    """Without the calls of groups that were destroyed and made anew: those have the name, and count from 1 again."""
    newest: dict[tuple[str, str], int] = {}
    owners = [call.owner for call in entries]
    for owner, one in zip(owners, entries, strict=True):
        newest[owner] = max(newest.get(owner, -1), one.pg_id)
    pairs = zip(owners, entries, strict=True)
    return [one for owner, one in pairs if one.pg_id == newest[owner]]


def _unused(infos: Mapping[str, GroupInfo]) -> Iterable[FlightGroup]:
    """Every group that has called nothing yet: where the others wait in its first call, that is evidence.

    Only where it is known which backend has made no call: of a group with two the other may have made many.
    """
    for name, group in infos.items():
        if group.calls == 0 and group.backend:
            yield FlightGroup(
                name=short(name),
                backend=short(group.backend),
                description=short(group.description),
                members=group.members,
            )


def _groups(
    entries: list[RawCall], infos: Mapping[str, GroupInfo], keep: int
) -> Iterable[FlightGroup]:
    """Every group that has called something since it was made, in the order of its last call."""
    by_id: dict[tuple[int, tuple[str, str]], list[RawCall]] = {}
    for entry in entries:
        name, backend = entry.owner
        unused = name in infos and infos[name].is_unused(backend)
        if name and not unused and not entry.is_p2p and entry.collective_seq_id > 0:
            by_id.setdefault((entry.pg_id, entry.owner), []).append(entry)
    for _, calls in sorted(by_id.items(), key=lambda item: item[1][-1].record_id):
        yield _group(calls, infos, keep)


def _group(calls: list[RawCall], infos: Mapping[str, GroupInfo], keep: int) -> FlightGroup:
    last = calls[-1]
    name, description = last.process_group
    info = infos.get(name, GroupInfo(description))
    newest = max(call.collective_seq_id for call in calls)
    oldest = min((call.collective_seq_id for call in calls if not call.done), default=newest + 1)
    return FlightGroup(
        name=short(name),
        backend=short(last.owner[1]),
        description=short(info.description),
        members=info.members,
        enqueued=newest,
        completed=oldest - 1,
        calls=_kept([_call(call) for call in one_each(calls, _size(info.members))], keep // 2),
    )


@lru_cache(maxsize=MAX_GROUPS)
def _size(members: str) -> int:
    return len(unfold(members)) if members else 0


def _call(entry: RawCall) -> Collective:
    op, elements, dtypes = _what(entry.profiling_name, entry.input_sizes, entry.input_dtypes)
    return Collective(
        op=op,
        sequence=entry.collective_seq_id,
        elements=elements,
        outputs=_elements(entry.output_sizes),
        dtypes=dtypes,
        done=entry.done,
        created_at=_bounded(entry.time_created_ns, 1e9),
        timeout=_bounded(entry.timeout_ms, 1e3),
        state=short(entry.state or ""),
        frames=_frames(entry.frames),
    )


@lru_cache(maxsize=4096)
def _what(
    name: str, sizes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
) -> tuple[str, int | None, str]:
    """Operation, elements and types of a call."""
    op = name.rpartition(":")[2].partition(" ")[0]
    shown = op.lstrip("_") if _OP.fullmatch(op) else "collective"
    return shown, _elements(sizes), short(",".join(dict.fromkeys(dtypes[:8])))


def _kept(calls: list[Collective], half: int) -> tuple[Collective, ...]:
    """The oldest that are pending and the newest."""
    pending = [call for call in calls[:-half] if not call.done]
    return (*pending[:half], *calls[-half:])


def _send(entry: RawCall) -> str:
    """`recv 3<-2`, of NCCL; the recorder of gloo holds none."""
    return short(entry.profiling_name.rpartition(":")[2])


def _transfer(entry: RawCall, infos: Mapping[str, GroupInfo]) -> Transfer | None:
    """`recv 3<-2` and `send 2->3`: the caller stands first, both by their numbers in the group."""
    match = _TRANSFER.fullmatch(_send(entry))
    if match is None:
        return None
    name, description = entry.process_group
    info = infos.get(name, GroupInfo(description))
    return Transfer(
        op=match[1],
        peer=int(match[3]),
        group=short(name),
        description=short(info.description),
        members=info.members,
        sequence=max(0, entry.p2p_seq_id),
        created_at=_bounded(entry.time_created_ns, 1e9),
        frames=_frames(entry.frames),
    )


def _at_once(found: Iterable[Transfer | None]) -> Iterable[Transfer]:
    """The parts of a batch have one number and begin together, when the first of them was called."""
    begun: dict[tuple[str, str, int], float] = {}
    for one in found:
        if one is not None:
            key = one.group, one.members, one.sequence
            yield msgspec.structs.replace(one, created_at=begun.setdefault(key, one.created_at))


@lru_cache(maxsize=4096)
def _frames(frames: tuple[RawFrame, ...]) -> tuple[Frame, ...]:
    return tuple(_frame(one.filename, one.line, one.name) for one in frames)


@lru_cache(maxsize=4096)
def _frame(filename: str, line: int, name: str) -> Frame:
    return named_frame(clean(filename, MAX_PATH), str(max(0, line)), clean(name, MAX_PATH))


def _elements(sizes: tuple[tuple[int, ...], ...]) -> int | None:
    total = 0
    for size in sizes[:4096]:
        product = 1
        for extent in size[:32]:
            product = min(product * extent, 2**53)
        total = min(total + product, 2**53)
    return total if sizes else None


def _bounded(value: int | None, unit: float) -> float:
    return min(value, 2**62) / unit if value is not None and value > 0 else 0.0


@lru_cache(maxsize=4096)
def short(text: str) -> str:
    """A group's name, cleaned and cut for display."""
    return clean(text).strip()[:MAX_NAME]


# --- how much it is ---------------------------------------------------------------------------------
# A dump names one stack, or the members of one group, once, and refers to it from many calls; evidence writes them out each time. So a
# small file could become a hundred times its size in a report, in the agent's memory and on the way to other nodes.


def evidence_size(record: FlightRecord) -> int:
    """About how many bytes this record takes as JSON, which is how it is stored as evidence."""
    calls = [call for group in record.groups for call in group.calls]
    stacks = (*(call.frames for call in calls), *(one.frames for one in record.transfers))
    members = [
        *(one.members for one in record.groups),
        *(one.members for one in record.transfers),
        *(one.members for one in record.pairs),
        *(one.members for one in record.timed),
    ]
    timed = sum(len(one.calls) for one in record.timed)
    return (
        sum(map(len, members)) + ENTRY * (len(calls) + len(members) + timed) + _frames_size(stacks)
    )


def _frames_size(stacks: Iterable[tuple[Frame, ...]]) -> int:
    known: dict[int, int] = {}  # most stacks are one and the same
    total = 0
    for stack in stacks:
        if id(stack) not in known:
            known[id(stack)] = sum(
                FRAME + len(one.file) + len(one.function) + len(one.path) for one in stack
            )
        total += known[id(stack)]
    return total


def checked(record: FlightRecord, most: int = MAX_RECORD) -> FlightRecord:
    """The record. Raises ValueError where it would take more than `most` bytes as evidence."""
    if (size := evidence_size(record)) > most:
        raise ValueError(f"it would take {size:,} bytes of evidence, more than {most:,}")
    return record


def within(taken: NodeCapture, most: int = MAX_TOGETHER) -> NodeCapture:
    """The capture with Flight Recorders of at most `most` bytes in all: the largest are left out, each of which is a gap."""
    sizes = {one.identity.rank: evidence_size(one.flight) for one in taken.ranks if one.flight}
    left_out: set[int] = set()
    total = sum(sizes.values())
    for rank in sorted(sizes, key=lambda one: -sizes[one]):
        if total <= most:
            break
        left_out.add(rank)
        total -= sizes[rank]
    if not left_out:
        return taken
    why = f"all of them would take more than {most:,} bytes of evidence"
    gaps = (Gap(what="Flight Recorder", reason=why, rank=rank) for rank in sorted(left_out))
    ranks = (msgspec.structs.replace(one, flight=None) if one.identity.rank in left_out else one for one in taken.ranks)  # fmt: skip
    return msgspec.structs.replace(taken, ranks=tuple(ranks), gaps=(*taken.gaps, *gaps))
