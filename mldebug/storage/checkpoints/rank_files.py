"""Which ranks have a file in a checkpoint, and whether one is missing, by the world size and by other checkpoints.

Only file names are used: `rank3.pt`, `mp_rank_03/…`, `zero_pp_rank_3_mp_rank_00_…`,
`rng_state_3.pth`. Of several numbers the first counts.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mldebug.core.ranksets import fold_ranks, unfold
from mldebug.storage.checkpoints.model import Checkpoint, Completeness
from mldebug.storage.checkpoints.names import without_steps

Ranks = Mapping[str, str]
"""Name with # for the rank -> the ranks that have it, folded: `{"rank#.pt": "0-3"}`."""

MAX_FAMILIES = 32
MAX_KINDS = 64
MANY = "*"
MAX_PARTS = 20_000  # no more files are listed of one checkpoint
MOST_EARLIER = 3  # checkpoints that one is compared with
_STATE = re.compile(r"(?:^|/)(?!.*(?:best|ema|final))[^/]*(?:optim|sched|model|state|rng|common|data|meta(?=\.)|training_step|rank[-_.]?\d|lora|weights|processor|progress|scaler|custom_checkpoint|train(?=\.))[^/]*\.(?:pt|pth|bin|pkl|ckpt|safetensors|json)$|(?:^|/)[^/]*(?:optim|model)[^/]*/__\d{1,7}_\d{1,7}\.distcp$|(?:^|/)latest$", re.IGNORECASE)  # fmt: skip
_NUMBER = re.compile(r"\d+")
_STEP_INSIDE = re.compile(
    r"(?<=\w)step#/"
)  # of `without_steps`, which takes what stands before the word along
MAX_TEXT = 2000  # characters of one that are kept
_RANK = re.compile(r"((?:^|[^a-z])(?:rank|shard|layer(?=_\d{2,3}-model)|s?dp(?=_\d{2}\.pt$)|rng_state|random_states|worker|proc|process|gpu|tp|wp|train_state(?=_\d{5}\.json$))[-_.=]?)(\d{1,6})(?!\d)", re.IGNORECASE)  # fmt: skip

_PART = re.compile(
    r"^(?!.*shard-\d)(?P<before>.*[-_.])(?P<part>\d{5})-of-(?P<size>\d{5})(?P<after>[^/]*)$"
)
_OF_ALL = re.compile(r"(?:^|[^a-z])tp-(?:rank-)?(?P<rank>\d{1,6})-of-(?P<size>\d{1,6})(?!\d)")


def rank_family(path: str) -> tuple[str, int] | None:
    """The name with # in the place of the rank, and the rank; None where the name has none."""
    found = _RANK.search(path)
    return (f"{path[: found.start(2)]}#{path[found.end(2) :]}", int(found[2])) if found else None


def lost_of_parallel(paths: Iterable[str]) -> str:
    """In words, a file of a tensor-parallel rank that is missing by the names of the others, which say of how many they are
    (nanotron's `tp-rank-0-of-2`); "" where none is.
    """
    found: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for path in paths:
        if one := _OF_ALL.search(path):
            found[path[: one.start("rank")], path[one.end("rank") :], one["size"]].add(int(one["rank"]))  # fmt: skip
    for (before, after, size), ranks in sorted(found.items()):
        lost = next(number for number in range(len(ranks) + 1) if number not in ranks)
        if lost < int(size):
            return f"{before}{lost}{after} is missing"
    return ""


def lost_parts(paths: Iterable[str]) -> str:
    """In words, parts that are missing by the names of the others (`optimizer.00000-of-00008.pt`), whether they count from 0 or 1; "" where none is.

    Shards that say which rank wrote them (`shard-00001-model-00001-of-00002.safetensors`) need not have all.
    """
    found: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for path in paths:
        if one := _PART.search(path):
            found[one["before"], one["size"], one["after"]].add(int(one["part"]))
    for (before, size, after), parts in sorted(found.items()):
        if len(parts) < min(int(size), MAX_PARTS):
            return f"{before}#-of-{size}{after}: {len(parts)} of {int(size)} parts are there"
    return ""


