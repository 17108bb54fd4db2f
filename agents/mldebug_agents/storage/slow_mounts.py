"""Joins mounts that have become slow with the ranks that wait for files there: by device number, never by name."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from mldebug.goodput.rank_shares import RankShares
from mldebug.storage.filesystems.operation_counters import METADATA, OPEN, READ
from mldebug.storage.filesystems.state import StorageAlert

ORDER = (READ, OPEN, METADATA)
"""Of several slow operations of a mount the first is told. Slow writes hold up no data."""


def slow_by_device(alarms: Iterable[StorageAlert]) -> dict[str, str]:
    """What is slow on each device, as a sentence. `alarms`: all of storage."""
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


def _with_slow(one: RankShares, slow: Mapping[str, str]) -> RankShares:
    words = slow.get(one.evidence.mount_device, "")
    if words == one.evidence.mount_slow:
        return one
    return msgspec.structs.replace(
        one, evidence=msgspec.structs.replace(one.evidence, mount_slow=words)
    )
