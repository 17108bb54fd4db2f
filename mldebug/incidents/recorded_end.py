"""Reads logs of a job that ended: a file, or every file of a folder, also as a log collector exports them."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from mldebug.capture.exports.log_exports import unexported
from mldebug.capture.exports.packed import last_bytes, unpacked_name
from mldebug.capture.stacks.files import decoded_text, dump_paths
from mldebug.capture.stacks.numbering import may_be_local, place_of
from mldebug.core.files import unreadable
from mldebug.core.model import Gap
from mldebug.core.redact import clean
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.diagnosis.exits.words.recorded.last_attempt import RecordedLog, both_streams
from mldebug.diagnosis.exits.words.recorded.recorded_logs import end_of_logs

MAX_BYTES = 32 << 20  # of one log: of a longer one its end
MAX_ALL = 256 << 20
MAX_LINES = 200_000  # the last ones of each


class RecordedEnd(NamedTuple):
    """The end that logs tell of; None where they tell of none. `gaps`: logs that could be read in part only."""

    exit: AttemptExit | None
    gaps: tuple[Gap, ...] = ()


class _ReadLog(NamedTuple):
    log: RecordedLog
    damage: str


def end_recorded(where: Path) -> RecordedEnd:
    """The end that these logs tell of. Raises an error for a file that cannot be read."""
    found = list(_logs(where))
    if may_be_local({both_streams(one.log.name) for one in found}):
        found = [_ReadLog(msgspec.structs.replace(log, rank=None), damage) for log, damage in found]
    gaps = tuple(
        Gap(
            what="a log",
            reason=f"{log.name}: {damage}; what can be unpacked of it counts",
            rank=log.rank,
            way_out="copy it again",
        )
        for log, damage in found
        if damage
    )
    return RecordedEnd(end_of_logs([one.log for one in found]) if found else None, gaps)


def _last_lines(text: str) -> list[str]:
    """The last `MAX_LINES` lines; those before them are not made one by one."""
    parts = text.rsplit("\n", MAX_LINES + 1)  # the last may be empty
    rest = text[len(parts[0]) :] if len(parts) > MAX_LINES + 1 else text
    return rest.splitlines()[-MAX_LINES:]


def _logs(where: Path) -> Iterator[_ReadLog]:
    room = MAX_ALL
    for path in dump_paths(where):
        name = unpacked_name(clean(path.name if path == where else str(path.relative_to(where)), 300))  # fmt: skip
        try:
            data, damage = last_bytes(path, min(MAX_BYTES, room))
        except OSError as error:
            raise unreadable(path, error) from error
        room -= len(data)
        place = place_of(name.rpartition("/")[2])
        log = RecordedLog(
            name=name,
            lines=_last_lines(unexported(decoded_text(data))),
            rank=place.number if place.says == "rank" else None,
        )
        yield _ReadLog(log, damage)
        if room <= 0:
            return
