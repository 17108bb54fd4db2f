"""Which checkpoints of a series could be deleted if only the newest whole ones are to stay. Pure; nothing is ever deleted.

The newest whole checkpoint never goes, nor one that a person or a run names, nor what may still be written, nor anything of a
series without a whole one.
"""

from collections.abc import Mapping, Sequence

from mldebug.storage.checkpoints.history import KnownCheckpoint
from mldebug.storage.checkpoints.model import Completeness

NO_NAMES: Mapping[str, str] = {}


def newest_whole(checkpoints: Sequence[KnownCheckpoint]) -> KnownCheckpoint | None:
    """The newest whole checkpoint of a series, by time; None where none is whole."""
    whole = [one for one in checkpoints if one.state is Completeness.COMPLETE]
    return max(whole, key=lambda one: (one.ended, one.step or 0), default=None)


def kept(checkpoints: Sequence[KnownCheckpoint], keep: int) -> tuple[KnownCheckpoint, ...]:
    """The newest `keep` whole checkpoints by time, and those by step, which are others where a run was begun again from an earlier step."""
    whole = [one for one in checkpoints if one.state is Completeness.COMPLETE]
    by_time = sorted(whole, key=lambda one: one.ended)[-keep:]
    by_step = sorted((one for one in whole if one.step is not None), key=lambda one: one.step or 0)[-keep:]  # fmt: skip
    found = {one.name: one for one in (*by_time, *by_step)}
    return tuple(found.values())


def could_go(
    checkpoints: Sequence[KnownCheckpoint], keep: int, needed: Mapping[str, str] = NO_NAMES
) -> tuple[KnownCheckpoint, ...]:
    """The checkpoints of one series that could go if the newest `keep` (1 or more) whole ones stay, the oldest first.

    `needed`: names of checkpoints that must stay, and why. One that is not whole, older than the newest whole one, may always go;
    one of which that is not known only where it is older than all that stay, by time and by step.
    """
    newest = newest_whole(checkpoints)
    stay = kept(checkpoints, max(1, keep))
    if newest is None:
        return ()
    found = []
    for one in checkpoints:
        if one in stay or one.name in needed or one.state is Completeness.WRITING:
            continue
        broken = one.state is Completeness.INCOMPLETE
        if (broken or len(stay) >= keep) and all(_is_older(one, than) for than in ((newest,) if broken else stay)):  # fmt: skip
            found.append(one)
    return tuple(sorted(found, key=lambda one: (one.ended, one.step or 0)))


def _is_older(one: KnownCheckpoint, than: KnownCheckpoint) -> bool:
    if one.step is not None and than.step is not None and one.step > than.step:
        return False
    return one.ended < than.ended or (one.ended == than.ended and _comes_before(one, than))


def _comes_before(one: KnownCheckpoint, than: KnownCheckpoint) -> bool:
    return one.step is not None and than.step is not None and one.step < than.step


def resumed_from(
    checkpoints: Sequence[KnownCheckpoint], started_at: float
) -> KnownCheckpoint | None:
    """The checkpoint from which a run that began at this unix time may have resumed: the newest whole one that was there; None for none."""
    return newest_whole([one for one in checkpoints if one.ended <= started_at])
