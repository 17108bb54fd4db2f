"""Finds the rank of each dumped process: by its variables, command line, the prefixes of its lines or file names; else in order.

A place is where processes were dumped together: a file, or the lines of one host in a file. A number in its name is a rank where the
place has one rank process, and a node where it has several.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mldebug.capture.stacks.process_text import (
    ProcessText,
    argument_number,
    first_number,
    local_rank,
)
from mldebug.core.ranksets import MAX_RANK

_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "JAX_PROCESS_ID")
_WORLD_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_NODE_VARIABLES = ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID")


class Place(NamedTuple):
    """One file or host with stacks: its name for people, the number in it (-1: none), and whether the name says that this is the
    number of a rank or of a node.
    """

    name: str
    number: int = -1
    says: str = ""  # "rank", "node", ""


class PlacedProcess(NamedTuple):
    """The process of one rank, and the file or host in which it was found."""

    process: ProcessText
    place: Place


class Numbered(NamedTuple):
    """The rank of each process in order, and the size of the job. `guess`: a sentence on how the ranks were numbered, where that
    is a guess.
    """

    ranks: tuple[int, ...]
    world: int
    guess: str = ""


def place_of(name: str) -> Place:
    """What a file or host name says: `rank3` is a rank, `trace-node17` a node; of `dump-4` and `worker.7.txt` only the number is
    known.
    """
    stem = re.sub(
        r"\.(?:txt|json|out|log|err|trace|stack|stacks|dump|md|pyspy|gdb|bt)$",
        "",
        name,
        flags=re.IGNORECASE,
    )
    if match := re.search(
        r"(?<![a-z])(?<!local[ _.-])(?<!node[ _.-])(?<!group[ _.-])(?<!machine[ _.-])(?:global_?)?rank[ _.=-]?(\d{1,7})(?!\d)",
        stem,
        re.IGNORECASE,
    ):
        return Place(name, int(match[1]), "rank")
    if match := _LOCAL.search(stem) or (_LR.search(stem) if host_in(stem) else None):
        return Place(name, int(match[1]))
    if match := _NODE.search(stem):
        return Place(name, int(match[1] or match[2]), "node")
    if _FIRST_OF_ROLES.search(stem):
        return Place(name)  # its number, and that of the workers beside it, count those of one role
    match = re.search(r"(?<!\d)(\d{1,7})$", stem)
    return Place(name, int(match[1]) if match else -1)


# A pod has the job's name before its number
_NODE = re.compile(
    r"(?<![a-z])(?:(?:node|group|machine)[ _.-]?rank|nodes?|hosts?|gpu-?node|pod|machine|server|instance|vm)[ _.=-]?(\d{1,7})(?!\d)"
    r"|[a-z\d]-worker-(\d{1,7})$",
    re.IGNORECASE,
)
# Kubeflow's jobs begin with it, and its rank is 0
_FIRST_OF_ROLES = re.compile(
    r"(?<![a-z])(?:master|chief|leader|head)[ _.=-]?\d{1,7}$", re.IGNORECASE
)
_LOCAL = re.compile(r"(?<![a-z])local[ _.-]?rank[ _.=-]?(\d{1,4})(?!\d)", re.IGNORECASE)
# A local rank beside its host, and no learning rate: `lr0.001`, `lr_3e-4`
_LR = re.compile(r"(?<![a-z])lr[ _.=-]?(\d{1,4})(?!\d|\.\d|e-?\d)", re.IGNORECASE)
_ADDRESS = re.compile(r"(?:\d{1,3}[-._]){3}\d{1,3}|(?<![a-z])(?:ip|nodes?|hosts?|gpu-?node|pod|worker)[ _.=-]?[\da-f]{1,12}(?![a-z\d])", re.IGNORECASE)  # fmt: skip


def host_in(name: str) -> str:
    """The part of a file's name that names a host: `10-0-0-3`, `node7`; "" where none does."""
    match = _ADDRESS.search(name)
    return match[0] if match else ""


