"""Slow mounts joined with the ranks that wait for files there."""

import msgspec

from mldebug.goodput.evidence import RankEvidence, RankShares
from mldebug.goodput.straggler import Slowness
from mldebug.status.snapshot import RunState
from mldebug.storage.filesystems.state import CollectorState, StorageAlert, StorageState
from mldebug.storage.filesystems.visibility import of_user
from mldebug_agents.storage.slow_mounts import slow_by_device, with_slow_mounts, with_waiters


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


def waiting(loading: list[float], node: str = "") -> list[RankShares]:
    shares = [share(rank, "0:52", node, "reads") for rank in range(len(loading))]
    return [
        msgspec.structs.replace(one, loading=part)
        for one, part in zip(shares, loading, strict=True)
    ]


def run(name: str, shares: list[RankShares]) -> RunState:
    return RunState(
        id=f"id of {name}", name=name, launcher="torchrun", slowness=Slowness(shares=tuple(shares))
    )


def waiters(*runs: RunState) -> list[dict[str, str]]:
    part = CollectorState(name="latency", at=1.0, alarms=tuple(ALERTS))
    (found,) = with_waiters([part], runs, "a")
    return [one.waiters for one in found.alarms]


def test_the_alarm_says_who_of_which_run_waits() -> None:
    shares = waiting([0.5] * 8)
    shares[7] = share(7, "0:99", slow="other")
    found = waiters(run("train.py", shares), run("other.py", [share(0, "0:99")]))
    words = {"id of train.py": "7 of 8 ranks of train.py wait for data"}
    assert found == [words] * 3 + [{}, {}]


def test_ranks_of_another_node_and_runs_that_nobody_sampled_are_not_counted() -> None:
    assert waiters(run("train.py", waiting([0.5, 0.5], "b"))) == [{}] * 5
    assert waiters(RunState(id="x", name="x", launcher="torchrun")) == [{}] * 5
    words = {"id of one.py": "the rank of one.py waits for data"}
    assert waiters(run("one.py", waiting([0.5])))[0] == words


def test_who_waits_is_told_to_the_owner_of_the_run_alone() -> None:
    who = {"mine": "2 of 2 ranks of a.py wait for data", "hers": "of b.py"}
    alarm = msgspec.structs.replace(ALERTS[1], waiters=who)
    state = StorageState(parts=(CollectorState(name="latency", at=1.0, alarms=(alarm,)),))
    assert state.alarms[0].whole == "reads; 2 of 2 ranks of a.py wait for data; of b.py"
    (shown,) = of_user(state, 1001, ("mine",)).alarms
    assert shown.whole == "reads; 2 of 2 ranks of a.py wait for data"
