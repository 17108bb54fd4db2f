"""A folder of Flight Recorder dumps, one file for each rank, whose name ends in the rank.

`nccl_trace_rank_3`, `host-17.cluster_fr_3.pickle`, `trace3.json`: the last number of the name, before its ending, is the rank.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from mldebug.capture.flight_recorder.dump import parse_dump, record_of
from mldebug.capture.flight_recorder.printouts import MAX_BYTES, is_printout, read_printout
from mldebug.capture.flight_recorder.votes import everybody, newest_call
from mldebug.core.errors import EvidenceError, MldebugError
from mldebug.core.files import read_bytes, unreadable
from mldebug.core.model import FlightRecord
from mldebug.core.ranksets import MAX_RANK, shorten_ranks
from mldebug.core.redact import clean

MAX_FILES = 20_000
LONGEST = 1800.0  # seconds that a collective may take, where its record does not tell of more
WAY_OUT = (
    "give the folder with one dump for each rank, whose names end in the rank: trace_0, trace_1 …"
)
_NAME = re.compile(
    r"(?P<before>(?:.*\D)?)(?P<rank>\d++)(?:\.(?:pickle|pkl|pt|json|bin|dump|trace))?", re.DOTALL
)


class UnusableDump(msgspec.Struct, frozen=True):
    """A dump file that was not used, or is not believed, and why."""

    file: str
    rank: int | None
    reason: str


class FolderRecords(NamedTuple):
    """What was read of a folder of dumps: records by rank, files that are not used, and by rank why a dump could not be read."""

    records: dict[int, FlightRecord]
    problems: tuple[UnusableDump, ...] = ()
    ignored: int = 0  # files whose names end in no number
    unreadable: dict[int, str] = {}


class _Named(NamedTuple):
    name: str
    before: str
    rank: int


def read_folder(directory: Path) -> FolderRecords:
    """Read the dumps in a folder, one for each rank, or in place of the folder a file that PyTorch's analyser has printed of
    them; dumps of another job or time are left out. Raises EvidenceError or AccessError where the folder or all of its dumps
    cannot be read.
    """
    if directory.is_file():
        return read_printed(directory)
    names = _names(directory)
    found = [one for name in names if (one := _named(name))]
    chosen, problems = _one_each(found)
    records: dict[int, FlightRecord] = {}
    broken: dict[int, str] = {}
    for one in chosen:
        try:
            records[one.rank] = parse_dump(read_bytes(directory / one.name))
        except (ValueError, OSError, MldebugError) as error:
            broken[one.rank] = _reason(error, directory / one.name)
            problems.append(_problem(one, broken[one.rank]))
    if not records and len(names) == 1 and _is_printed(directory / names[0]):
        return read_printed(directory / names[0])
    if not records:
        raise _nothing(directory, problems)
    strange = _of_other_jobs(records)
    problems += [_problem(file, strange[file.rank]) for file in chosen if file.rank in strange]
    records = {rank: one for rank, one in records.items() if rank not in strange}
    problems.sort(key=lambda one: one.file)
    return FolderRecords(records, tuple(problems), len(names) - len(found), broken)


def _is_printed(path: Path) -> bool:
    """Whether the file is what PyTorch's analyser printed; False where it cannot be read, which its own problem says."""
    try:
        return is_printout(read_bytes(path)[:MAX_BYTES].decode(errors="replace"))
    except (OSError, MldebugError):
        return False


def read_printed(path: Path) -> FolderRecords:
    """Read what PyTorch's analyser has printed of the dumps of all ranks. Raises EvidenceError or AccessError where it cannot be read."""
    try:
        data = read_bytes(path)
    except OSError as error:
        raise unreadable(path, error) from error
    text = data[:MAX_BYTES].decode(errors="replace")
    if not is_printout(text):
        raise EvidenceError(
            f"{path} is not a folder, nor a printout of PyTorch's analyser", WAY_OUT
        )
    try:
        return FolderRecords({rank: record_of(raw) for rank, raw in read_printout(text).items()})
    except ValueError as error:
        raise EvidenceError(f"{path}: {clean(str(error))[:300]}", WAY_OUT) from error


def _of_other_jobs(records: dict[int, FlightRecord]) -> dict[int, str]:
    """By rank, why its record is of another time or job than the newest: jobs of one user may dump into the same files.

    A rank that wrote none leaves the one of its last job there. Whether two records may be of one hang the longest wait tells.
    """
    ages = {rank: at for rank, one in records.items() if (at := newest_call(one)) > 0}
    if not ages:
        return {}
    last = max(ages, key=lambda rank: ages[rank])
    limit = max(LONGEST, *(call.timeout for group in records[last].groups for call in group.calls))
    found = {
        rank: f"it is of another time: its last call was made {(ages[last] - at) / 3600:,.1f} hours before that of rank {last}"
        for rank, at in ages.items()
        if ages[last] - at > limit
    }
    here = {rank: everybody(one) for rank, one in records.items() if rank not in found}
    counts = Counter(filter(None, here.values()))
    usual = max(counts, key=lambda ranks: (counts[ranks], ranks == here[last]), default="")
    return found | {
        rank: f"it is of another job: one of ranks {shorten_ranks(ranks)}, and not {shorten_ranks(usual)}"
        for rank, ranks in here.items()
        if ranks not in ("", usual)
    }


def _names(directory: Path) -> list[str]:
    try:
        names = sorted(path.name for path in directory.iterdir())
    except OSError as error:
        raise unreadable(directory, error) from error
    if len(names) > MAX_FILES:
        raise EvidenceError(
            f"{directory} holds {len(names):,} files, more than {MAX_FILES:,}", WAY_OUT
        )
    return names


def _named(name: str) -> _Named | None:
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    digits = match["rank"].lstrip("0")[:10] or "0"
    return _Named(name, match["before"], int(digits) if digits.isascii() else MAX_RANK + 1)


def _one_each(found: list[_Named]) -> tuple[list[_Named], list[UnusableDump]]:
    """One file for each rank: of several the one that is named as most others are."""
    alike = Counter(one.before for one in found)
    chosen: dict[int, _Named] = {}
    problems: list[UnusableDump] = []
    for one in sorted(found, key=lambda one: (-alike[one.before], one.name)):
        if one.rank > MAX_RANK:
            problems.append(
                _problem(one._replace(rank=-1), "its name ends in no rank: the number is too large")
            )
        elif one.rank in chosen:
            other = clean(chosen[one.rank].name, 80)
            problems.append(_problem(one, f"left out: {other} is of the same rank"))
        else:
            chosen[one.rank] = one
    return sorted(chosen.values(), key=lambda one: one.rank), problems


def _problem(file: _Named, reason: str) -> UnusableDump:
    return UnusableDump(clean(file.name, 120), file.rank if file.rank >= 0 else None, reason)


def _reason(error: Exception, path: Path) -> str:
    """Without the path, which stands beside it."""
    text = error.message if isinstance(error, MldebugError) else str(error)
    if isinstance(error, OSError):
        text = f"it cannot be read: {error.strerror}"
    return clean(text.removeprefix(f"cannot read {path}: ").replace(f"{path} ", "it "), 300)


def _nothing(directory: Path, problems: Iterable[UnusableDump]) -> EvidenceError:
    first = next(iter(problems), None)
    if first is None:
        return EvidenceError(f"{directory} holds no file whose name ends in a rank", WAY_OUT)
    return EvidenceError(
        f"no dump of {directory} can be read; {first.file}: {first.reason}", WAY_OUT
    )
