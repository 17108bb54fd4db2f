"""Stacks that others recorded: a folder or a file in any form that `mldebug.capture.stacks` reads, as captures of one job."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mldebug.capture.stacks.files import (
    DumpFile,
    dump_paths,
    named_like_others,
    read_file,
    unread_words,
)
from mldebug.capture.stacks.form import IN_ORDER, RECORDED
from mldebug.capture.stacks.numbering import (
    Numbered,
    Place,
    PlacedProcess,
    host_in,
    number_ranks,
    place_of,
)
from mldebug.capture.stacks.process_kinds import ProcessKind, node_parts, sort_processes
from mldebug.capture.stacks.process_text import ProcessText, join
from mldebug.capture.stacks.tracebacks import TRACEBACKS
from mldebug.core.errors import EvidenceError
from mldebug.core.model import (
    Gap,
    Job,
    NodeCapture,
    ProcessCapture,
    ProcessState,
    RankCapture,
    RankIdentity,
    Remark,
    ThreadState,
)
from mldebug.core.redact import clean
from mldebug.core.text import plural

UNREAD = "some lines"  # the gap of what was not read
MAX_LISTED = 6  # files in the sentence on what was not read
NO_STACKS = "give what py-spy dump, faulthandler, gdb (thread apply all py-bt) or pystack printed of the ranks"

COPY_AGAIN = "copy it again, or unpack it yourself"


class _Found(NamedTuple):
    """A process with the file and the place in which it was found."""

    process: ProcessText
    file: DumpFile
    place: Place


def captures_from_dumps(where: Path) -> tuple[NodeCapture, ...]:
    """Read a file, or every file of a folder, as stacks of one job. Returns captures, one for each node; empty where nothing
    looks like stacks.

    Raises EvidenceError where files are named by ranks and none holds a stack. What was not read becomes a gap of the captures;
    how ranks were numbered, where that is a guess, a remark.
    """
    files = [read_file(path, where) for path in dump_paths(where)]
    found = _joined_files(one for file in files for one in _found_in(file))
    sorted_ones = sort_processes([one.process for one in found], [one.place for one in found])
    of_kind = {
        kind: [i for i, k in enumerate(sorted_ones.kinds) if k is kind] for kind in ProcessKind
    }
    ranks = of_kind[ProcessKind.RANK]
    if not ranks:
        return _nothing(files, found)
    launchers = [found[index].process for index in of_kind[ProcessKind.LAUNCHER]]
    numbered = number_ranks(
        [PlacedProcess(found[i].process, found[i].place) for i in ranks], launchers
    )
    _refuse_moments(found[ranks[0]], numbered)
    workers: dict[int, list[ProcessText]] = {}
    for worker, owner in sorted_ones.of.items():
        workers.setdefault(owner, []).append(found[worker].process)
    by_rank = {
        rank: (found[index], workers.get(index, []))
        for rank, index in zip(numbered.ranks, ranks, strict=True)
    }
    empty = _empty_ranks(files, numbered)
    world = max(numbered.world, max(empty, default=-1) + 1)
    remarks = tuple(
        _remarks(numbered, of_kind, len(sorted_ones.of), [one.process for one in found])
    )
    return _captures(where, by_rank, empty, world, remarks, tuple(_gaps(files, empty)))


def _place(process: ProcessText, file: DumpFile) -> Place:
    """Where a process was dumped: its host, else the file that a heading names, else a mark of its lines, else the file."""
    label = process.label
    if host := process.host or label.host:
        return place_of(host)._replace(says="node")
    if process.file:
        return place_of(process.file)
    if label.task >= 0:
        return Place(f"task {label.task}", label.task)
    if label.rank >= 0:
        return Place(f"rank {label.rank}", label.rank, "rank")
    base = place_of(file.name.rpartition("/")[2])
    if base.number < 0 and "/" in file.name:
        base = place_of(file.name.rpartition("/")[0])
    return base._replace(name=file.name)


def _found_in(file: DumpFile) -> Iterator[_Found]:
    """The processes of a file; where the dumps of several nodes stand one after the other in it, each node is a place."""
    by_place: dict[Place, list[ProcessText]] = {}
    for one in file.text.processes:
        by_place.setdefault(_place(one, file), []).append(one)
    for place, processes in by_place.items():
        parts = node_parts(processes)
        several = max(parts) > 0
        kept: dict[tuple[int, int, int, int], _Found] = {}
        for index, (part, one) in enumerate(zip(parts, processes, strict=True)):
            whose = place
            if several:
                whose = place._replace(name=f"{place.name} (part {part + 1})", number=-1)
            again = bool(one.pid) or (place.says == "rank" and one.form == TRACEBACKS.name)
            key = (part, one.rank, one.pid, -1 if again else index)
            kept[key] = _Found(join(kept[key].process, one) if key in kept else one, file, whose)
        yield from kept.values()


def _joined_files(found: Iterable[_Found]) -> list[_Found]:
    """One rank in several files of one number, as a native dump beside a plain one, or an older one: the last counts."""
    found = list(found)
    hosts: dict[object, set[str]] = {}
    for one in found:
        hosts.setdefault(_named(one), set()).add(_host(one))
    kept: dict[object, _Found] = {}
    for index, one in enumerate(found):
        whose = _named(one)
        on = hosts[whose] - {""}  # a file that names no host joins the one of the only host
        key = (whose, _host(one) if len(on) > 1 else "") if whose else index
        if key in kept and kept[key].file is not one.file:
            before = kept[key]
            kept[key] = before._replace(process=join(before.process, one.process))
        else:
            kept[key if key not in kept else index] = one
    return list(_with_kernel(list(kept.values())))


def _named(found: _Found) -> tuple[object, ...]:
    """Folder, number and process that a file names; () where it names none of a rank."""
    main = found.process.main
    who = found.process.pid or (main.tid if main else 0)
    place = found.place
    if place.number < 0 or place.says == "node" or not who:
        return ()
    return (found.file.name.rpartition("/")[0], place.number, place.says, who)


def _host(found: _Found) -> str:
    return host_in(found.file.name.rpartition("/")[2])


def _with_kernel(found: list[_Found]) -> Iterator[_Found]:
    """Kernel stacks that name no process, in files of their own, join the only process whose file has that number."""
    alone = [one for one in found if not (one.process.stacks or one.process.pid)]
    others = [one for one in found if one not in alone]
    owners = Counter(_numbered_file(one) for one in others)
    kernel = {_numbered_file(one): one for one in alone if owners[_numbered_file(one)] == 1}
    for one in others:
        mine = kernel.get(_numbered_file(one))
        yield one._replace(process=join(mine.process, one.process)) if mine else one
    yield from (one for one in alone if one not in kernel.values())


def _numbered_file(found: _Found) -> tuple[str, int, str]:
    place = found.place
    return found.file.name.rpartition("/")[0], place.number, place.says if place.number >= 0 else place.name  # fmt: skip


def _nothing(files: Sequence[DumpFile], found: Sequence[_Found]) -> tuple[NodeCapture, ...]:
    """No rank was found: an error where files are named as dumps are, or hold processes that are no ranks."""
    if found:
        raise EvidenceError(
            f"{files[0].name}: only launchers and workers ({len(found)} dumped), and no rank among them",
            "dump the ranks, too: pgrep -f YOUR_SCRIPT | xargs -n 1 py-spy dump --pid",
        )
    for file in files:
        if place_of(file.name.rpartition("/")[2]).number >= 0:
            why = file.trouble or (
                f"it says {file.text.first!r}" if file.text.first else "it is empty"
            )
            raise EvidenceError(f"{file.name} holds no stacks: {why}", NO_STACKS)
    if broken := next((file for file in files if file.damaged), None):
        raise EvidenceError(f"{broken.name} holds nothing to judge: {broken.trouble}", COPY_AGAIN)
    return ()


def _refuse_moments(found: _Found, numbered: Numbered) -> None:
    """Dumps of faulthandler with one thread address, and nothing else: of one rank at several moments, or of several ranks?"""
    if (
        len(numbered.ranks) == 1
        and numbered.guess
        and found.process.times > 1
        and not found.process.pid
    ):
        raise EvidenceError(
            f"{found.file.name} holds {found.process.times} dumps of threads of the same address, of one process or of several",
            "put those of each rank into a file of its own: rank0.txt, rank1.txt …",
        )


# --- what is said about it ---------------------------------------------------------------------------


def _empty_ranks(files: Sequence[DumpFile], numbered: Numbered) -> dict[int, DumpFile]:
    """Ranks whose file is there and holds no stack."""
    if numbered.guess:
        return {}
    named = {
        place.number: file
        for file in files
        if (place := place_of(file.name.rpartition("/")[2])).says == "rank"
        or named_like_others(file, files)
    }
    return {
        rank: file
        for rank, file in named.items()
        if not file.text.processes
        and rank not in numbered.ranks
        and 0 <= rank <= 2 * max(numbered.ranks) + 8
    }


def _gaps(files: Sequence[DumpFile], empty: Mapping[int, DumpFile]) -> Iterator[Gap]:
    for rank, file in sorted(empty.items()):
        reason = file.trouble or (
            f"it says {file.text.first!r}" if file.text.first else "it is empty"
        )
        yield Gap(
            what="stacks", reason=f"{file.name} holds none: {reason}", rank=rank, way_out=NO_STACKS
        )
    gone = {file.name for file in empty.values()}
    unread = [unread_words(one) for one in files if one.name not in gone]
    listed = [one for one in unread if one]
    if listed:
        more = (
            f"; and {plural(len(listed) - MAX_LISTED, 'more file')}"
            if len(listed) > MAX_LISTED
            else ""
        )
        yield Gap(what=UNREAD, reason=f"{'; '.join(listed[:MAX_LISTED])}{more}")


def _remarks(
    numbered: Numbered,
    of_kind: Mapping[ProcessKind, Sequence[int]],
    attached: int,
    processes: Sequence[ProcessText],
) -> Iterator[Remark]:
    if numbered.guess:
        yield Remark(kind=IN_ORDER, message=numbered.guess)
    counts = [
        plural(len(of_kind[kind]), kind.value)
        for kind in ProcessKind
        if kind is not ProcessKind.RANK and of_kind[kind]
    ]
    if counts:
        whose = f" ({attached} of the workers known by their rank)" if attached else ""
        yield Remark(
            kind="no_ranks", message=f"dumped and not counted as ranks: {', '.join(counts)}{whose}"
        )
    often = [one for one in processes if one.times > 1]
    if often:
        yield Remark(
            kind="dumped_again",
            message=f"{'one process was' if len(often) == 1 else f'{len(often)} processes were'} dumped more than once: the last dump counts",
        )


# --- captures ----------------------------------------------------------------------------------------


def _captures(
    where: Path,
    by_rank: Mapping[int, tuple[_Found, list[ProcessText]]],
    empty: Iterable[int],
    world: int,
    remarks: tuple[Remark, ...],
    gaps: tuple[Gap, ...],
) -> tuple[NodeCapture, ...]:
    """One capture for each host that is named, else one for all."""
    nodes = _nodes(by_rank)
    ranks: dict[str, list[RankCapture]] = {}
    for rank, (found, workers) in sorted(by_rank.items()):
        node = nodes.get(rank, RECORDED)
        ranks.setdefault(node, []).append(_rank(rank, world, node, found.process, workers))
    first = min(ranks)
    for rank in empty:
        blank = ProcessText()
        ranks[first].append(_rank(rank, world, first, blank, []))
    taken = min(found.file.at for found, _ in by_rank.values())
    name = clean(where.resolve().name, 200)
    job = Job(
        id=RECORDED, name=name, launcher=RECORDED, world_size=world, nodes=tuple(sorted(ranks))
    )
    return tuple(
        NodeCapture(
            node=node,
            taken_at=taken,
            job=job,
            ranks=tuple(sorted(mine, key=lambda one: one.identity.rank)),
            remarks=remarks if node == first else (),
            gaps=gaps if node == first else (),
        )
        for node, mine in sorted(ranks.items())
    )


def _nodes(by_rank: Mapping[int, tuple[_Found, list[ProcessText]]]) -> dict[int, str]:
    """The host of each rank, where the dumps name one for all: by a prefix or heading, or a file with several ranks."""
    sizes = Counter(found.place for found, _ in by_rank.values())
    names: dict[int, str] = {}
    for rank, (found, _) in by_rank.items():
        host = found.process.host or found.process.label.host
        if not host and len(sizes) > 1 and (sizes[found.place] > 1 or found.place.says == "node"):
            host = _node_name(found.place.name)
        if host:
            names[rank] = host
    return names if len(names) == len(by_rank) else {}


def _node_name(place: str) -> str:
    """`node1` for the file `dumps/node1.txt`; a part of a file keeps its number."""
    base, part, number = place.rpartition("/")[2].partition(" (part ")
    return f"{base.partition('.')[0] or base}{part and f'-{number[:-1]}'}"


def _rank(
    rank: int, world: int, node: str, process: ProcessText, workers: Iterable[ProcessText]
) -> RankCapture:
    identity = RankIdentity(rank=rank, world_size=world, pid=process.pid, node=node)
    return RankCapture(
        identity=identity,
        process=_process(process),
        children=tuple(_process(one, "worker") for one in workers),
    )


def _process(process: ProcessText, kind: str = "rank") -> ProcessCapture:
    state = None
    if process.kernel or process.state:
        wchan = process.kernel[0] if process.kernel else ""
        main = ThreadState(tid=process.pid, state=process.state, wchan=wchan, kernel_stack=process.kernel)  # fmt: skip
        state = ProcessState(pid=process.pid, state=process.state, threads=(main,))
    return ProcessCapture(pid=process.pid, kind=kind, state=state, stacks=process.stacks, native=process.native)  # fmt: skip
