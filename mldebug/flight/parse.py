"""One rank's Flight Recorder, read from the file that its hook writes (layout: `mldebug_training.flight`).

A job may have written anything into it: what has not the expected shape is refused with the reason, names are cleaned, and
all that is kept is bounded. Missing times are 0 or null, as PyTorch spells them. Counts come from the calls alone: those of
`pg_status` include sends and receives on gloo, so that they differ among ranks that are in step.
"""

import re
from collections.abc import Iterable
from typing import Annotated

import msgspec

from mldebug.folding import MAX_RANK, fold_ranks
from mldebug.model import Collective, FlightGroup, FlightRecord
from mldebug.redact import clean

MAX_BYTES = 1 << 20
MAX_GROUPS = 64
MAX_CALLS = 8  # of one group
MAX_SENDS = 8
MAX_NAME = 64
_OP = re.compile(r"[\w.-]{1,40}", re.ASCII)

Whole = Annotated[int, msgspec.Meta(ge=-1, le=2**53)]
Name = Annotated[str, msgspec.Meta(max_length=400)]
Rank = Annotated[int, msgspec.Meta(ge=0, le=MAX_RANK)]
Size = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _Entry(msgspec.Struct, frozen=True):
    process_group: tuple[Name, Name] = ("", "")
    pg_id: Whole = -1
    record_id: Whole = -1
    collective_seq_id: Whole = 0
    is_p2p: bool = False
    profiling_name: Name = ""
    input_sizes: tuple[tuple[Size, ...], ...] = ()
    input_dtypes: tuple[Name, ...] = ()
    state: Name | None = None
    retired: bool = False
    time_created_ns: int | None = None
    timeout_ms: int | None = None

    @property
    def done(self) -> bool:
        return self.retired or self.state == "completed"

    @property
    def owner(self) -> tuple[str, str]:
        """Name and backend of its group."""
        return self.process_group[0], self.profiling_name.partition(":")[0]


class _Dump(msgspec.Struct, frozen=True):
    version: Name = ""
    entries: tuple[_Entry, ...] = ()


class _Group(msgspec.Struct, frozen=True):
    desc: Name = ""
    ranks: tuple[Rank, ...] = ()
    calls: Whole = -1  # number of its last call; -1: not told
    backend: Name = ""  # that counts them; "": not told

    def is_unused(self, backend: str) -> bool:
        """Has it called nothing by this backend? What a recorder holds of its name is then of an older group."""
        return self.calls == 0 and self.backend in ("", backend)


class _File(msgspec.Struct, frozen=True):
    layout: int
    groups: dict[Name, _Group] = {}
    dumps: tuple[_Dump, ...] = ()


def parse_file(data: bytes) -> FlightRecord:
    """Take the file apart. Raises ValueError with the reason."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has {len(data)} bytes, more than {MAX_BYTES}")
    try:
        told = msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"it is not what it should be ({clean(str(error))[:200]})") from None
    if told.layout != 1:
        raise ValueError(f"it has layout {told.layout} and not 1")
    return _record(told.dumps, told.groups)


def _record(dumps: tuple[_Dump, ...], told: dict[str, _Group]) -> FlightRecord:
    current = [_current(dump) for dump in dumps]
    groups = list(_unused(told))
    groups += [group for entries in current for group in _groups(entries, told)]
    sends = [_send(one) for entries in current for one in entries if one.is_p2p and not one.done]
    versions = [dump.version for dump in dumps if dump.entries] or [""]
    return FlightRecord(
        version=clean(versions[0])[:MAX_NAME],
        groups=tuple(groups[-MAX_GROUPS:]),
        sends=tuple(sends[:MAX_SENDS]),
        silent=_silent(dumps, told),
    )


def _silent(dumps: tuple[_Dump, ...], told: dict[str, _Group]) -> tuple[str, ...]:
    """Whose recorder is switched off, or is none that the hook reaches."""
    heard = {one.owner[1] for dump in dumps for one in dump.entries}
    counted = {_name(one.backend) for one in told.values() if one.calls > 0}
    return tuple(sorted(counted - heard - {""}))[:MAX_GROUPS]


def _current(dump: _Dump) -> list[_Entry]:
    """Without the calls of groups that were destroyed and made anew: those have the name, and count from 1 again."""
    newest: dict[tuple[str, str], int] = {}
    for one in dump.entries:
        newest[one.owner] = max(newest.get(one.owner, -1), one.pg_id)
    return [one for one in dump.entries if one.pg_id == newest[one.owner]]


def _unused(told: dict[str, _Group]) -> Iterable[FlightGroup]:
    """Every group that has called nothing yet: where the others wait in its first call, that is evidence.

    Only where it is known which backend has made no call: of a group with two the other may have made many.
    """
    for name, group in told.items():
        if group.calls == 0 and group.backend:
            yield FlightGroup(
                name=_name(name),
                backend=_name(group.backend),
                description=_name(group.desc),
                members=fold_ranks(group.ranks),
            )


def _groups(entries: list[_Entry], told: dict[str, _Group]) -> Iterable[FlightGroup]:
    """Every group that has called something since it was made, in the order of its last call."""
    by_id: dict[int, list[_Entry]] = {}
    for entry in entries:
        name, backend = entry.owner
        unused = name in told and told[name].is_unused(backend)
        if name and not unused and not entry.is_p2p and entry.collective_seq_id > 0:
            by_id.setdefault(entry.pg_id, []).append(entry)
    for _, calls in sorted(by_id.items(), key=lambda item: item[1][-1].record_id):
        yield _group(calls, told)


def _group(calls: list[_Entry], told: dict[str, _Group]) -> FlightGroup:
    last = calls[-1]
    name, description = last.process_group
    newest = max(one.collective_seq_id for one in calls)
    oldest = min((one.collective_seq_id for one in calls if not one.done), default=newest + 1)
    return FlightGroup(
        name=_name(name),
        backend=_name(last.owner[1]),
        description=_name(told[name].desc if name in told else description),
        members=fold_ranks(told[name].ranks) if name in told else "",
        enqueued=newest,
        completed=oldest - 1,
        calls=_kept([_call(one) for one in calls]),
    )


def _call(entry: _Entry) -> Collective:
    op = entry.profiling_name.rpartition(":")[2].partition(" ")[0]
    return Collective(
        op=op.lstrip("_") if _OP.fullmatch(op) else "collective",
        sequence=entry.collective_seq_id,
        elements=_elements(entry.input_sizes),
        dtypes=_name(",".join(dict.fromkeys(entry.input_dtypes[:8]))),
        done=entry.done,
        created_at=_bounded(entry.time_created_ns, 1e9),
        timeout=_bounded(entry.timeout_ms, 1e3),
    )


def _kept(calls: list[Collective]) -> tuple[Collective, ...]:
    """The oldest that are pending and the newest."""
    half = MAX_CALLS // 2
    pending = [one for one in calls[:-half] if not one.done]
    return (*pending[:half], *calls[-half:])


def _send(entry: _Entry) -> str:
    """`recv 3<-2`, of NCCL; the recorder of gloo holds none."""
    return _name(entry.profiling_name.rpartition(":")[2])


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


def _name(text: str) -> str:
    return clean(text).strip()[:MAX_NAME]
