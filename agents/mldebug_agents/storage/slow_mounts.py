"""Joins mounts that have become slow with the ranks that wait for files there: by device number, never by name."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from mldebug.goodput.evidence import RankShares
from mldebug.goodput.sentences import mount_waiters
from mldebug.status.snapshot import RunState
from mldebug.storage.filesystems.operation_counters import METADATA, OPEN, READ
from mldebug.storage.filesystems.state import CollectorState, StorageAlert

ORDER = (READ, OPEN, METADATA)
"""Of several slow operations of a mount the first is told. Slow writes hold up no data."""


def slow_by_device(alarms: Iterable[StorageAlert]) -> dict[str, str]:
    """By device, a sentence that says which of its operations are slow. `alarms`: all alerts about storage."""
    slow = [one for one in alarms if one.device and one.operation in ORDER]
    slow.sort(key=lambda one: -ORDER.index(one.operation))
    return {one.device: one.sentence for one in slow}


def with_slow_mounts(
    shares: Sequence[RankShares], slow: Mapping[str, str], node: str = ""
) -> tuple[RankShares, ...]:
    """The shares with what is slow on the mount for which each rank waits. Ranks of other nodes than `node` stay as they are: their
    devices have other numbers.
    """
    return tuple(_with_slow(one, slow) if one.node in ("", node) else one for one in shares)


def with_waiters(
    parts: Iterable[CollectorState], runs: Iterable[RunState], node: str
) -> tuple[CollectorState, ...]:
    """The results of all collectors, with the ranks that wait for each mount that has become slow. `node`: where these were read."""
    shares = {run.id: (run.name, run.slowness.shares) for run in runs if run.slowness}
    return tuple(
        msgspec.structs.replace(
            part, alarms=tuple(_with_waiters(one, shares, node) for one in part.alarms)
        )
        for part in parts
    )


def _with_waiters(
    alarm: StorageAlert, shares: Mapping[str, tuple[str, Sequence[RankShares]]], node: str
) -> StorageAlert:
    if not alarm.device or alarm.operation not in ORDER:
        return alarm
    every = {
        run: mount_waiters(one, name, node, alarm.device) for run, (name, one) in shares.items()
    }
    return msgspec.structs.replace(
        alarm, waiters={run: words for run, words in every.items() if words}
    )


def _with_slow(one: RankShares, slow: Mapping[str, str]) -> RankShares:
    words = slow.get(one.evidence.mount_device, "")
    if words == one.evidence.mount_slow:
        return one
    return msgspec.structs.replace(
        one, evidence=msgspec.structs.replace(one.evidence, mount_slow=words)
    )
