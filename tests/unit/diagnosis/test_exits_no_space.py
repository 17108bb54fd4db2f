"""An end for want of space names the filesystem that was full, with its fill, and the rank only as the first to touch it."""

import signal

import msgspec
import pytest

from mldebug.core.model import Confidence, Job, RankIdentity, Verdict
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.model import (
    Accusation,
    AttemptExit,
    FilesystemFill,
    RankError,
    RankExit,
)
from mldebug_agents.incidents.exits.similar_runs import NO_SPACE, sign_of

ONE, TERM = 1 << 8, int(signal.SIGTERM)
DATA = FilesystemFill(mount="/data", line="nfs01:/data: 100.0% used, 0 B left, inodes 12%", used_ratio=1.0, age=7.0)  # fmt: skip
SCRATCH = FilesystemFill(mount="/data/scratch", line="/data/scratch: 41.0% used, 2.0 TiB left", used_ratio=0.41)  # fmt: skip
INODES = FilesystemFill(mount="/data", line="/data: 40.0% used, inodes 100%", used_ratio=0.4, inodes_used_ratio=1.0)  # fmt: skip
ROOT = FilesystemFill(mount="/", line="/: 60.0% used, 40 GiB left", used_ratio=0.6)


def ended(error: str, *fills: FilesystemFill, others: str = "", **more: object) -> AttemptExit:
    """Rank 1 of two fails with this error; rank 0 is ended, or fails with `others`."""
    ranks = tuple(RankIdentity(rank=r, world_size=2, pid=100 + r, node="n1") for r in range(2))
    statuses = {1: ONE, 0: ONE if others else TERM}
    exits = tuple(
        RankExit(rank=r, pid=100 + r, at=1000.0 + n, moment=n, status=statuses[r])
        for n, r in enumerate((1, 0))
    )
    errors = {1: RankError(error=error, source="its own output")}
    errors |= {0: RankError(error=others, source="its own output")} if others else {}
    job = Job(id="j", name="train.py", launcher="torchrun", world_size=2, ranks=ranks)
    found = AttemptExit(job=job, identities=ranks, exits=exits, errors=errors, filesystems=fills)
    return msgspec.structs.replace(found, **more)


@pytest.mark.parametrize(
    ("error", "fills", "confidence"),
    [
        ("OSError: [Errno 28] No space left on device: '/data/ckpt/step-7.pt'", (ROOT, DATA, SCRATCH), Confidence.HIGH),
        ("OSError: [Errno 28] No space left on device: '/data/ckpt/step-7.pt'", (ROOT, INODES), Confidence.HIGH),
        # `write` tells no name: the only one that is full
        ("OSError: [Errno 28] No space left on device", (ROOT, DATA, SCRATCH), Confidence.MEDIUM),
        ("RuntimeError: PytorchStreamWriter failed writing file data/1: file write failed", (ROOT, DATA), Confidence.MEDIUM),
    ],
)  # fmt: skip
def test_the_full_filesystem_is_named_with_its_fill(
    error: str, fills: tuple[FilesystemFill, ...], confidence: Confidence
) -> None:
    finding = judge_exit(ended(error, *fills)).finding
    assert finding is not None
    assert (finding.verdict, finding.confidence) == (Verdict.STORAGE_FAULT, confidence)
    assert [(one.kind, one.rank) for one in finding.culprits] == [("mount", 1)]
    assert "/data is full" in finding.summary
    assert any(fill.line in finding.summary for fill in fills if fill.mount == "/data")
    assert finding.next_steps[0] == "df -h /data; df -i /data"


def test_all_that_fail_for_want_of_space_name_the_filesystem_and_no_rank() -> None:
    error = "OSError: [Errno 28] No space left on device: '/data/ckpt/step-7.pt'"
    finding = judge_exit(ended(error, DATA, others=error)).finding
    assert finding is not None
    assert finding.verdict is Verdict.STORAGE_FAULT
    assert [(one.kind, one.rank) for one in finding.culprits] == [("mount", None)]


