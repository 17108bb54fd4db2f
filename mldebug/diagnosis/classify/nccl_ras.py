"""NCCL RAS (NCCL's status service) as evidence: which ranks do not answer, and which launched fewer collectives than others.

It is evidence beside a verdict and never gives one: its counts are launches by the host.
"""

from collections.abc import Iterator, Sequence

import msgspec

from mldebug.capture.nccl_ras.process_map import ProcessPlace, global_ranks, home, world_places
from mldebug.capture.nccl_ras.progress import at_level, behind, crossed, differs
from mldebug.core.model import (
    NcclAbsent,
    NcclCommunicator,
    NcclLevel,
    NcclRank,
    NcclRas,
    NodeCapture,
)
from mldebug.core.ranksets import all_of, fold_ranks

SOURCE = "NCCL RAS"
OUT_OF_STEP = "calls do not fit together: "
MAX_LINES = 4
MAX_PLACES = 4
MAX_ANSWERS = 2  # that contradict each other and are cited
_PAIRS = frozenset(("Send", "Recv"))


def ras_evidence(captures: Sequence[NodeCapture]) -> tuple[str, ...]:
    """At most `MAX_LINES` evidence sentences from NCCL RAS.

    Of several nodes' answers the most complete one is used, or each where they contradict each
    other.
    """
    answers = _fullest(captures)
    return tuple(
        f"{SOURCE}{f' on {node}' if len(answers) > 1 else ''}: {line}"
        for node, ras, names in answers
        for line in [*dict.fromkeys(_lines(ras, names))][: MAX_LINES // len(answers)]
    )


def ras_apart(captures: Sequence[NodeCapture]) -> str:
    """A sentence about ranks that launched other collectives than the rest, or the same in another order, by NCCL RAS; "" where one of
    the nodes' answers shows no such difference.
    """
    parts = [_apart(ras, names) for _, ras, names in _fullest(captures)]
    return parts[0] if parts and all(parts) else ""


def _apart(ras: NcclRas, names: "RasRankNames") -> str:
    one = next((one for one in ras.communicators if differs(one)), None)
    both = (one,) if one else crossed(ras.communicators) or ()
    return "; ".join(line for each in both for line in _counts(each, names))


def ras_alike(captures: Sequence[NodeCapture]) -> bool | None:
    """Whether all ranks have launched the same collectives by the answers of NCCL RAS. True: every answer shows it, in
    every communicator. False: some answer shows a difference. None: not known.

    Equal counts prove nothing where a communicator has only some of the ranks, or where there are sends: sends and receives
    of pipeline stages are not counted everywhere, and legitimately differ.
    """
    alike = {_alike(one.ras, RasRankNames.of(one, one.ras)) for one in captures if one.ras}
    return False if False in alike else (bool(alike) and None not in alike) or None


def _alike(ras: NcclRas, names: "RasRankNames") -> bool | None:
    every = ras.communicators
    if ras.absent or ras.timeouts or ras.left_out or any(map(_speaks_against, every)):
        return False
    used = [one for one in every if one.launched != 0]
    return (bool(used) and all(one.launched and names.is_world(one) for one in used)) or None


def _speaks_against(one: NcclCommunicator) -> bool:
    apart = bool(one.absent_count or one.absent or one.levels)
    counts = (name for row in one.ranks for name in row.counts)
    return apart or any(name in _PAIRS for name in counts)


class RasStatement(msgspec.Struct, frozen=True):
    """What one answer of NCCL RAS says of the communicator that has all ranks: `ranks` are behind or do not answer; if empty, all are alike."""

    ranks: frozenset[int]
    words: str
    answer: int = 0  # of answers that contradict each other: which of them says it


def ras_statements(captures: Sequence[NodeCapture]) -> tuple[RasStatement, ...]:
    """What NCCL RAS says of the communicator that has all ranks: which are behind or do not answer.

    It is compared with other sources.

    Smaller communicators are left out: a rank that is behind in one may wait in another.
    """
    return tuple(
        msgspec.structs.replace(statement, answer=number)
        for number, (_, ras, names) in enumerate(_fullest(captures))
        for statement in [*_of_world(ras, names)][:MAX_LINES]
    )


def _of_world(ras: NcclRas, names: "RasRankNames") -> Iterator[RasStatement]:
    for one in ras.communicators:
        if names.is_world(one):
            yield from _voices(one, names)


def _fullest(captures: Sequence[NodeCapture]) -> list[tuple[str, NcclRas, "RasRankNames"]]:
    """Of several nodes' answers that in which most processes have answered, with its node; two where such contradict each other."""
    ordered = sorted(
        ((-sum(row.answered for row in one.ras.communicators), one.node, one, one.ras)
        for one in captures if one.ras),
        key=lambda one: one[:2],
    )  # fmt: skip
    fullest = {
        _content(ras): (one, ras)
        for many, _, one, ras in reversed(ordered)
        if many == ordered[0][0]
    }
    found = sorted(fullest.values(), key=lambda one: one[0].node)[:MAX_ANSWERS]
    return [(one.node, ras, RasRankNames.of(one, ras)) for one, ras in found]


def _content(ras: NcclRas) -> frozenset[object]:
    """Which ranks are behind others and which are absent: what is equal in all answers of one moment, whichever rank gave them."""
    return frozenset(
        (one.size, one.answered, one.absent_count, frozenset(one.levels), _behind(one))
        for one in ras.communicators
    )


def _behind(one: NcclCommunicator) -> frozenset[int]:
    found = behind(one)
    return frozenset(row.rank for row in found.ranks) if found else frozenset()


class RasRankNames(msgspec.Struct, frozen=True):
    """Maps the processes in one answer of NCCL RAS to the job's ranks."""

    world_size: int
    known: dict[ProcessPlace, int]  # what discovery knows of this node
    ranks: dict[ProcessPlace, int]  # that, and what follows for the others

    @classmethod
    def of(cls, capture: NodeCapture, ras: NcclRas) -> "RasRankNames":
        """Map NCCL's process numbers to ranks: those of this node are known, those of other nodes follow where a communicator has all ranks."""
        job, ranks = capture.job, [one.identity for one in capture.ranks]
        pids = {one.namespace_pid or one.pid: one.rank for one in ranks}
        pids |= {one.pid: one.rank for one in job.lost if one.pid is not None}
        host = home(ras, pids)
        known = {(host, pid): rank for pid, rank in pids.items()} if host else {}
        found = global_ranks(ras, job.world_size, known)
        return cls(job.world_size, known, {**found, **known})

    def is_world(self, one: NcclCommunicator) -> bool:
        """Whether this communicator has all ranks of the job, numbered as the job numbers them."""
        return bool(world_places(one, self.world_size, self.known))

    def call(self, one: NcclCommunicator, rows: Sequence[NcclRank | NcclAbsent]) -> str:
        """Name the processes that NCCL RAS lists in `rows` of the communicator `one`: `ranks 1,3` where their ranks in the run are known, else
        `process 986 on 192.0.2.2`.
        """
        numbers = {self._number(one, row) for row in rows}
        if rows and None not in numbers:
            text = fold_ranks(sorted(number for number in numbers if number is not None))
            return f"rank{'s' if len(numbers) > 1 else ''} {text}"
        places = [_place(row) for row in rows[:MAX_PLACES]]
        more = f" and {len(rows) - MAX_PLACES} more" if len(rows) > MAX_PLACES else ""
        return ", ".join(places) + more

    def _number(self, one: NcclCommunicator, row: NcclRank | NcclAbsent) -> int | None:
        if row.pid is not None and (row.host, row.pid) in self.ranks:
            return self.ranks[row.host, row.pid]
        return row.rank if self.is_world(one) else None


def _place(row: NcclRank | NcclAbsent) -> str:
    if row.pid is None:
        return f"its member {row.rank}"
    return f"process {row.pid} on {row.host or 'an unknown host'}"


def _lines(ras: NcclRas, names: RasRankNames) -> Iterator[str]:
    ordered = sorted(ras.communicators, key=lambda one: -one.size)
    for one in ordered:
        yield from _absent(one, one.absent, names)
    yield from _absent(NcclCommunicator(key=""), ras.absent, names)
    for one in ordered:
        yield from _counts(one, names)


def _absent(
    one: NcclCommunicator, absent: Sequence[NcclAbsent], names: RasRankNames
) -> Iterator[str]:
    dead = [row for row in absent if row.dead]
    silent = [row for row in absent if row.unresponsive and not row.dead]
    left = [row for row in absent if not row.unresponsive and not row.dead]
    for rows, singular, plural in (
        (dead, "is taken for dead by NCCL", "are taken for dead by NCCL"),
        (silent, "does not answer: stopped, gone, or out of reach", "do not answer: stopped, gone, or out of reach"),
        (left, f"has left the communicator of {one.size}", f"have left the communicator of {one.size}"),
    ):  # fmt: skip
        if rows:
            yield f"{names.call(one, rows)} {singular if len(rows) == 1 else plural}"


def _counts(one: NcclCommunicator, names: RasRankNames) -> Iterator[str]:
    among = "" if names.is_world(one) else f" in a communicator of {one.size}"
    found = behind(one)
    if found is not None:
        who = (
            names.call(one, found.ranks)
            if len(found.ranks) == found.many
            else f"{found.many} ranks"
        )
        verb = "has" if found.many == 1 else "have"
        rest = one.answered - found.many
        others = f"{rest} others" if rest > 1 else "other"
        yield f"{who} {verb} launched {found.count} {found.function}{among}, the {others} up to {found.most}"
    elif parts := [_most(one, level, names) for level in differs(one)]:
        yield f"{OUT_OF_STEP.removesuffix(': ')}{among}: {', '.join(parts)}"
    elif one.launched and not one.absent_count and names.is_world(one):
        yield f"{all_of(one.answered)} ranks answer and have launched the same {one.furthest} collectives"


def _most(one: NcclCommunicator, level: NcclLevel, names: RasRankNames) -> str:
    rows = at_level(one, level)
    who = names.call(one, rows) if len(rows) == level.ranks else f"{level.ranks} ranks"
    return f"{who} {'has' if level.ranks == 1 else 'have'} launched the most {level.function} ({level.count})"


def _voices(one: NcclCommunicator, names: RasRankNames) -> Iterator[RasStatement]:
    gone = [row for row in one.absent if row.rank is not None and (row.dead or row.unresponsive)]
    for words in _absent(one, gone, names):
        yield RasStatement(frozenset(row.rank for row in gone if row.rank is not None), words)
    found = behind(one)
    if found is not None and len(found.ranks) < found.many:
        return
    ranks = frozenset(row.rank for row in found.ranks) if found else frozenset()
    if found is not None or not gone:
        yield from (RasStatement(ranks, words) for words in _counts(one, names) if not differs(one))
