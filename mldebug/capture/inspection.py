"""What ranks say when they are inspected: a profile of their next steps, or which lines of code hold their CUDA memory. Pure."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from mldebug.capture.memory.sentences import live_facts
from mldebug.capture.profile.sampled import SampledProfile
from mldebug.capture.profile.sentences import profile_lines, sampled_lines
from mldebug.capture.profile.summary import ProfileSummary
from mldebug.core.errors import EvidenceError
from mldebug.core.model import MeasuredData, MemoryFailure
from mldebug.core.redact import clean
from mldebug.core.units import size_words

MOST_RANKS = 16  # at once
MOST_STEPS, MOST_SECONDS = 20, 60
LEAST_WAIT, MOST_WAIT = 1.0, 600.0  # seconds
MAX_TEXT = 400  # characters
MAX_LIST = 64  # of what one rank says
MAX_NUMBER = 1 << 62
WORK = 190.0  # seconds that ranks may take beyond the first step

_FILES = "profile-rank{rank}.trace.json.gz profile-rank{rank}.folded.txt memory-rank{rank}.json"

InspectionKind = Literal["profile", "memory"]


class InspectionOptions(MeasuredData, frozen=True, kw_only=True):
    """What ranks are inspected for: a profile of so many `steps`, or of so many `seconds` of a rank without the hook; or their memory.

    `wait`: seconds in which the first step has to end.
    """

    what: InspectionKind
    steps: Annotated[int, msgspec.Meta(ge=1, le=MOST_STEPS)] = 3
    seconds: Annotated[int, msgspec.Meta(ge=1, le=MOST_SECONDS)] = 10
    wait: Annotated[float, msgspec.Meta(ge=LEAST_WAIT, le=MOST_WAIT)] = 60.0

    @property
    def deadline(self) -> float:
        """Seconds after which it is over, whatever the ranks do."""
        return self.wait + max(WORK, self.seconds)


class RankProfile(MeasuredData, frozen=True, kw_only=True):
    """The profile of one rank: `trace` by torch.profiler or `samples` by py-spy, or in `failure` why there is none.

    `file`: the name of the evidence file, or in `left_out` why there is none; `steps` as the rank counts them; `cost_seconds`: how long
    the rank stood still for it, beyond what recording itself slows down.
    """

    rank: int
    pid: int
    node: str = ""
    file: str = ""
    left_out: str = ""
    steps: str = ""
    cost_seconds: float = 0.0
    trace: ProfileSummary | None = None
    samples: SampledProfile | None = None
    failure: str = ""

    def lines(self) -> Iterator[str]:
        """Where the rank's time went, as text."""
        if self.failure:
            yield f"{_title(self)}: not profiled: {self.failure}"
        elif self.trace is not None:
            cost = f"it stood still for {self.cost_seconds:.3f} s to begin and to write"
            yield f"{_title(self)}, steps {self.steps}, by torch.profiler; {cost}"
            yield from (f"  {line}" for line in profile_lines(self.trace))
        elif self.samples is not None:
            by = "samples by py-spy (it was not started with `mldebug run`)"
            yield f"{_title(self)}, {self.samples.samples} {by}"
            yield from (f"  {line}" for line in sampled_lines(self.samples))


class RankHolders(MeasuredData, frozen=True, kw_only=True):
    """Which lines of code hold the memory of one rank's GPU (`found`; no allocation had failed), or in `failure` why that is not known.

    `file`: the name of the evidence file, or in `left_out` why there is none.
    """

    rank: int
    pid: int
    node: str = ""
    file: str = ""
    left_out: str = ""
    found: MemoryFailure | None = None
    failure: str = ""

    def lines(self) -> Iterator[str]:
        """Which code holds the rank's CUDA memory, as text."""
        if self.found is None:
            yield f"{_title(self)}: not known: {self.failure}"
            return
        yield _title(self)
        yield from (f"  {line}" for line in live_facts(self.found))


InspectedRank = RankProfile | RankHolders
R = TypeVar("R", RankProfile, RankHolders)


class InspectedRanks(MeasuredData, frozen=True, kw_only=True):
    """What came of inspecting ranks: of each a profile, or who holds its memory; and evidence files, by name."""

    profiles: tuple[RankProfile, ...] = ()
    memory: tuple[RankHolders, ...] = ()
    files: dict[str, bytes] = {}

    @property
    def ranks(self) -> tuple[InspectedRank, ...]:
        """All of them, whatever they were inspected for."""
        return (*self.profiles, *self.memory)

    @property
    def failed(self) -> bool:
        """Whether there is a rank of which nothing came."""
        return any(one.failure for one in self.ranks)

    def text(self) -> str:
        """What was found in each rank (its profile, or who holds its memory), as lines of text."""
        return "\n".join(line for one in self.ranks for line in (*one.lines(), ""))


