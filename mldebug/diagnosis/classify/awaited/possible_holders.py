"""Ranks that wait for a lock whose holder is not known, while another rank stands in the function that takes it, after the line that takes it.

Stack dumps made by other tools do not say who holds a lock. A rank past that line may hold it, so
those that wait are not blamed; nor is that rank, since it may have released the lock.
"""

import re
from collections.abc import Iterable

import msgspec

from mldebug.capture.frames import bare, owner_of, principal, python_frames
from mldebug.capture.packages import Owner
from mldebug.core.model import ClassifiedRank, Frame, Role
from mldebug.core.ranksets import fold_ranks
from mldebug.diagnosis.classify.awaited.file_locks import HELD

_LOCK = re.compile(r"(?=\w+\Z)(?:\w*_)?(?:f?lockf?|locked|acquire|exclusive)(?:_\w+)?|\w*Lock")
"""Functions that take a lock, by their names."""
_BATON = re.compile(r"(?:.*/)?torch/utils/file_baton\.py")
_BETWEEN_PROCESSES = re.compile(r"(?:.*/)?multiprocess(?:ing)?/synchronize\.py")
_ENTERS = "__enter__"


def behind_locks(ranks: list[ClassifiedRank]) -> list[ClassifiedRank]:
    """The ranks, with the class "waiting" for those that want a lock which another rank may hold."""
    wanting = {rank.rank: place for rank in ranks if (place := _taken_at(rank)) is not None}
    others = [rank for rank in ranks if rank.rank not in wanting]
    return [
        _behind(rank, wanting[rank.rank], others) if rank.rank in wanting else rank
        for rank in ranks
    ]


def _behind(rank: ClassifiedRank, place: Frame, others: Iterable[ClassifiedRank]) -> ClassifiedRank:
    builds = any(_BATON.fullmatch(frame.file) for frame in _frames(rank))
    holders = tuple(one.rank for one in others if _is_past(one, place, anywhere=builds))
    if not holders:
        return rank
    who = f"rank{'s' if len(holders) > 1 else ''} {fold_ranks(holders)}"
    stands = "stands" if len(holders) == 1 else "stand"
    wants = f"waits for a lock in {rank.is_.site}"
    wants = rank.is_.doing if rank.is_.name in ("file_lock", "flock", "lock") else wants
    doing = f"{wants}, which {who} may hold"
    if builds:
        doing = f"waits until {who} has built an extension, in {rank.is_.site}"
    waits = msgspec.structs.replace(
        rank.is_,
        name=HELD,
        role=Role.WAITING,
        doing=doing,
        direct=False,
        holders=holders if builds else (),
        why=(*rank.is_.why, f"{who} {stands} in {_name(place)}, where the lock is taken"),
    )
    return msgspec.structs.replace(rank, is_=waits)


def _name(place: Frame) -> str:
    """The function, or the file where the lock is taken outside of any function."""
    return place.file if bare(place) == "<module>" else bare(place)


def _taken_at(rank: ClassifiedRank) -> Frame | None:
    """The frame that takes the lock which the rank wants; None where it wants none, or its holder is known."""
    process = rank.capture.process if rank.capture else None
    if process is None or (process.lock is not None and process.lock.holders):
        return None
    frames = _frames(rank)
    if not frames or not _wants_lock(rank, frames):
        return None
    pairs = zip(frames, (*frames[1:], None), strict=True)
    return next((one for one, outer in pairs if not _takes(one, outer)), None)


def _wants_lock(rank: ClassifiedRank, frames: tuple[Frame, ...]) -> bool:
    if rank.is_.name == "lock":
        return any(_BETWEEN_PROCESSES.fullmatch(frame.file) for frame in frames)
    if rank.is_.name in ("idle", "poll", "sleep"):
        return _LOCK.fullmatch(bare(frames[0])) is not None
    return rank.is_.name in ("file_lock", "flock")


def _takes(frame: Frame, outer: Frame | None) -> bool:
    """Whether the frame belongs to taking the lock, and not yet to the code that wants it."""
    if owner_of(frame) is Owner.LIBRARY or _LOCK.fullmatch(bare(frame)):
        return not frame.file.endswith("cpp_extension.py")
    return _ENTERS in (bare(frame), bare(outer) if outer else "")


def _is_past(rank: ClassifiedRank, place: Frame, *, anywhere: bool) -> bool:
    """Does it stand in that function, below that line or in what that line has called?"""
    where = (place.path or place.file, place.function)
    return any(
        (frame.path or frame.file, frame.function) == where
        and (anywhere or frame.line > place.line > 0 or (frame.line == place.line and index))
        for index, frame in enumerate(_frames(rank))
    )


def _frames(rank: ClassifiedRank) -> tuple[Frame, ...]:
    process = rank.capture.process if rank.capture else None
    stack = principal(process.stacks or process.native, process.pid) if process else None
    return python_frames(stack.frames) if stack else ()
