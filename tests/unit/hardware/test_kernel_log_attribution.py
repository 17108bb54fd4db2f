"""Whom an event concerns, and the sentence that a person reads at 3 a.m."""

import msgspec
import pytest

from mldebug.core.model import Job, LostRank, RankIdentity
from mldebug.hardware.gpu.rank_join import JoinEvidence, RankGpu, RankGpuMap
from mldebug.hardware.kernel_log.attribution import (
    RankEvent,
    RankOwner,
    gpu_owners,
    join,
    process_owners,
    sentence,
)
from mldebug.hardware.kernel_log.bursts import Burst
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind, Origin
from shared.hardware.kernellines import fold

GPU, SECOND_GPU = "0000:3b:00.0", "0000:86:00.0"
PIDS = {
    700: RankOwner(run="a1", rank=3, started_at=50.0),
    701: RankOwner(run="a1", rank=4, child=True),
}
DEVICES = {GPU: (RankOwner(run="a1", rank=3, started_at=50.0),), SECOND_GPU: (RankOwner(run="a1", rank=4), RankOwner(run="b2", rank=0))}  # fmt: skip


def xid(number: int, at: float = 100.0, pid: int | None = None, device: str = GPU) -> KernelEvent:
    return KernelEvent(kind=KernelEventKind.XID, at=at, xid=number, pid=pid, device=device, text=f"Xid {number}")  # fmt: skip


def whom(*events: KernelEvent, **how: bool) -> list[tuple[str, int | None, str]]:
    return [(one.run, one.rank, one.by) for one in join(fold(events), PIDS, DEVICES, **how)]


# --- whom ----------------------------------------------------------------------------------------


def test_the_process_that_the_line_names_decides() -> None:
    assert whom(xid(31, pid=701)) == [("a1", 4, "child")]
    assert whom(xid(31, pid=700, device=SECOND_GPU)) == [("a1", 3, "process")]


def test_without_a_known_process_the_gpu_decides_for_all_its_ranks() -> None:
    assert whom(xid(79)) == [("a1", 3, "gpu")]
    assert whom(xid(79, pid=1)) == [("a1", 3, "gpu")]
    assert whom(xid(79, device=SECOND_GPU)) == [("a1", 4, "gpu"), ("b2", 0, "gpu")]


def test_what_concerns_nobody_is_about_the_node() -> None:
    assert whom(xid(79, device="0000:99:00.0")) == [("", None, "node")]
    assert whom(KernelEvent(kind=KernelEventKind.NFS_NOT_RESPONDING, at=1.0, device="nas")) == [("", None, "node")]  # fmt: skip


def test_a_pid_that_was_given_anew_since_is_somebody_elses() -> None:
    assert whom(xid(31, at=20.0, pid=700)) == [("", None, "node")]
    assert whom(xid(31, at=49.0, pid=700)) == [
        ("a1", 3, "process")
    ]  # the clocks may differ a little


def test_an_agent_in_another_pid_namespace_does_not_compare_pids() -> None:
    """Its rank has the pid 700, and so has some process of the host: only the GPU tells."""
    assert whom(xid(31, pid=700, device=SECOND_GPU), first_namespace=False) == [
        ("a1", 4, "gpu"),
        ("b2", 0, "gpu"),
    ]
    oom = KernelEvent(kind=KernelEventKind.OOM_KILL, at=60.0, pid=700)
    assert whom(oom, first_namespace=False) == [("", None, "node")]
    assert whom(oom) == [("a1", 3, "process")]


def test_a_burst_that_names_two_ranks_concerns_both() -> None:
    assert whom(xid(31, pid=700), xid(45, 100.5, pid=701), xid(43, 101.0, pid=700)) == [
        ("a1", 3, "process"),
        ("a1", 4, "child"),
    ]


