"""Files of single ranks side by side in one folder (`ckpt_10_rank0.pt` … `ckpt_10_rank3.pt`) are one save."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from mldebug.core.ranksets import fold_ranks
from mldebug.storage.checkpoints.completeness import worst
from mldebug.storage.checkpoints.history import CheckpointReading
from mldebug.storage.checkpoints.model import CheckpointVerdict
from mldebug.storage.checkpoints.rank_files import rank_family


def group_of(name: str, *, single: bool) -> str:
    """What stands for all ranks: `ckpt_10_rank#.pt`; the name itself where it tells none, or is a folder's."""
    told = rank_family(name) if single else None
    return told[0] if told else name


def join_ranks(seen: Iterable[CheckpointReading]) -> list[CheckpointReading]:
    """The saves, each once."""
    groups: dict[str, list[CheckpointReading]] = defaultdict(list)
    for one in seen:
        groups[group_of(one.name, single=one.single)].append(one)
    return [
        _together(name, ones) if ones[0].name != name else ones[0] for name, ones in groups.items()
    ]


def _together(name: str, ones: Sequence[CheckpointReading]) -> CheckpointReading:
    ones = sorted(ones, key=lambda one: one.name)
    return CheckpointReading(
        name=name,
        size=sum(one.size for one in ones),
        files=len(ones),
        oldest=min(one.oldest for one in ones),
        newest=max(one.newest for one in ones),
        inode=sum(one.inode for one in ones),
        open=any(one.open for one in ones),
        single=True,
        verdict=_verdict(ones),
    )


def _verdict(ones: Sequence[CheckpointReading]) -> CheckpointVerdict:
    told = worst([one.verdict for one in ones])
    ranks = sorted(found[1] for one in ones if (found := rank_family(one.name)))
    return msgspec.structs.replace(
        told,
        shards=sum(one.verdict.shards for one in ones),
        ranks={"the file": fold_ranks(ranks)},
        seats=len(set(ranks)),
    )
