"""Most loaders have several workers, and what one of them waits for holds up the others, too: they are told as one is."""

import msgspec
import pytest

from mldebug.core.model import Judgement, ProcessCapture
from mldebug.diagnosis.diagnose import diagnose
from shared.diagnosis.builders import moving, process
from unit.diagnosis.test_nearest_causes import (
    FIFO,
    IDLE_WORKER,
    SHARD,
    WORKER,
    load,
    of,
    stands,
)

OTHER = msgspec.structs.replace(
    SHARD, target="/scratch/part-2", mount="/scratch", source="nfs02:/scratch"
)
READS = stands(*WORKER, wchan="rpc_wait_bit_killable", state="D", syscall="read", on=SHARD)
PAGE = stands(*WORKER, wchan="folio_wait_bit_common", state="D", on=SHARD)
OPENS = stands(*WORKER, wchan="wait_for_partner", syscall="openat", on=FIFO)
SLEEPS = stands(*WORKER, wchan="hrtimer_nanosleep")
IDLE = stands(*IDLE_WORKER)
COMPUTES = process(*WORKER, state="R", wchan="", active=True, gil=True, move=moving(0.9))


def judged(*workers: ProcessCapture) -> Judgement:
    return diagnose([of(*load(*workers))])


@pytest.mark.parametrize("beside", [(), (IDLE,), (IDLE, IDLE)])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("worker", "verdict", "kind", "confidence"),
    [
        (READS, "storage_fault", "mount", "high"),
        (OPENS, "dataloader_stalled", "worker", "high"),
        (SLEEPS, "dataloader_stalled", "worker", "high"),
    ],
    ids=["read a mount that does not answer", "open a FIFO", "sleep"],
)
def test_workers_that_all_do_the_same_are_told_as_one_is(
    worker: ProcessCapture, verdict: str, kind: str, confidence: str, count: int, beside: tuple[ProcessCapture, ...]
) -> None:  # fmt: skip
    found = judged(*[worker] * count, *beside).diagnosis
    (alone,) = judged(worker).diagnosis.culprits
    assert (str(found.verdict), str(found.confidence)) == (verdict, confidence)
    (culprit,) = found.culprits
    assert (culprit.kind, culprit.rank, culprit.pid) == (kind, 3, alone.pid)
    others = f" (and {count - 1} other worker{'s' if count > 2 else ''} alike)"
    assert (others in found.summary) == (count > 1), found.summary


def test_a_worker_in_a_read_and_one_that_waits_for_its_page_wait_for_the_same_mount() -> None:
    for workers in ((READS, PAGE), (PAGE, READS)):
        found = judged(*workers).diagnosis
        assert (str(found.verdict), found.culprits[0].kind) == ("storage_fault", "mount")


def test_workers_that_all_compute_are_as_busy_as_one() -> None:
    """Of a slow transformation all workers are full: nothing stands."""
    for count in (1, 2, 4):
        found = judged(*[COMPUTES] * count).diagnosis
        assert str(found.verdict) == "rank_busy", (count, found)


@pytest.mark.parametrize("workers", [(READS, COMPUTES), (OPENS, SLEEPS), (READS, OPENS), (COMPUTES, SLEEPS)])  # fmt: skip
def test_of_workers_that_do_different_things_none_is_blamed(
    workers: tuple[ProcessCapture, ...],
) -> None:
    found = judged(*workers).diagnosis
    assert str(found.verdict) == "dataloader_stalled"
    assert [(one.kind, one.rank) for one in found.culprits] == [("rank", 3)]
    words = "\n".join(found.evidence)
    assert "worker 900" in words
    assert "worker 901" in words


def test_workers_that_stand_on_two_mounts_accuse_none_of_them_alone() -> None:
    other = stands(*WORKER, wchan="rpc_wait_bit_killable", state="D", syscall="read", on=OTHER)
    for workers in ((READS, other), (other, READS)):
        found = judged(*workers).diagnosis
        assert str(found.verdict) == "dataloader_stalled"
        assert [one.rank for one in found.culprits] == [3]
        words = "\n".join(found.evidence)
        assert "/data/shard-17" in words
        assert OTHER.target in words