def test_owners_are_ranks_their_children_and_those_that_are_lost() -> None:
    job = Job(
        id="a1", name="train.py", launcher="torchrun",
        ranks=(RankIdentity(rank=3, world_size=5, pid=700, started_at=50.0),),
        lost=(LostRank(rank=4, pid=800, leftovers=(801,)), LostRank(rank=2)),
    )  # fmt: skip

    assert process_owners([job], {700: (701, 702)}) == {
        700: RankOwner(run="a1", rank=3, started_at=50.0),
        701: RankOwner(run="a1", rank=3, started_at=50.0, child=True),
        702: RankOwner(run="a1", rank=3, started_at=50.0, child=True),
        800: RankOwner(run="a1", rank=4, started_at=50.0),
        801: RankOwner(run="a1", rank=4, started_at=50.0, child=True),
    }


def test_a_kill_of_hours_ago_is_none_of_a_lost_rank_or_a_child_with_that_pid() -> None:
    rank = RankIdentity(rank=3, world_size=5, pid=700, started_at=5000.0)
    lost = (LostRank(rank=4, pid=800, leftovers=(801,)),)
    job = Job(id="a1", name="x", launcher="y", started_at=4990.0, ranks=(rank,), lost=lost)
    owners = process_owners([job], {700: (701,)})

    def of(pid: int, at: float) -> tuple[str, int | None]:
        (one,) = join(
            fold([KernelEvent(kind=KernelEventKind.OOM_KILL, at=at, pid=pid)]), owners, {}
        )
        return one.run, one.rank

    assert [of(pid, 100.0) for pid in (701, 800, 801)] == [("", None)] * 3
    assert [of(pid, 5001.0) for pid in (701, 800, 801)] == [("a1", 3), ("a1", 4), ("a1", 4)]


def test_owners_of_a_gpu_are_the_ranks_of_all_jobs_on_it() -> None:
    first = Job(id="a1", name="x", launcher="y", ranks=(RankIdentity(rank=3, world_size=5, pid=700, started_at=50.0),))  # fmt: skip
    second = Job(id="b2", name="x", launcher="y")
    gpu = RankGpu(rank=3, uuid="GPU-1", index=0, bus_id="00000000:3B:00.0", evidence=JoinEvidence.COMPUTE_PROCESS)  # fmt: skip
    nowhere = msgspec.structs.replace(gpu, rank=9, bus_id="")
    joined = [(first, RankGpuMap(ranks=(gpu, nowhere))), (second, RankGpuMap(ranks=(msgspec.structs.replace(gpu, rank=0),)))]  # fmt: skip

    assert gpu_owners(joined) == {
        GPU: (RankOwner(run="a1", rank=3, started_at=50.0), RankOwner(run="b2", rank=0))
    }


def test_a_rank_that_only_a_convention_puts_on_a_gpu_is_probably_there() -> None:
    job = Job(id="a1", name="x", launcher="y")
    gpu = RankGpu(rank=3, uuid="GPU-1", index=0, bus_id="00000000:3B:00.0", evidence=JoinEvidence.ENVIRONMENT)  # fmt: skip
    (event,) = join(fold([xid(79)]), {}, gpu_owners([(job, RankGpuMap(ranks=(gpu,)))]))

    assert (event.rank, event.by) == (3, "environment")
    assert sentence(event).endswith(f"on GPU {GPU}, probably rank 3")


# --- the sentence --------------------------------------------------------------------------------


def sentence_of(*events: KernelEvent, at: float | None = None, frame: str = "") -> str:
    (event, *_) = join(fold(events), PIDS, DEVICES)
    return sentence(event, at, frame)


@pytest.mark.parametrize(
    ("stalled", "when"),
    [
        (114.0, "14 s before the stall"),
        (100.2, "as the stall began"),
        (88.0, "12 s after the stall began"),
        (700.0, "10 min before the stall"),
    ],
)
def test_an_xid_its_rank_and_its_time(stalled: float, when: str) -> None:
    assert sentence_of(xid(79), at=stalled) == f"Xid 79 (GPU has fallen off the bus) on GPU {GPU}, rank 3, {when}"  # fmt: skip


