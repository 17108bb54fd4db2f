"""Whether a checkpoint is complete: its layout says which files must be there, their formats show whether one was cut off."""

import re
from collections.abc import Iterator, Sequence
from posixpath import basename

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
from mldebug.storage.checkpoints.names import has_come_to, is_temporary
from mldebug.storage.checkpoints.rank_files import kinds_of, lost_of_parallel, lost_parts, ranks_of

MOST_FILES = (
    512  # of one checkpoint that are looked into; of more, the first, the last and some between
)
_ZIPS = (".pt", ".pth", ".ckpt", ".bin", ".tar")
_TRACKERS = (
    "latest_checkpointed_iteration.txt",
    "latest_ckpt_global_step.txt",
    "latest_checkpoint.txt",
    "latest.txt",
    "latest",
    "last_checkpoint",
)  # each names the newest whole one
BESIDE = _TRACKERS
"""Names of small files beside a checkpoint that are always read: some layouts need them."""
UNFINISHED = ("-unfinished", ".unfinished")
"""Ends of the names of empty files that NeMo puts beside a checkpoint, by its name, and deletes when that is whole."""
OF_SPEECHBRAIN = "CKPT.yaml"
SMALL = 512  # bytes: its counters are texts that end in .ckpt, too
_STEM = re.compile(r"(?:-EMA)?(?:\.ckpt|\.nemo)?$")


def fitting_layouts(checkpoint: Checkpoint, layouts: Sequence[Layout]) -> tuple[Layout, ...]:
    """The layouts that fit the checkpoint, the most specific first.

    Several may fit, as Megatron's folders hold PyTorch's shards.
    """
    return tuple(
        sorted((layout for layout in layouts if layout.fits(checkpoint)), key=lambda one: one.order)
    )


def wants(checkpoint: Checkpoint, layouts: Sequence[Layout]) -> tuple[ByteRange, ...]:
    """Byte ranges that `judge` needs and that were not read yet.

    Read them, and call again until there are none.
    """
    fitting = fitting_layouts(checkpoint, layouts)
    if not fitting:
        return ()
    found = [wanted for layout in fitting for wanted in layout.wants(checkpoint)]
    for one in checked_files(checkpoint):
        found += (
            safetensors_check.wants(checkpoint, one)
            if _is_tensors(checkpoint, one)
            else torch_zip.wants(one)
        )
    return tuple(
        one
        for one in dict.fromkeys(found)
        if one not in checkpoint.parts and one.path not in checkpoint.unread
    )


def judge(checkpoint: Checkpoint, layouts: Sequence[Layout]) -> CheckpointVerdict:
    """Return the verdict on a checkpoint, by file names, index and file ends.

    It is complete only if its whole folder was listed, all that its layouts promise is there, no checked file is broken,
    and no tracker file beside it (such as `latest`) names an earlier step or marks it as unfinished.
    """
    verdict = _judged(checkpoint, layouts)
    behind = _tracker_behind(checkpoint) or _marked(checkpoint)
    if behind and verdict.state is Completeness.COMPLETE:
        verdict = _as(verdict, Completeness.INCOMPLETE, behind)
    return msgspec.structs.replace(verdict, ranks=ranks_of(checkpoint), kinds=kinds_of(checkpoint))


def _tracker_behind(checkpoint: Checkpoint) -> str:
    """Why the small file beside a checkpoint speaks against it: who saves names there what is whole, at the end."""
    for name in _TRACKERS:
        text = checkpoint.beside.get(name, b"")[:300].decode(errors="replace").strip()
        if text and has_come_to(basename(text), checkpoint.name) is False:
            return f"{name} still says {clean(text, 60)}"
    return ""


