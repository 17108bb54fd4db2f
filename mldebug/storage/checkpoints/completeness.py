"""Is a save whole? Its layout says what should be there, and each file that can says whether it was cut off."""

from collections.abc import Iterator, Sequence

import msgspec

from mldebug.core.redact import clean
from mldebug.storage.checkpoints import safetensors_check, torch_zip
from mldebug.storage.checkpoints.model import (
    BROKEN,
    UNSURE,
    ByteRange,
    Checkpoint,
    CheckpointVerdict,
    Completeness,
    FileCheck,
    FileEntry,
    Layout,
)
from mldebug.storage.checkpoints.names import is_temporary
from mldebug.storage.checkpoints.rank_files import ranks_of

MOST_FILES = 512  # of one save that are looked into; of more, the first, the last and some between
_ZIPS = (".pt", ".pth", ".ckpt", ".bin")
BESIDE = ("latest", "latest_checkpointed_iteration.txt")
"""Small files beside a save that some layouts want."""


def fitting_layouts(save: Checkpoint, layouts: Sequence[Layout]) -> tuple[Layout, ...]:
    """Those that know it, the most special one first: Megatron's folders hold shards of PyTorch's own format."""
    return tuple(sorted((one for one in layouts if one.fits(save)), key=lambda one: one.order))


def wants(save: Checkpoint, layouts: Sequence[Layout]) -> tuple[ByteRange, ...]:
    """Which bytes would say more; ask again with those, until there is nothing new."""
    known = fitting_layouts(save, layouts)
    if not known:
        return ()
    found = [wanted for layout in known for wanted in layout.wants(save)]
    for one in checked_files(save):
        found += (
            safetensors_check.wants(save, one) if _is_tensors(save, one) else torch_zip.wants(one)
        )
    return tuple(
        one for one in dict.fromkeys(found) if one not in save.parts and one.path not in save.unread
    )


def judge(save: Checkpoint, layouts: Sequence[Layout]) -> CheckpointVerdict:
    """Complete is only what was listed whole, keeps what its index promises, and has no broken file."""
    return msgspec.structs.replace(_judged(save, layouts), ranks=ranks_of(save))


def _judged(save: Checkpoint, layouts: Sequence[Layout]) -> CheckpointVerdict:
    known = fitting_layouts(save, layouts)
    if not known:
        return CheckpointVerdict(why=save.cut or "of no layout that is known")
    verdict = worst([one.judge(save) for one in known])
    if verdict.state is Completeness.INCOMPLETE and save.cut:
        return _unsure(verdict, save.cut)  # what is missing may be in the rest
    if verdict.state is Completeness.INCOMPLETE:
        return verdict
    checks = [(one, _check(save, one)) for one in checked_files(save)]
    for one, (what, why) in checks:
        if what == BROKEN:
            return _as(verdict, Completeness.INCOMPLETE, f"{one.path or save.name} {why}")
    if is_temporary(save.name):
        return _as(verdict, Completeness.INCOMPLETE, "it still has its temporary name")
    if save.cut:
        return _unsure(verdict, save.cut)
    doubts = [f"{one.path or save.name} {why}" for one, (what, why) in checks if what == UNSURE]
    return (
        _unsure(verdict, doubts[0])
        if doubts and verdict.state is Completeness.COMPLETE
        else verdict
    )


def checked_files(save: Checkpoint) -> tuple[FileEntry, ...]:
    """The files that say themselves whether they are whole; of very many, a part."""
    found = [
        one for one in save.files if (one.path or save.name).endswith((*_ZIPS, ".safetensors"))
    ]
    if len(found) <= MOST_FILES:
        return tuple(found)
    return tuple(
        found[number * (len(found) - 1) // (MOST_FILES - 1)] for number in range(MOST_FILES)
    )


def _check(save: Checkpoint, one: FileEntry) -> FileCheck:
    return (
        safetensors_check.check(save, one) if _is_tensors(save, one) else torch_zip.check(save, one)
    )


def _is_tensors(save: Checkpoint, one: FileEntry) -> bool:
    return (one.path or save.name).endswith(".safetensors")


def worst(verdicts: Sequence[CheckpointVerdict]) -> CheckpointVerdict:
    """What the first says, unless another misses something, or is not known."""
    first = verdicts[0]
    for state in (Completeness.INCOMPLETE, Completeness.UNKNOWN):
        for one in verdicts:
            if one.state is state:
                return _as(first, state, one.why)
    return first


def _unsure(verdict: CheckpointVerdict, why: str) -> CheckpointVerdict:
    return _as(verdict, Completeness.UNKNOWN, why)


def _as(verdict: CheckpointVerdict, state: Completeness, why: str) -> CheckpointVerdict:
    return msgspec.structs.replace(verdict, state=state, why=why)


def unread_files(save: Checkpoint) -> Iterator[str]:
    """Which of its files nobody could read, and why."""
    for path, why in sorted(save.unread.items()):
        yield f"{clean(path or save.name, 200)} {why}"