def may_be_local(names: Iterable[str]) -> bool:
    """Whether the numbers of ranks in these names of files, with their folders, may be local ranks: one of them is in two folders or on two
    hosts, or lower than it can be on its node, where a rank is on each node before (`node1/rank0.txt`).
    """
    ranks: dict[tuple[str, str], set[int]] = {}
    lowest: dict[int, int] = {}  # rank of each numbered node
    for name in names:
        folder, _, file = name.rpartition("/")
        if (place := place_of(file)).says != "rank":
            continue
        ranks.setdefault((folder, host_in(file)), set()).add(place.number)
        if node := _NODE.search(file) or _NODE.search(folder):
            number = int(node[1] or node[2])
            lowest[number] = min(place.number, lowest.get(number, MAX_RANK))
    again = Counter(rank for some in ranks.values() for rank in some)
    first = min(lowest, default=0) if len(lowest) > 1 else 0
    low = any(rank < node - first for node, rank in lowest.items())
    return low or any(count > 1 for count in again.values())


def number_ranks(found: Sequence[PlacedProcess], launchers: Iterable[ProcessText]) -> Numbered:
    """Find the rank of each process: by what it says of itself, else by the names of files and hosts, else in order. `launchers`:
    processes that show the size of the job.
    """
    launchers = tuple(launchers)
    sizes = Counter(one.place for one in found)
    own = [_own_rank(one, sizes[one.place] == 1) for one in found]
    world = _known_world(found, launchers)
    if own and all(0 <= rank <= MAX_RANK for rank in own) and len(set(own)) == len(own):
        return Numbered(tuple(own), max(world, max(own) + 1))
    named = _by_names(found, sizes)
    if named is not None:
        return Numbered(named, max(world, max(named) + 1))
    return _by_order(found, launchers, world)


def _own_rank(one: PlacedProcess, alone: bool) -> int:
    """What a process says of itself: a variable, its command line, the prefix or heading of its lines; -1 for nothing."""
    process = one.process
    if (rank := first_number(process.environment, _RANK_VARIABLES)) >= 0:
        return rank
    if (rank := argument_number(process.command, r"(?:global[-_])?rank")) >= 0:
        return rank
    if (rank := argument_number(process.command, "RANK", dashes="")) >= 0:
        return rank
    if process.rank >= 0:
        return process.rank
    return process.label.rank if alone else -1


def _by_names(found: Sequence[PlacedProcess], sizes: Mapping[Place, int]) -> tuple[int, ...] | None:
    """The numbers on files or tasks that hold one rank each; None where they are no ranks: twice, of nodes, or pids."""
    if any(size > 1 for size in sizes.values()) or not found:
        return None
    if may_be_local(one.place.name for one in found):
        return None
    numbers = [
        one.process.label.task if one.process.label.task >= 0 else one.place.number for one in found
    ]
    if min(numbers) < 0 or max(numbers) > MAX_RANK or len(set(numbers)) < len(numbers):
        return None
    surely = all(one.place.says == "rank" for one in found)
    pids = any(
        one.process.pid == number for one, number in zip(found, numbers, strict=True) if number > 1
    )
    late = min(numbers) > 1 and min(numbers) >= len(numbers)  # trace-17, trace-18: nodes, or pids
    nodes = any(one.place.says == "node" for one in found)
    return None if not surely and (pids or late or nodes) else tuple(numbers)


