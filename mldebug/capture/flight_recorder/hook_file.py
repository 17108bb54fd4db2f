"""One rank's Flight Recorder, read from the file that its hook writes (layout: `mldebug_training.hook.flight_recorder`)."""

from typing import Annotated

import msgspec

from mldebug.capture.flight_recorder.entries import (
    MAX_CALLS,
    MAX_GROUPS,
    GroupInfo,
    checked,
    make_record,
    short,
)
from mldebug.capture.flight_recorder.raw_calls import Name, Rank, RawCall, Whole
from mldebug.capture.validation import decode_hook_file
from mldebug.core.model import FlightRecord, TimedCall, TimedCalls
from mldebug.core.ranksets import fold_ranks

__all__ = ["MAX_BYTES", "MAX_CALLS", "MAX_GROUPS", "parse_file"]

MAX_BYTES = 1 << 20
MAX_TIMED = 64  # calls of one group
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=86_400_000)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _HookDump(msgspec.Struct, frozen=True):
    version: Name = ""
    entries: tuple[RawCall, ...] = ()


class _Group(msgspec.Struct, frozen=True):
    desc: Name = ""
    ranks: tuple[Rank, ...] = ()
    calls: Whole = -1  # number of its last call; -1: not told
    backend: Name = ""  # that counts them; "": not told

    @property
    def info(self) -> GroupInfo:
        return GroupInfo(self.desc, fold_ranks(self.ranks), self.calls, self.backend)


TimedEntry = tuple[Whole, Milliseconds, Nanoseconds]  # number of the call, duration, created (unix)


class _TimedGroup(msgspec.Struct, frozen=True):
    group: Name = ""
    backend: Name = ""
    calls: Annotated[tuple[TimedEntry, ...], msgspec.Meta(max_length=MAX_TIMED)] = ()


class _File(msgspec.Struct, frozen=True):
    layout: int
    groups: dict[Name, _Group] = {}
    dumps: tuple[_HookDump, ...] = ()
    timed: Annotated[tuple[_TimedGroup, ...], msgspec.Meta(max_length=MAX_GROUPS)] = ()


def parse_file(data: bytes) -> FlightRecord:
    """Parse the file into which a rank's hook writes its Flight Recorder. Raises ValueError with the reason."""
    file = decode_hook_file(data, _File, MAX_BYTES)
    infos = {name: group.info for name, group in file.groups.items()}
    timed = tuple(_timed(one, infos) for one in file.timed)
    return checked(msgspec.structs.replace(_record(file.dumps, infos), timed=timed))


def _timed(one: _TimedGroup, infos: dict[str, GroupInfo]) -> TimedCalls:
    members = infos[one.group].members if one.group in infos else ""
    return TimedCalls(
        group=short(one.group),
        backend=short(one.backend),
        members=members,
        calls=tuple(
            TimedCall(sequence=number, seconds=took / 1e3, created_at=created / 1e9)
            for number, took, created in one.calls
        ),
    )


def _record(dumps: tuple[_HookDump, ...], infos: dict[str, GroupInfo]) -> FlightRecord:
    versions = [dump.version for dump in dumps if dump.entries] or [""]
    entries = [dump.entries for dump in dumps]
    return make_record(versions[0], entries, infos, silent=_silent(dumps, infos))


def _silent(dumps: tuple[_HookDump, ...], infos: dict[str, GroupInfo]) -> tuple[str, ...]:
    """Backends that have made calls and recorded none: their recorder is off, or out of the hook's reach."""
    recorded = {call.owner[1] for dump in dumps for call in dump.entries}
    counted = {short(one.backend) for one in infos.values() if one.calls > 0}
    return tuple(sorted(counted - recorded - {""}))[:MAX_GROUPS]
