"""Evidence that others recorded: a folder of `py-spy dump` outputs, one or more per rank."""

import re
from pathlib import Path

from mldebug.capture.stacks import parse_pyspy_json, parse_pyspy_text
from mldebug.core.errors import EvidenceError, MldebugError
from mldebug.core.files import unreadable
from mldebug.core.model import (
    Gap,
    Job,
    NodeCapture,
    ProcessCapture,
    RankCapture,
    RankIdentity,
    ThreadStack,
)

MAX_FILES = 100_000
MAX_BYTES = 32 << 20
NO_DUMP = (
    "each file whose name ends in a number must be the output of `py-spy dump`; move others away"
)
_RANK = re.compile(r"(\d+)$")
_SUFFIXES = (".txt", ".json", ".out", "")


def captures_from_dumps(directory: Path) -> tuple[NodeCapture, ...]:
    """Read every file whose stem ends in a number (the rank); empty where there is none such.

    A file that is no py-spy output is a gap, and its rank one that nobody could read; EvidenceError where none is one.
    Where a rank has several, native stacks fill `native`.
    """
    files = [(int(m[1]), path) for path in _files(directory) if (m := _RANK.search(path.stem))]
    found: dict[int, ProcessCapture] = {}
    bad: list[tuple[int, MldebugError]] = []
    for rank, path in files:
        try:
            process = _read(path)
        except MldebugError as error:
            bad.append((rank, error))
        else:
            found[rank] = _join(found[rank], process) if rank in found else process
    if bad and not found:
        raise bad[0][1]
    if not found:
        return ()
    for rank, _ in bad:
        found.setdefault(rank, ProcessCapture(pid=0))
    world = max(found) + 1
    if world > 4 * MAX_FILES:
        raise EvidenceError(
            f"a file name ends in {max(found)}, which is no rank",
            "name the files rank0.txt, rank1.txt …",
        )
    ranks = tuple(_rank(number, world, process) for number, process in sorted(found.items()))
    job = Job(
        id="recorded",
        name=directory.resolve().name,
        launcher="recorded",
        world_size=world,
        nodes=("recorded",),
    )
    taken = min(path.stat().st_mtime for _, path in files)
    gaps = tuple(
        Gap(what="the py-spy dump", reason=error.message, rank=rank, way_out=error.way_out)
        for rank, error in bad
    )
    return (NodeCapture(node="recorded", taken_at=taken, job=job, ranks=ranks, gaps=gaps),)


def _files(directory: Path) -> list[Path]:
    try:
        named = [path for path in directory.iterdir() if path.suffix in _SUFFIXES]
    except OSError as error:
        raise unreadable(directory, error) from error
    return sorted(path for path in named if path.is_file())[:MAX_FILES]


def _read(path: Path) -> ProcessCapture:
    try:
        return _parse(path)
    except OSError as error:
        raise unreadable(path, error) from error
    except EvidenceError as error:
        message = error.message if str(path) in error.message else f"{path}: {error.message}"
        raise EvidenceError(message, error.way_out or NO_DUMP) from error


def _parse(path: Path) -> ProcessCapture:
    if path.stat().st_size > MAX_BYTES:
        raise EvidenceError(
            f"{path} is larger than {MAX_BYTES >> 20} MiB", "py-spy dumps are some kilobytes"
        )
    data = path.read_bytes()
    if data.lstrip()[:1] == b"[":
        return _process(0, parse_pyspy_json(data))
    dumps = parse_pyspy_text(data.decode(errors="replace"))
    if not dumps:
        raise EvidenceError(f"{path} holds no py-spy dump", NO_DUMP)
    return _process(*next(iter(dumps.items())))


def _process(pid: int, stacks: tuple[ThreadStack, ...]) -> ProcessCapture:
    pid = pid or next((stack.tid for stack in stacks if stack.name == "MainThread"), 0)
    native = any(frame.native for stack in stacks for frame in stack.frames)
    return ProcessCapture(pid=pid, stacks=stacks, native=stacks if native else ())


def _join(one: ProcessCapture, other: ProcessCapture) -> ProcessCapture:
    plain = one if not one.native else other
    return ProcessCapture(
        pid=one.pid or other.pid, stacks=plain.stacks, native=one.native or other.native
    )


def _rank(number: int, world: int, process: ProcessCapture) -> RankCapture:
    identity = RankIdentity(rank=number, world_size=world, pid=process.pid, node="recorded")
    return RankCapture(identity=identity, process=process)
