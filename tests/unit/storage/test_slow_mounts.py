"""Slow mounts joined with the ranks that wait for files there."""

from mldebug.goodput.evidence import RankEvidence
from mldebug.goodput.rank_shares import RankShares
from mldebug.storage.filesystems.state import StorageAlert
from mldebug_agents.storage.slow_mounts import slow_by_device, with_slow_mounts


def alert(device: str, operation: str, words: str) -> StorageAlert:
    return StorageAlert(kind="slow", subject="/data", sentence=words, device=device, operation=operation)  # fmt: skip


def share(rank: int, device: str, node: str = "", slow: str = "") -> RankShares:
    evidence = RankEvidence(file_waiting=0.5, mount="/data (nfs4)", mount_device=device, mount_slow=slow)  # fmt: skip
    return RankShares(rank=rank, node=node, samples=100, waiting=0.1, evidence=evidence)


ALERTS = [
    alert("0:52", "metadata", "metadata"),
    alert("0:52", "read", "reads"),
    alert("0:52", "open", "opens"),
    alert("0:53", "write", "writes"),
    StorageAlert(kind="too_full", subject="/data", sentence="full", device="0:54"),
]


def test_reads_are_told_before_opens_and_slow_writes_hold_up_no_data() -> None:
    assert slow_by_device(ALERTS) == {"0:52": "reads"}
    assert slow_by_device(ALERTS[::-1]) == {"0:52": "reads"}
    assert slow_by_device(ALERTS[:1]) == {"0:52": "metadata"}


def test_only_ranks_that_wait_on_that_device_get_it_and_lose_it_when_it_is_over() -> None:
    shares = [share(0, "0:52"), share(1, "0:99"), share(2, "", slow="old"), share(3, "0:52", node="b")]  # fmt: skip
    found = with_slow_mounts(shares, slow_by_device(ALERTS), "a")
    assert [one.evidence.mount_slow for one in found] == ["reads", "", "", ""]
    assert [one.evidence.mount_slow for one in with_slow_mounts(found, {}, "a")] == [""] * 4
    other = with_slow_mounts([share(0, "0:52", node="b", slow="told by b")], {}, "a")
    assert other[0].evidence.mount_slow == "told by b"