def _by_order(
    found: Sequence[PlacedProcess], launchers: Sequence[ProcessText], world: int
) -> Numbered:
    """Nodes in the order of their numbers or names; on each the local rank, else the order in the text."""
    places = list(dict.fromkeys(one.place for one in found))
    nodes = {place: _node_number(place, found) for place in places}
    known = all(number >= 0 for number in nodes.values()) and len(set(nodes.values())) == len(
        places
    )
    ordered = sorted(places, key=lambda place: (nodes[place] if known else 0, _natural(place.name)))
    width = max(Counter(one.place for one in found).values(), default=1)
    width = max(width, _local_world(launchers, found))
    exact = known and min(nodes.values()) == 0
    ranks: dict[int, int] = {}
    base = 0
    for turn, place in enumerate(ordered):
        mine = [index for index, one in enumerate(found) if one.place == place]
        local = _local_ranks([found[index].process for index in mine])
        start = width * (nodes[place] if exact else turn) if local or len(mine) == width else base
        for offset, index in enumerate(sorted(mine, key=lambda i: _order(found[i].process, local))):
            ranks[index] = start + (
                local.get(id(found[index].process), offset) if local else offset
            )
        base = max(ranks.values()) + 1
    if len(set(ranks.values())) < len(ranks) or max(ranks.values(), default=0) > MAX_RANK:
        ranks = {
            index: number for number, index in enumerate(sorted(ranks, key=lambda i: (ranks[i], i)))
        }
    numbers = tuple(ranks[index] for index in range(len(found)))
    return Numbered(
        numbers, max(world, max(numbers, default=-1) + 1), _guess(found, ordered, numbers)
    )


def _guess(found: Sequence[PlacedProcess], ordered: Sequence[Place], numbers: Sequence[int]) -> str:
    """How they were numbered."""
    shown = []
    for place in ordered[:4]:
        mine = sorted(
            number for one, number in zip(found, numbers, strict=True) if one.place == place
        )
        shown.append(
            f"{place.name or 'the text'}: {mine[0]}-{mine[-1]}"
            if len(mine) > 1
            else f"{place.name or 'the text'}: {mine[0]}"
        )
    more = f" and {len(ordered) - 4} more" if len(ordered) > 4 else ""
    local = all(local_rank(one.process) >= 0 for one in found)
    order = "by their local ranks" if local else "in the order of the text"
    where = "" if len(ordered) == 1 else "place by place and there "
    if len(ordered) == len(found) > 1:
        where, order = "", "in the order of the names"
    return f"the dumps do not say which rank is which: numbered {where}{order} ({'; '.join(shown)}{more})"


def _order(process: ProcessText, local: Mapping[int, int]) -> tuple[int, int, int]:
    return local.get(id(process), 0), process.number, process.pid


def _local_ranks(processes: Sequence[ProcessText]) -> dict[int, int]:
    """The local rank of each, by identity; empty where one has none, or two have the same."""
    found = {id(one): local_rank(one) for one in processes}
    good = min(found.values(), default=-1) >= 0 and len(set(found.values())) == len(processes)
    return found if good else {}


def _node_number(place: Place, found: Sequence[PlacedProcess]) -> int:
    for one in found:
        if one.place == place:
            number = first_number(one.process.environment, _NODE_VARIABLES)
            if number < 0:
                number = one.process.label.task
            if number >= 0:
                return number
    return place.number


def _known_world(found: Sequence[PlacedProcess], launchers: Sequence[ProcessText]) -> int:
    """The size of the job as a variable or a command line says; 0 where none does."""
    sizes = [first_number(one.process.environment, _WORLD_VARIABLES) for one in found]
    sizes += [argument_number(one.process.command, r"world[-_]size") for one in found]
    for launcher in launchers:
        nodes = argument_number(launcher.command, r"(?:nnodes|num[-_]nodes|num[-_]machines)")
        local = argument_number(launcher.command, r"(?:nproc[-_]per[-_]node|num[-_]gpus)")
        total = argument_number(launcher.command, r"num[-_]processes")
        sizes.append(total if total > 0 else max(nodes, 1) * local)
    known = [size for size in sizes if 0 < size <= MAX_RANK + 1]
    return max(known, default=0)


def _local_world(launchers: Sequence[ProcessText], found: Sequence[PlacedProcess]) -> int:
    sizes = [
        argument_number(one.command, r"(?:nproc[-_]per[-_]node|num[-_]gpus)") for one in launchers
    ]
    sizes += [
        first_number(one.process.environment, ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"))
        for one in found
    ]
    return max((size for size in sizes if size <= 1024), default=0)


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """node2 before node10."""
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.findall(r"\d{1,18}|\D+", name)
    )