@pytest.mark.parametrize(
    ("error", "fills"),
    [
        ("OSError: [Errno 28] No space left on device: '/data/scratch/x'", (DATA, SCRATCH)),
        ("OSError: [Errno 122] Disk quota exceeded: '/data/scratch/x'", (DATA, SCRATCH)),
    ],
)
def test_one_that_has_space_by_now_is_a_remark(
    error: str, fills: tuple[FilesystemFill, ...]
) -> None:
    finding = judge_exit(ended(error, *fills)).finding
    assert finding is not None
    assert finding.verdict is Verdict.RANK_EXITED
    assert any("or a quota is used up" in fact for fact in finding.evidence)


NEAR = msgspec.structs.replace(DATA, line="/data: 93.0% used, 1.2 GiB left", used_ratio=0.93, age=25.0)  # fmt: skip


def test_one_that_was_nearly_full_before_is_named_less_surely() -> None:
    error = "OSError: [Errno 28] No space left on device: '/data/ckpt/step-7.pt'"
    finding = judge_exit(ended(error, NEAR, ROOT)).finding
    assert finding is not None
    assert (finding.verdict, finding.confidence) == (Verdict.STORAGE_FAULT, Confidence.MEDIUM)
    assert "/data was nearly full (/data: 93.0% used" in finding.summary


def test_nearly_full_is_not_enough_without_a_path() -> None:
    finding = judge_exit(ended("OSError: [Errno 28] No space left on device", NEAR, ROOT)).finding
    assert finding is not None
    assert finding.verdict is Verdict.RANK_EXITED


def test_a_path_on_the_root_may_be_a_link_to_the_only_one_that_is_full() -> None:
    error = "OSError: [Errno 28] No space left on device: '/scratch/ckpt/step-7.pt'"
    finding = judge_exit(ended(error, DATA, ROOT)).finding
    assert finding is not None
    assert (finding.verdict, finding.confidence) == (Verdict.STORAGE_FAULT, Confidence.MEDIUM)
    assert "/data is full" in finding.summary


def test_what_another_rank_quotes_tells_of_space_as_well() -> None:
    quoted = "OSError: [Errno 28] No space left on device: '/data/ckpt/__1_0.distcp'"
    words = Accusation(ranks=(1,), did=f"raised {quoted}", quoted=quoted)
    job = ended("", DATA)
    error = RankError(error="CheckpointException: x", blames_peer=True, accuses=words)
    exits = tuple(msgspec.structs.replace(one, status=ONE if one.rank == 0 else TERM) for one in job.exits)  # fmt: skip
    finding = judge_exit(msgspec.structs.replace(job, errors={0: error}, exits=exits)).finding
    assert finding is not None
    assert finding.verdict is Verdict.STORAGE_FAULT
    assert [(one.kind, one.rank) for one in finding.culprits] == [("mount", 1)]


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: no space left in the batch",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
    ],
)
def test_a_full_filesystem_is_no_cause_of_another_error(error: str) -> None:
    finding = judge_exit(ended(error, DATA)).finding
    assert finding is not None
    assert finding.verdict is Verdict.RANK_EXITED


def test_two_full_ones_and_no_path_name_neither() -> None:
    other = msgspec.structs.replace(DATA, mount="/home")
    finding = judge_exit(ended("OSError: [Errno 28] No space left on device", DATA, other)).finding
    assert finding is not None
    assert finding.verdict is Verdict.RANK_EXITED


# --- tasks of one job array ------------------------------------------------------------------------------


def sign(attempt: AttemptExit) -> str:
    return sign_of(attempt, judge_exit(attempt))


def test_tasks_that_find_no_space_failed_alike() -> None:
    """Each writes a file of its own, by another library; by the time of the last one somebody has freed some."""
    full = "OSError: [Errno 28] No space left on device: '/data/{}.pt'"
    tasks = [
        ended(full.format("lr-high"), ROOT, DATA),
        ended(full.format("lr-low"), ROOT, DATA, others=full.format("lr-low-optimizer")),
        ended("RuntimeError: PytorchStreamWriter failed writing file data/1: file write failed", ROOT, DATA),
        ended(full.format("warmup"), ROOT, msgspec.structs.replace(DATA, used_ratio=0.5)),
        ended(full.format("none-known")),
    ]  # fmt: skip

    assert {sign(one) for one in tasks} == {NO_SPACE}
    assert sign(ended("ValueError: shard has bad magic", ROOT, DATA)) != NO_SPACE
    assert sign(ended("KeyError: 'lr-high'")) != sign(ended("KeyError: 'lr-low'"))