def ranks_of(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the ranks that have a file in the checkpoint, as folded sets (`0-3,7`) by file name with # for the rank.

    Empty with more than `MAX_FAMILIES` names; sets that are too long as text are left out.
    """
    found: dict[str, set[int]] = defaultdict(set)
    for file in checkpoint.files:
        if named := rank_family(without_steps(file.path) if file.path else checkpoint.name):
            found[named[0]].add(named[1])
            if len(found) > MAX_FAMILIES:
                return {}
    folded = {name: fold_ranks(ranks) for name, ranks in sorted(found.items())}
    return {name: text for name, text in folded.items() if len(text) <= MAX_TEXT}


def kinds_of(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Names, with # for numbers, of the checkpoint's files with weights, optimizer or other state, which every checkpoint of its series should have.

    `MANY` alone where there are more than `MAX_KINDS`.
    """
    kinds = {
        _NUMBER.sub("#", without_steps(file.path))
        for file in checkpoint.files
        if file.path and _STATE.search(file.path)
    }
    return tuple(sorted(kinds)) if len(kinds) <= MAX_KINDS else (MANY,)


def writer_count(ranks: Ranks) -> int | None:
    """The number of ranks that have a file of their own; None where no file name has a rank.

    `ranks`: as of `ranks_of`.
    """
    written = (text for name, text in ranks.items() if "layer_#" not in name)
    return max((len(unfold(text)) for text in written), default=None)


def first_lacking(own: Ranks, other: Ranks) -> str:
    """The first file of a rank that another checkpoint has and this one lacks, in words; "" where there is none.

    File names (with # for the rank) of which this one has no file at all are ignored, unless other numbers of the same name are
    there: of `mp_rank_00_000` and `mp_rank_00_001` the second one is lost with its stage of the pipeline.
    """
    kinds = {_NUMBER.sub("#", name) for name in own}
    for name, text in other.items():
        if name not in own and _NUMBER.sub("#", name) not in kinds:
            continue
        lost = set(unfold(text)) - set(unfold(own.get(name, "")))
        if lost:
            return f"{name} of {'layer' if 'layer_#' in name else 'rank'} {min(lost)}"
    return ""


@dataclass(frozen=True, slots=True)
class OtherCheckpoint:
    """An earlier checkpoint of the same series, whose files are compared with those of this one."""

    name: str
    ranks: Ranks
    world: int | None  # size of the job that wrote it; None: not known
    whole: bool
    kinds: tuple[str, ...] = ()  # see `kinds_of`
    ended: float = 0.0  # unix
    step: int | None = None


def lost_kind(kinds: tuple[str, ...], earlier: Iterable[OtherCheckpoint]) -> str:
    """In words, a file that a checkpoint lacks and that the last complete ones before it all have; "" where there is none."""
    compared = sorted(
        (one for one in earlier if one.whole and one.kinds and MANY not in one.kinds),
        key=lambda it: (it.step or 0, it.ended),
    )[-MOST_EARLIER:]
    if MANY in kinds or not compared:
        return ""
    common = set.intersection(*(set(one.kinds) for one in compared)) - set(kinds)
    lost = _STEP_INSIDE.sub("/step#/", min(common)) if common else ""
    return f"{lost} is missing, which {compared[-1].name} has" if common else ""


def missing_files(ranks: Ranks, writers: int | None, world: int | None, others: Iterable[OtherCheckpoint]) -> tuple[Completeness, str] | None:  # fmt: skip
    """Why a checkpoint that looks complete is incomplete or may be, as (state, reason); None where nothing speaks against it.

    `writers`: ranks that wrote a file; `world`: ranks of the run; None: not known. Maybe only some
    ranks write (one of each node): two checkpoints that agree show this.
    """
    compared = list(others)
    for one in compared:
        other_world = world and one.world and world != one.world
        lost = first_lacking(ranks, one.ranks) if one.whole and not other_world else ""
        if lost:
            state = Completeness.INCOMPLETE if world and one.world else Completeness.UNKNOWN
            return state, f"{lost} is missing, which {one.name} has"
    if (
        writers is None
        or not world
        or writers >= world
        or any(one.ranks == ranks for one in compared)
    ):
        return None
    return Completeness.UNKNOWN, f"{writers} of {world} ranks have a file there, and no other save tells whether that is all"  # fmt: skip
