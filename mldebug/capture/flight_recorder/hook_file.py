"""One rank's Flight Recorder, read from the file that its hook writes (layout: `mldebug_training.hook.flight_recorder`)."""

import msgspec

from mldebug.capture.flight_recorder.entries import (
    MAX_CALLS,
    MAX_GROUPS,
    Entry,
    Known,
    Name,
    Rank,
    Whole,
    make_record,
    short,
)
from mldebug.core.model import FlightRecord
from mldebug.core.ranksets import fold_ranks
from mldebug.core.redact import clean

__all__ = ["MAX_BYTES", "MAX_CALLS", "MAX_GROUPS", "parse_file"]

MAX_BYTES = 1 << 20


class _Dump(msgspec.Struct, frozen=True):
    version: Name = ""
    entries: tuple[Entry, ...] = ()


class _Group(msgspec.Struct, frozen=True):
    desc: Name = ""
    ranks: tuple[Rank, ...] = ()
    calls: Whole = -1  # number of its last call; -1: not told
    backend: Name = ""  # that counts them; "": not told

    @property
    def known(self) -> Known:
        return Known(self.desc, fold_ranks(self.ranks), self.calls, self.backend)


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
    return _record(told.dumps, {name: group.known for name, group in told.groups.items()})


def _record(dumps: tuple[_Dump, ...], told: dict[str, Known]) -> FlightRecord:
    versions = [dump.version for dump in dumps if dump.entries] or [""]
    entries = [dump.entries for dump in dumps]
    return make_record(versions[0], entries, told, silent=_silent(dumps, told))


def _silent(dumps: tuple[_Dump, ...], told: dict[str, Known]) -> tuple[str, ...]:
    """Whose recorder is switched off, or is none that the hook reaches."""
    heard = {one.owner[1] for dump in dumps for one in dump.entries}
    counted = {short(one.backend) for one in told.values() if one.calls > 0}
    return tuple(sorted(counted - heard - {""}))[:MAX_GROUPS]