def of_ranks(found: Iterable[tuple[InspectedRank, bytes]]) -> InspectedRanks:
    """Put ranks together, the lowest first; each comes with its evidence file (b"" where it has none)."""
    pairs = sorted(found, key=lambda one: one[0].rank)
    ranks = [one for one, _ in pairs]
    return InspectedRanks(
        profiles=tuple(one for one in ranks if isinstance(one, RankProfile)),
        memory=tuple(one for one in ranks if isinstance(one, RankHolders)),
        files={one.file: data for one, data in pairs if one.file},
    )


def together(parts: Sequence[InspectedRanks]) -> InspectedRanks:
    """Join what several nodes found in their ranks (profiles, or who holds memory), the lowest rank first."""
    profiles = (one for part in parts for one in part.profiles)
    memory = (one for part in parts for one in part.memory)
    return InspectedRanks(
        profiles=tuple(sorted(profiles, key=lambda one: one.rank)),
        memory=tuple(sorted(memory, key=lambda one: one.rank)),
        files={name: data for part in parts for name, data in part.files.items()},
    )


def within(found: InspectedRanks, most: int) -> InspectedRanks:
    """The inspection with evidence files of at most `most` bytes in all: the largest are left out, and their ranks say so."""
    files = dict(sorted(found.files.items(), key=lambda one: len(one[1])))
    dropped: dict[str, str] = {}
    while files and sum(map(len, files.values())) > most:
        name, data = files.popitem()
        dropped[name] = f"it has {size_words(len(data))}, and {size_words(most)} may travel from its node: ask there, or for fewer steps"  # fmt: skip
    return InspectedRanks(
        profiles=tuple(_without(one, dropped) for one in found.profiles),
        memory=tuple(_without(one, dropped) for one in found.memory),
        files=files,
    )


def _without(one: R, dropped: Mapping[str, str]) -> R:
    if one.file not in dropped:
        return one
    return msgspec.structs.replace(one, file="", left_out=dropped[one.file])


def _title(one: RankProfile | RankHolders) -> str:
    return f"rank {one.rank} (pid {one.pid}{f' on {one.node}' if one.node else ''})"


def believed(found: InspectedRanks, wanted: Iterable[int], node: str) -> InspectedRanks:
    """What another node has sent of the ranks that it was asked for, under its name, and with its texts cleaned and its lists cut. Of others
    nothing is kept, nor a file that is of none of them: names of files become names in a report. Raises EvidenceError for a number that cannot be.
    """
    numbers = set(wanted)
    some = {one.rank: one for one in reversed(found.ranks) if one.rank in numbers}
    kept = [_cleaned(one, node, found.files) for one in some.values()]
    return of_ranks((one, found.files.get(one.file, b"")) for one in kept)


def tidied(found: InspectedRanks) -> InspectedRanks:
    """What is said of ranks on several nodes, each once, bounded and cleaned as in `believed`, with the nodes that it names."""
    some = {one.rank: one for one in reversed(found.ranks[:MOST_RANKS])}
    nodes = {rank: clean(one.node, MAX_TEXT) for rank, one in some.items()}
    kept = [_cleaned(one, nodes[rank], found.files) for rank, one in some.items()]
    return of_ranks((one, found.files.get(one.file, b"")) for one in kept)


def _cleaned(one: InspectedRank, node: str, files: Mapping[str, bytes]) -> InspectedRank:
    is_its_own = one.file in _FILES.format(rank=one.rank).split() and one.file in files
    own = msgspec.convert(_bounded(msgspec.to_builtins(one)), type(one))
    return msgspec.structs.replace(own, node=node, file=one.file if is_its_own else "")


def _bounded(value: Any) -> Any:
    """The same with every text in it cleaned and cut, and every list cut."""
    if isinstance(value, str):
        return clean(value, MAX_TEXT)
    if isinstance(value, dict):
        some = itertools.islice(value.items(), MAX_LIST)
        return {clean(key, MAX_TEXT): _bounded(inner) for key, inner in some}
    if isinstance(value, list | tuple):
        return [_bounded(inner) for inner in value[:MAX_LIST]]
    if isinstance(value, int | float) and abs(value) > MAX_NUMBER:
        raise EvidenceError("it holds a number that cannot be")
    return value