def test_the_last_python_frame() -> None:
    assert sentence_of(xid(43, pid=700), frame="forward (attention.py:212)") == (
        "Xid 43 (the GPU stopped processing: a channel was reset) on GPU 0000:3b:00.0, rank 3,"
        " last Python frame forward (attention.py:212)"
    )


def test_what_followed_and_how_often() -> None:
    events = [xid(95, 100.0 + number) for number in range(5)]

    assert sentence_of(*events, xid(45, 104.5), xid(43, 104.6)) == (
        "Xid 95 (uncontained memory error: all programs on this GPU are affected) followed by Xid 45, 43 on GPU"
        " 0000:3b:00.0, rank 3, 7 errors within 5 s"
    )


def test_the_drivers_own_advice() -> None:
    event = KernelEvent(kind=KernelEventKind.XID, at=1.0, xid=154, device="0000:99:00.0", recovery="GPU Reset Required")  # fmt: skip

    assert sentence_of(event) == "Xid 154 (GPU Reset Required) on GPU 0000:99:00.0"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            KernelEvent(kind=KernelEventKind.OOM_KILL, at=60.0, pid=701, process="python", scope="cgroup", rss_bytes=81 << 30),
            "the kernel killed a process for memory (81.0 GiB resident, at the limit of its cgroup), a child of rank 4",
        ),
        (
            KernelEvent(kind=KernelEventKind.OOM_KILL, at=60.0, pid=9, process="python", scope="node", rss_bytes=3 << 20),
            "the kernel killed a process for memory (3.0 MiB resident), pid 9 python",
        ),
        (
            KernelEvent(kind=KernelEventKind.HUNG_TASK, at=60.0, pid=700, seconds=245),
            "a process hangs in the kernel (for 245 s), rank 3",
        ),
        (
            KernelEvent(kind=KernelEventKind.NFS_NOT_RESPONDING, at=60.0, device="10.0.0.5"),
            "an NFS server does not respond on server 10.0.0.5",
        ),
        (
            KernelEvent(kind=KernelEventKind.SXID, at=60.0, xid=24007, severity="fatal", device="0000:a9:00.0"),
            "SXid 24007 (fatal error of an NVSwitch) on switch 0000:a9:00.0",
        ),
        (
            KernelEvent(kind=KernelEventKind.GPU_LOST, at=60.0, xid=79, device=SECOND_GPU),
            f"Xid 79 (GPU has fallen off the bus) on GPU {SECOND_GPU}, rank 4",
        ),
    ],
)  # fmt: skip
def test_other_events(event: KernelEvent, words: str) -> None:
    assert sentence_of(event) == words


def test_a_drill_is_called_one() -> None:
    event = msgspec.structs.replace(xid(79), origin=Origin.USER_SPACE)

    assert sentence_of(event, at=110.0).endswith(
        "rank 3, written by a program and not by the kernel, 10 s before the stall"
    )


def test_a_server_that_answers_again() -> None:
    down = KernelEvent(kind=KernelEventKind.NFS_NOT_RESPONDING, at=60.0, device="nas")
    up = KernelEvent(kind=KernelEventKind.NFS_OK, at=62.0, device="nas")

    assert sentence_of(down, up) == "an NFS server does not respond on server nas, responds again"


@pytest.mark.parametrize("kind", list(KernelEventKind))
def test_every_kind_has_words(kind: KernelEventKind) -> None:
    event = KernelEvent(kind=kind, at=1.0, xid=79 if kind in (KernelEventKind.XID, KernelEventKind.GPU_LOST, KernelEventKind.SXID) else None)  # fmt: skip
    burst = Burst(root=event, first_at=1.0, last_at=1.0, count=1, last_kind=kind)

    assert len(sentence(RankEvent(burst=burst))) > 8
