"""Maps processes in an answer of NCCL RAS to ranks: is the answer of our job, and which process is which global rank?

A rank is known by its host, an address, and its pid, a number of its own pid namespace: on the nodes of a job that runs in
containers all pids may be the same, so the host counts.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from mldebug.core.model import MeasuredData, NcclAbsent, NcclCommunicator, NcclRank, NcclRas

ProcessPlace = tuple[str, int]  # host, pid


def home(answer: NcclRas, pids: Collection[int]) -> str:
    """The address of this node in an answer of NCCL RAS: under which it lists the processes with these pids. "" where it lists
    none of them, or that is not certain.

    It is one of our own addresses; where none of those is listed, the only host that has all these pids.
    """
    by_host: dict[str, set[int]] = defaultdict(set)
    for host, pid in _places(answer):
        by_host[host].add(pid)
    wanted = set(pids)
    ours = [host for host in by_host if host in answer.own]
    if ours:
        best = max(ours, key=lambda host: len(by_host[host] & wanted))
        return best if by_host[best] & wanted else ""
    fitting = [host for host, there in by_host.items() if wanted and wanted <= there]
    return fitting[0] if len(fitting) == 1 else ""


def pids_at(answer: NcclRas, host: str) -> frozenset[int]:
    """The pids of all processes that an answer lists on this host."""
    return frozenset(pid for place, pid in _places(answer) if place == host)


def _places(answer: NcclRas) -> Iterable[ProcessPlace]:
    for one in answer.communicators:
        yield from ((row.host, row.pid) for row in one.ranks if row.pid is not None)
        yield from ((row.host, row.pid) for row in one.absent if row.pid is not None)
    yield from ((row.host, row.pid) for row in answer.absent if row.pid is not None)


class RasWorld(MeasuredData, frozen=True, kw_only=True):
    """The communicator of all ranks of a job, as far as an answer of NCCL RAS shows it."""

    key: str
    size: int
    ranks: dict[int, int] = {}  # pid -> rank, of the processes that were asked for


def world_of(answer: NcclRas, pids: Collection[int]) -> RasWorld | None:
    """Which of the processes with these pids is which rank, by an answer of NCCL RAS; None where that is not certain.

    A communicator is taken only if it holds every process of the answer exactly once: else it is that of a part of the job, with
    ranks of its own, or a process has several GPUs. Two such communicators must agree.
    """
    here, everybody = home(answer, pids), set(_places(answer))
    wholes = [
        communicator
        for communicator in answer.communicators
        if {*_members(communicator)} == everybody
    ]
    found = [{row: rank for row, rank in _members(one).items() if row[0] == here} for one in wholes]
    foreign = bool(answer.own) and here not in answer.own
    if not here or foreign or answer.left_out or not found or any(one != found[0] for one in found):
        return None
    first = wholes[0]
    if not 1 < first.size == len(everybody) or len(set(_members(first).values())) != first.size:
        return None
    ranks = {pid: rank for (_, pid), rank in found[0].items() if pid in pids}
    return RasWorld(key=first.key, size=first.size, ranks=ranks)


def _members(communicator: NcclCommunicator) -> dict[ProcessPlace, int]:
    rows: tuple[NcclRank | NcclAbsent, ...] = (*communicator.ranks, *communicator.absent)
    return {
        (row.host, row.pid): row.rank
        for row in rows
        if row.pid is not None and row.rank is not None
    }


def global_ranks(
    answer: NcclRas, world_size: int, known_ranks: Mapping[ProcessPlace, int]
) -> dict[ProcessPlace, int]:
    """Host and pid -> global rank, from the communicators with `world_size` members; empty where these contradict each other or
    what is known.

    `known_ranks`: ranks known from elsewhere. A communicator counts only if at least one of them agrees with it and none differs.
    """
    found: dict[ProcessPlace, int] = {}
    for one in answer.communicators:
        places = world_places(one, world_size, known_ranks)
        if any(found.get(place, rank) != rank for place, rank in places.items()):
            return {}
        found |= places
    return found


def world_places(
    communicator: NcclCommunicator, world_size: int, known_ranks: Mapping[ProcessPlace, int]
) -> dict[ProcessPlace, int]:
    """Host and pid -> rank, from one communicator with `world_size` members that agrees with `known_ranks`; empty where it does
    not.
    """
    if communicator.size != world_size:
        return {}
    found: dict[ProcessPlace, int] = {}
    twice: set[ProcessPlace] = set()
    rows: tuple[NcclRank | NcclAbsent, ...] = (*communicator.ranks, *communicator.absent)
    for row in rows:
        if row.pid is not None and row.rank is not None:
            place = row.host, row.pid
            twice |= {place} & found.keys()
            found[place] = row.rank
    single = {place: rank for place, rank in found.items() if place not in twice}
    common = single.keys() & known_ranks.keys()
    fits = bool(common) and all(single[place] == known_ranks[place] for place in common)
    return single if fits else {}
