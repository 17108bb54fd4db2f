"""What an exit for want of space has cut, who fills the filesystem, and whether the next attempt's checkpoint will fit. Pure."""

from collections.abc import Iterator, Sequence

from mldebug.core.redact import safe_line
from mldebug.core.units import size_words
from mldebug.diagnosis.exits.model import CheckpointsAtExit, FilesystemFill

FEW_INODES = 16  # a checkpoint needs one for each of its files


def on_filesystem(
    fill: FilesystemFill, fills: Sequence[FilesystemFill], found: Sequence[CheckpointsAtExit]
) -> tuple[CheckpointsAtExit, ...]:
    """The series of checkpoints (of `found`) that lie on the filesystem `fill`, and not on another one of `fills` that is mounted
    below it.
    """
    return tuple(one for one in found if nearest_mount(one.folder, fills) == fill)


def nearest_mount(path: str, fills: Sequence[FilesystemFill]) -> FilesystemFill | None:
    """The filesystem whose mount point is the longest that contains this path; None where none does."""
    above = (
        one for one in fills if path == one.mount or path.startswith(f"{one.mount.rstrip('/')}/")
    )
    return max(above, key=lambda one: len(one.mount), default=None)


def cut_words(found: Sequence[CheckpointsAtExit]) -> Iterator[str]:
    """One sentence for each checkpoint that was cut: `checkpoint step-4500.pt was cut: 3.1 GiB of about 14 GiB`."""
    for one in found:
        if one.cut:
            of = f" of about {size_words(one.last_bytes)}" if one.last_bytes else ""
            yield f"checkpoint {safe_line(one.cut, 100)} was cut: {size_words(one.cut_bytes)}{of}"


def filled_by(fill: FilesystemFill, found: Sequence[CheckpointsAtExit]) -> Iterator[str]:
    """Who fills the filesystem, as far as it is known: who writes most to it, and the run's own checkpoints."""
    if fill.writer:
        yield safe_line(fill.writer, 300)
    for one in found:
        if one.held > 1:
            where = safe_line(one.folder, 200)
            yield f"{one.held} checkpoints of this run hold {size_words(one.held_bytes)} in {where}"


def next_words(fill: FilesystemFill, found: Sequence[CheckpointsAtExit]) -> str:
    """What the next attempt will meet: `the next attempt will fail alike: /ckpt has 2 GiB left, and a checkpoint needs about 14 GiB; last
    whole: step-4000.pt`; "" where neither the room nor a checkpoint is known.
    """
    last = max((one for one in found if one.last), key=lambda one: one.last_bytes, default=None)
    whole = f"last whole: {safe_line(last.last, 100)}" if last else ""
    if not whole and any(one.cut for one in found):
        whole = "no checkpoint is whole"
    left = _left_words(fill, last.last_bytes if last else 0)
    return "; ".join(part for part in (left, whole) if part)


def freeing_step(fill: FilesystemFill, found: Sequence[CheckpointsAtExit]) -> str:
    """What to free before the next attempt; "" where the next checkpoint fits, or nobody knows."""
    needed = max((one.last_bytes for one in found), default=0)
    if fill.left_after is None or not needed or fill.left_after >= needed:
        return ""
    cut = sum(one.cut_bytes for one in found if one.cut)
    gives = f" (the cut one holds {size_words(cut)})" if cut else ""
    missing = size_words(needed - fill.left_after)
    return f"free {missing} on {safe_line(fill.mount, 200)} before it is started again{gives}"


def _left_words(fill: FilesystemFill, needed: int) -> str:
    mount = safe_line(fill.mount, 200)
    if fill.inodes_left_after is not None and fill.inodes_left_after < FEW_INODES:
        return f"the next attempt will fail alike: {mount} has {fill.inodes_left_after} inodes left, without which no file can be made"
    if fill.left_after is None:
        return f"a checkpoint needs about {size_words(needed)}" if needed else ""
    left = f"{mount} has {size_words(fill.left_after)} left"
    if not needed:
        return f"{left} now"
    needs = f"{left}, and a checkpoint needs about {size_words(needed)}"
    return f"{'the next attempt will fail alike: ' if fill.left_after < needed else ''}{needs}"
