"""Files of single ranks side by side in a folder (`ckpt_10_rank0.pt` … `ckpt_10_rank3.pt`) are one checkpoint."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from mldebug.core.ranksets import fold_ranks
from mldebug.storage.checkpoints.completeness import worst
from mldebug.storage.checkpoints.history import CheckpointReading
from mldebug.storage.checkpoints.model import CheckpointVerdict
from mldebug.storage.checkpoints.rank_files import rank_family


def group_of(name: str, *, single: bool) -> str:
    """The name with # for the rank, which the files of all ranks share: `ckpt_10_rank#.pt`.

    Folders (`single` False) and names without a rank stay as they are.
    """
    found = rank_family(name) if single else None
    return found[0] if found else name


def join_ranks(readings: Iterable[CheckpointReading]) -> list[CheckpointReading]:
    """The checkpoints, with files that ranks wrote side by side for one step joined into one."""
    groups: dict[str, list[CheckpointReading]] = defaultdict(list)
    for reading in readings:
        groups[group_of(reading.name, single=reading.single)].append(reading)
    return [
        _together(name, files) if files[0].name != name else files[0]
        for name, files in groups.items()
    ]


def _together(name: str, files: Sequence[CheckpointReading]) -> CheckpointReading:
    files = sorted(files, key=lambda file: file.name)
    return CheckpointReading(
        name=name,
        size=sum(file.size for file in files),
        files=len(files),
        oldest=min(file.oldest for file in files),
        newest=max(file.newest for file in files),
        inode=sum(file.inode for file in files),
        open=any(file.open for file in files),
        single=True,
        verdict=_verdict(files),
    )


def _verdict(files: Sequence[CheckpointReading]) -> CheckpointVerdict:
    verdict = worst([file.verdict for file in files])
    ranks = sorted(found[1] for file in files if (found := rank_family(file.name)))
    return msgspec.structs.replace(
        verdict,
        shards=sum(file.verdict.shards for file in files),
        ranks={"the file": fold_ranks(ranks)},
        writers=len(set(ranks)),
    )