def _marked(checkpoint: Checkpoint) -> str:
    """Why a mark beside a checkpoint speaks against it; "" where there is none."""
    names = dict.fromkeys((checkpoint.name, _STEM.sub("", checkpoint.name)))
    marks = (f"{name}{end}" for name in names for end in UNFINISHED)
    return next((f"{clean(mark, 120)} lies beside it" for mark in marks if mark in checkpoint.beside), "")  # fmt: skip


def _judged(checkpoint: Checkpoint, layouts: Sequence[Layout]) -> CheckpointVerdict:
    fitting = fitting_layouts(checkpoint, layouts)
    if not fitting:
        return CheckpointVerdict(why=checkpoint.cut or "of no layout that is known")
    verdict = worst([layout.judge(checkpoint) for layout in fitting])
    if verdict.state is Completeness.INCOMPLETE and checkpoint.cut:
        return _unsure(verdict, checkpoint.cut)  # what is missing may be in the rest
    if verdict.state is Completeness.INCOMPLETE:
        return verdict
    checks = [(one, _check(checkpoint, one)) for one in checked_files(checkpoint)]
    for one, (what, why) in checks:
        if what == BROKEN:
            return _as(verdict, Completeness.INCOMPLETE, f"{one.path or checkpoint.name} {why}")
    paths = () if checkpoint.cut else tuple(one.path for one in checkpoint.files)
    lost = lost_of_parallel(paths) or lost_parts(paths)
    if lost:
        return _as(verdict, Completeness.INCOMPLETE, lost)
    if is_temporary(checkpoint.name):
        return _as(verdict, Completeness.INCOMPLETE, "it still has its temporary name")
    if checkpoint.cut:
        return _unsure(verdict, checkpoint.cut)
    doubts = [
        f"{one.path or checkpoint.name} {why}" for one, (what, why) in checks if what == UNSURE
    ]
    return (
        _unsure(verdict, doubts[0])
        if doubts and verdict.state is Completeness.COMPLETE
        else verdict
    )


def checked_files(checkpoint: Checkpoint) -> tuple[FileEntry, ...]:
    """The zip (`.pt`, …) and `.safetensors` files whose own format is checked: all, or `MOST_FILES` spread evenly."""
    least = SMALL if checkpoint.entry(OF_SPEECHBRAIN) else 0
    found = [
        file
        for file in checkpoint.files
        if (file.path or checkpoint.name).endswith((*_ZIPS, ".safetensors")) and file.size >= least
    ]
    if len(found) <= MOST_FILES:
        return tuple(found)
    return tuple(
        found[number * (len(found) - 1) // (MOST_FILES - 1)] for number in range(MOST_FILES)
    )


def _check(checkpoint: Checkpoint, one: FileEntry) -> FileCheck:
    return (
        safetensors_check.check(checkpoint, one)
        if _is_tensors(checkpoint, one)
        else torch_zip.check(checkpoint, one)
    )


def _is_tensors(checkpoint: Checkpoint, one: FileEntry) -> bool:
    return (one.path or checkpoint.name).endswith(".safetensors")


def worst(verdicts: Sequence[CheckpointVerdict]) -> CheckpointVerdict:
    """The first verdict, changed to incomplete if any verdict is, else to unknown if any is, with the reason of that verdict."""
    first = verdicts[0]
    for state in (Completeness.INCOMPLETE, Completeness.UNKNOWN):
        for verdict in verdicts:
            if verdict.state is state:
                return _as(first, state, verdict.why)
    return first


def _unsure(verdict: CheckpointVerdict, why: str) -> CheckpointVerdict:
    return _as(verdict, Completeness.UNKNOWN, why)


def _as(verdict: CheckpointVerdict, state: Completeness, why: str) -> CheckpointVerdict:
    return msgspec.structs.replace(verdict, state=state, why=why)


def unread_files(checkpoint: Checkpoint) -> Iterator[str]:
    """The files that could not be read, each with the reason, as one text."""
    for path, why in sorted(checkpoint.unread.items()):
        yield f"{clean(path or checkpoint.name, 200)} {why}"
