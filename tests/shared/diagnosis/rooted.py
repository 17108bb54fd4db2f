"""Jobs of one process group whose calls may have a root, played until they hang because one rank leaves the common path.

As in gloo and NCCL: the n-th calls of all ranks meet; a root sends and goes on, data goes down or up a tree or directly.
"""

import random
from typing import NamedTuple

import msgspec

from mldebug.core.model import FlightRecord, NodeCapture
from shared.capture.flights import call, group
from shared.diagnosis.builders import WRAPPER, capture, process, rank, still

SYMMETRIC = ("all_reduce", "all_gather", "barrier", "all_gather_object")
DOWN = ("broadcast", "broadcast_object_list", "scatter")
UP = ("gather", "gather_object", "reduce")
INSIDE = {"all_gather_object": "all_gather", "gather_object": "all_gather", "broadcast_object_list": "broadcast"}  # fmt: skip
C10D = "torch/distributed/distributed_c10d.py"
FLIGHT = FlightRecord()


class RootedCall(NamedTuple):
    """A call in the program of a rank, at a line of it."""

    kind: str
    root: int
    line: int


class RootedJob(NamedTuple):
    """What each rank calls, in which call it stands (past the last: it has ended), and which of them left the common path."""

    programs: list[list[RootedCall]]
    stands: list[int]
    fault: int

    @property
    def hangs(self) -> bool:
        """Whether all ranks still live."""
        pairs = zip(self.stands, self.programs, strict=True)
        return all(n < len(program) for n, program in pairs)


def rooted_job(seed: int) -> RootedJob:
    """One rank leaves out a call, makes one too many, another one, or two in another order."""
    luck = random.Random(seed)
    size = luck.choice([3, 4, 5, 6, 8])
    common = [_any_call(luck, size, 10 + 3 * n) for n in range(6)]
    own, fault, at = list(common), luck.randrange(size), luck.randrange(5)
    match luck.choice(["less", "more", "other", "order"]):
        case "less":
            del own[at]
        case "more":
            own.insert(at, _any_call(luck, size, 50))
        case "other":
            own[at] = _any_call(luck, size, 60)
        case "order":
            own[at], own[at + 1] = own[at + 1], own[at]
    end = RootedCall("all_reduce", 0, 90)
    programs = [[*(own if one == fault else common), end] for one in range(size)]
    return RootedJob(programs, _played(programs, tree=luck.random() < 0.6), fault)


def _any_call(luck: random.Random, size: int, line: int) -> RootedCall:
    return RootedCall(luck.choice(SYMMETRIC + DOWN + UP), luck.randrange(size), line)


def _played(programs: list[list[RootedCall]], *, tree: bool) -> list[int]:
    stands = [0] * len(programs)
    while True:
        free = [r for r, program in enumerate(programs) if stands[r] < len(program) and _passes(r, programs, stands, tree)]  # fmt: skip
        if not free:
            return stands
        stands[free[0]] += 1


def _passes(one: int, programs: list[list[RootedCall]], stands: list[int], tree: bool) -> bool:
    """Whether this rank can leave the call in which it stands."""
    number = stands[one]
    now = programs[one][number]
    size = len(programs)

    def came(peer: int) -> bool:
        return stands[peer] >= number and number < len(programs[peer]) and programs[peer][number] == now  # fmt: skip

    if now.kind in SYMMETRIC or now.kind == "gather_object":  # which begins with the sizes
        return all(map(came, range(size)))
    above = _parents(size, now.root) if tree else dict.fromkeys(set(range(size)) - {now.root}, now.root)  # fmt: skip
    if now.kind in DOWN:
        parent = above.get(one)
        return parent is None or (came(parent) and (parent == now.root or stands[parent] > number))
    below = [peer for peer, parent in above.items() if parent == one]
    return all(came(peer) and (stands[peer] > number or peer not in above.values()) for peer in below)  # fmt: skip


def _parents(size: int, root: int) -> dict[int, int]:
    """A binomial tree: rank -> whom it hears from."""
    return {(n + root) % size: ((n & (n - 1)) + root) % size for n in range(1, size)}


def stacks_of(job: RootedJob, *, recorders: bool = False) -> NodeCapture:
    """What an agent sees of it; `recorders`: with a Flight Recorder of each rank."""
    size = len(job.programs)
    ranks = []
    for number, (program, stands) in enumerate(zip(job.programs, job.stands, strict=True)):
        now = program[stands]
        below = (f"{INSIDE[now.kind]} ({C10D}:3000)", WRAPPER) if now.kind in INSIDE else ()
        frames = (*below, f"{now.kind} ({C10D}:2900)", WRAPPER, f"step (train.py:{now.line})", "<module> (train.py:120)")  # fmt: skip
        one = rank(number, process(*frames, move=still()), world=size)
        if recorders:
            calls = [call(INSIDE.get(c.kind, c.kind), n, done=n <= stands) for n, c in enumerate(program[: stands + 1], 1)]  # fmt: skip
            record = msgspec.structs.replace(FLIGHT, groups=(group(*calls, ranks=tuple(range(size))),))  # fmt: skip
            one = msgspec.structs.replace(one, flight=record)
        ranks.append(one)
    return msgspec.structs.replace(capture(*ranks, world=size), quiet_seconds=60.0)
