"""Reads logs of a job that ended: a file, or every file of a folder, also as a log collector exports them."""

from collections.abc import Iterator
from pathlib import Path

from mldebug.capture.exports.log_exports import unexported
from mldebug.capture.exports.packed import last_bytes, unpacked_name
from mldebug.capture.stacks.files import decoded_text, dump_paths
from mldebug.capture.stacks.numbering import place_of
from mldebug.core.files import unreadable
from mldebug.core.redact import clean
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.diagnosis.exits.words.last_attempt import RecordedLog
from mldebug.diagnosis.exits.words.recorded_logs import end_of_logs

MAX_BYTES = 32 << 20  # of one log: of a longer one its end
MAX_ALL = 256 << 20
MAX_LINES = 200_000  # the last ones of each


def end_recorded(where: Path) -> AttemptExit | None:
    """The end that these logs tell of; None where they tell of none. Raises an error for a file that cannot be read."""
    logs = list(_logs(where))
    return end_of_logs(logs) if logs else None


def _logs(where: Path) -> Iterator[RecordedLog]:
    room = MAX_ALL
    for path in dump_paths(where):
        name = unpacked_name(clean(path.name if path == where else str(path.relative_to(where)), 300))  # fmt: skip
        try:
            data = last_bytes(path, min(MAX_BYTES, room))
        except OSError as error:
            raise unreadable(path, error) from error
        room -= len(data)
        place = place_of(name.rpartition("/")[2])
        yield RecordedLog(
            name=name,
            lines=unexported(decoded_text(data)).splitlines()[-MAX_LINES:],
            rank=place.number if place.says == "rank" else None,
        )
        if room <= 0:
            return
