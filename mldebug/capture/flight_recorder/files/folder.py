"""A folder of Flight Recorder dumps, one file for each rank (`mldebug.capture.flight_recorder.files.dump_names` says which file is of which rank)."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from mldebug.capture.flight_recorder.dump import parse_dump, record_of
from mldebug.capture.flight_recorder.files.dump_names import NamedDump, choose, dump_files
from mldebug.capture.flight_recorder.files.earlier_moment import outrun
from mldebug.capture.flight_recorder.files.printouts import MAX_BYTES, is_printout, read_printout
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


def read_folder(directory: Path) -> FolderRecords:
    """Read the dumps in a folder, one for each rank, or in place of the folder a file that PyTorch's analyser has printed of
    them; dumps of another job or time are left out. Raises EvidenceError or AccessError where the folder or all of its dumps
    cannot be read.
    """
    if directory.is_file():
        return read_printed(directory)
    names = _names(directory)
    found = dump_files(names)
    read, broken = _read(directory, found)
    chosen, left_out = choose(found, {name: newest_call(one) for name, one in read.items()})
    records = {one.rank: read[one.name] for one in chosen if one.name in read}
    unusable = {one.rank: broken[one.name] for one in chosen if one.name in broken}
    problems = [_problem(one, reason) for one, reason in left_out]
    problems += [_problem(one, unusable[one.rank]) for one in chosen if one.rank in unusable]
    if not records and len(names) == 1 and _is_printed(directory / names[0]):
        return read_printed(directory / names[0])
    if not records:
        raise _nothing(directory, problems)
    strange = _of_other_jobs(records)
    early = outrun({rank: one for rank, one in records.items() if rank not in strange})
    strange |= early
    unusable |= early
    problems += [_problem(file, strange[file.rank]) for file in chosen if file.rank in strange]
    records = {rank: one for rank, one in records.items() if rank not in strange}
    problems.sort(key=lambda one: one.file)
    return FolderRecords(records, tuple(problems), len(names) - len(found), unusable)


def ranks_dumped(where: Path) -> tuple[int, ...]:
    """The ranks whose Flight Recorder dumps lie in a folder, or of which a file tells that PyTorch's analyser has printed; () where none can be read."""
    try:
        return tuple(sorted(read_folder(where).records))
    except MldebugError:
        return ()


def _read(
    directory: Path, files: list[NamedDump]
) -> tuple[dict[str, FlightRecord], dict[str, str]]:
    """By file name the records, and why the others cannot be read."""
    records: dict[str, FlightRecord] = {}
    broken: dict[str, str] = {}
    for one in files:
        if one.rank > MAX_RANK:
            continue
        try:
            records[one.name] = parse_dump(read_bytes(directory / one.name))
        except (ValueError, OSError, MldebugError) as error:
            broken[one.name] = _reason(error, directory / one.name)
    return records, broken


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
    timeouts = (call.timeout for group in records[last].groups for call in group.calls)
    limit = max((LONGEST, *timeouts))
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


def _problem(file: NamedDump, reason: str) -> UnusableDump:
    rank = file.rank if file.rank <= MAX_RANK else None
    return UnusableDump(clean(file.name, 120), rank, reason)


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
