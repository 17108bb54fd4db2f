"""An end for want of space names the filesystem that was full, with its fill, and the rank only as the first to touch it."""

import signal

import msgspec
import pytest

from mldebug.core.model import Confidence, Job, RankIdentity, Verdict
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.model import (
    Accusation,
    AttemptExit,
    CheckpointsAtExit,
    FilesystemFill,
    QuotaFill,
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
        # the last words of torch.save (2.13) on a full ext4
        ("RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 768 vs 662", (ROOT, DATA), Confidence.MEDIUM),
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
        ("RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 768 vs 662", (ROOT, SCRATCH)),
        ("RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 768 vs 662", (ROOT, msgspec.structs.replace(DATA, used_ratio=0.95))),
        ("RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 768 vs 662", (DATA, INODES)),
        ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory", (ROOT, DATA)),
    ],
    ids=["nothing is full", "nearly full", "two are full", "another word of the same file"],
)  # fmt: skip
def test_a_file_that_could_not_be_written_on_names_only_the_one_full_filesystem(
    error: str, fills: tuple[FilesystemFill, ...]
) -> None:
    """torch.save tells nothing of space; its words come of other causes as well (torchforge#568)."""
    finding, plain = judge_exit(ended(error, *fills)).finding, judge_exit(ended(error)).finding
    assert finding is not None
    assert plain is not None
    assert (finding.verdict, finding.confidence, finding.culprits) == (plain.verdict, plain.confidence, plain.culprits)  # fmt: skip
    assert finding.verdict is Verdict.RANK_EXITED


@pytest.mark.parametrize(
    ("error", "fills"),
    [
        ("OSError: [Errno 28] No space left on device: '/data/scratch/x'", (DATA, SCRATCH)),
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


# --- quotas, shared memory, and limits that are no disk's ------------------------------------------------

SHM = FilesystemFill(mount="/dev/shm", line="/dev/shm (shm): 100.0% used, 0 B left", used_ratio=1.0, fstype="tmpfs", age=3.0)  # fmt: skip
NINETY_NINE = FilesystemFill(mount="/home", line="/home: 99.0% used, 9 GiB left", used_ratio=0.99, fstype="ext4")  # fmt: skip


def test_a_used_up_quota_names_the_filesystem_that_has_room() -> None:
    error = "OSError: [Errno 122] Disk quota exceeded: '/data/scratch/x'"
    finding = judge_exit(ended(error, DATA, SCRATCH)).finding
    assert finding is not None
    assert (finding.verdict, finding.confidence) == (Verdict.STORAGE_FAULT, Confidence.HIGH)
    assert finding.summary.startswith("a quota on /data/scratch is used up")
    assert "GiB left, and" not in finding.summary  # the room is not the user's


CUT = CheckpointsAtExit(folder="/data/scratch/ckpt", last="step-40.pt", last_bytes=8 << 20, cut="step-45.pt", cut_bytes=3 << 20)  # fmt: skip
WRITE = "OSError: [Errno 122] Disk quota exceeded"  # `write` tells no path


def test_a_quota_whose_error_has_no_path_is_that_of_the_checkpoint_that_was_cut() -> None:
    finding = judge_exit(ended(WRITE, ROOT, DATA, SCRATCH, checkpoints=(CUT,))).finding
    assert finding is not None
    assert (finding.verdict, finding.confidence) == (Verdict.STORAGE_FAULT, Confidence.MEDIUM)
    assert finding.summary.startswith("a quota on /data/scratch is used up")
    assert "checkpoint step-45.pt was cut: 3 MiB of about 8 MiB" in finding.summary


ALICE = QuotaFill(whose="user alice", used=30 << 20, limit=30 << 20)
TEAM = QuotaFill(whose="group 100", used=1 << 20, limit=1 << 30, inodes=3, inodes_limit=100)
FILES = QuotaFill(whose="project 7", used=5 << 20, inodes=1000, inodes_limit=1000)
PATH_SAID = "OSError: [Errno 122] Disk quota exceeded: '/data/scratch/x'"
NO_ROOM = "OSError: [Errno 28] No space left on device: '/data/scratch/x'"


@pytest.mark.parametrize(
    ("error", "quotas", "words", "look"),
    [
        (PATH_SAID, (ALICE, TEAM), "the quota of user alice on /data/scratch is used up (30 MiB of 30 MiB); ", "quota -s"),
        (WRITE, (TEAM, ALICE), "the quota of user alice on /data/scratch is used up (30 MiB of 30 MiB); ", "quota -s"),
        (PATH_SAID, (TEAM, FILES), "the quota of project 7 on /data/scratch is used up (1,000 of 1,000 inodes); ", "xfs_quota -x"),
        # XFS says it so where a project's is used up
        (NO_ROOM, (TEAM, FILES), "the quota of project 7 on /data/scratch is used up (1,000 of 1,000 inodes); ", "xfs_quota -x"),
        ("OSError: [Errno 28] No space left on device", (FILES,), "the quota of project 7 on /data/scratch is used up", "xfs_quota -x"),
        (PATH_SAID, (msgspec.structs.replace(TEAM, used=1 << 30),), "the quota of group 100 on /data/scratch is used up (1 GiB of 1 GiB, 3 of 100 inodes); ", "quota -g"),
        # whose it was is not known: none is used up, or two are
        (PATH_SAID, (TEAM,), "a quota on /data/scratch is used up (", "quota -s"),
        (PATH_SAID, (ALICE, FILES), "a quota on /data/scratch is used up (", "quota -s"),
    ],
)  # fmt: skip
def test_whose_quota_is_used_up_is_told_where_the_kernel_keeps_it(
    error: str, quotas: tuple[QuotaFill, ...], words: str, look: str
) -> None:
    fill = msgspec.structs.replace(SCRATCH, quotas=quotas)
    finding = judge_exit(ended(error, ROOT, fill)).finding
    assert finding is not None
    assert finding.verdict is Verdict.STORAGE_FAULT
    assert finding.summary.startswith(words)
    assert finding.next_steps[0].startswith(look)
    assert "the next attempt will fail alike while the quota is used up" in finding.summary


@pytest.mark.parametrize(
    ("error", "quotas"),
    [
        (NO_ROOM, (TEAM,)),
        (NO_ROOM, (msgspec.structs.replace(ALICE, used=28 << 20),)),  # it may be anything else
        ("OSError: [Errno 28] No space left on device", ()),
        (WRITE, (TEAM,)),
    ],
)
def test_a_quota_that_is_not_used_up_explains_nothing(
    error: str, quotas: tuple[QuotaFill, ...]
) -> None:
    fill = msgspec.structs.replace(SCRATCH, quotas=quotas)
    finding = judge_exit(ended(error, ROOT, fill)).finding
    assert finding is not None
    assert finding.verdict is Verdict.RANK_EXITED
    assert "alice" not in finding.summary


def test_a_disk_that_is_full_is_named_before_a_quota_on_it() -> None:
    fill = msgspec.structs.replace(DATA, quotas=(ALICE,))
    finding = judge_exit(ended("OSError: [Errno 28] No space left on device: '/data/x'", ROOT, fill)).finding  # fmt: skip
    assert finding is not None
    assert finding.summary.startswith("/data is full")


@pytest.mark.parametrize(
    "series",
    [
        (),
        (msgspec.structs.replace(CUT, cut=""),),
        (CUT, msgspec.structs.replace(CUT, folder="/data/ckpt")),
    ],
    ids=["no checkpoint is known", "none was cut", "on two filesystems"],
)
def test_a_quota_that_may_be_anywhere_names_no_filesystem(series: tuple[CheckpointsAtExit, ...]) -> None:  # fmt: skip
    """Nor the one that is full: what is full refuses with another error."""
    finding = judge_exit(ended(WRITE, ROOT, DATA, SCRATCH, checkpoints=series)).finding
    assert finding is not None
    assert finding.verdict is Verdict.RANK_EXITED
    assert [(one.kind, one.rank) for one in finding.culprits] == [("rank", 1)]


@pytest.mark.parametrize(
    ("error", "lines", "step"),
    [
        ("OSError: [Errno 28] inotify watch limit reached", (), "sysctl fs.inotify"),
        ("OSError: [Errno 28] No space left on device", ('File "inotify_c.py", line 412, in _raise_error',), "sysctl fs.inotify"),
        ("Error: ENOSPC: System limit for number of file watchers reached, watch '/data/src'", (), "sysctl fs.inotify"),
        ("RuntimeError: semget failed: No space left on device", (), "ipcs -u"),
        ("OSError: [Errno 28] No space left on device: '/sys/fs/cgroup/job/cpuset.cpus'", (), "dmesg"),
        ("RuntimeError: create session key: Disk quota exceeded", (), "cat /proc/key-users"),
        ("RuntimeError: ibv_create_qp failed: No space left on device", (), "rdma"),
    ],
)  # fmt: skip
def test_a_limit_that_is_no_disk_names_no_disk(error: str, lines: tuple[str, ...], step: str) -> None:  # fmt: skip
    attempt = ended(error, DATA)
    error_of_rank = RankError(error=error, lines=lines, source="its own output")
    attempt = msgspec.structs.replace(attempt, errors={1: error_of_rank})
    finding = judge_exit(attempt).finding
    assert finding is not None
    assert finding.verdict is Verdict.RANK_EXITED
    assert "/data" not in " ".join(one.kind for one in finding.culprits)
    assert all(one.kind == "rank" for one in finding.culprits)
    assert finding.next_steps[0].startswith(step)
    assert sign(attempt) != NO_SPACE


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: unable to write to file </torch_4711_123_0>: No space left on device (28)",
        "RuntimeError: unable to open shared memory object </torch_1_2> in read-write mode: No space left on device (28)",
    ],
)  # fmt: skip
def test_shared_memory_lies_in_dev_shm_and_not_on_the_full_disk(error: str) -> None:
    finding = judge_exit(ended(error, DATA, SHM)).finding
    assert finding is not None
    assert (finding.verdict, finding.confidence) == (Verdict.STORAGE_FAULT, Confidence.HIGH)
    assert finding.summary.startswith("/dev/shm is full")
    roomy = msgspec.structs.replace(SHM, used_ratio=0.2)
    other = judge_exit(ended(error, DATA, roomy)).finding
    assert other is not None
    assert other.verdict is Verdict.RANK_EXITED  # and /data, which is full, is not named


def bus(*fills: FilesystemFill) -> AttemptExit:
    one = ended("", *fills)
    exits = tuple(
        msgspec.structs.replace(it, status=int(signal.SIGBUS)) if it.rank == 1 else it
        for it in one.exits
    )
    return msgspec.structs.replace(one, exits=exits, errors={})


def test_a_silent_bus_error_beside_a_full_tmpfs_names_it() -> None:
    finding = judge_exit(bus(ROOT, SHM, NINETY_NINE)).finding
    assert finding is not None
    assert (finding.verdict, finding.confidence) == (Verdict.STORAGE_FAULT, Confidence.MEDIUM)
    assert finding.summary.startswith("/dev/shm is full")


@pytest.mark.parametrize("fills", [(ROOT, NINETY_NINE), (msgspec.structs.replace(SHM, used_ratio=0.6),)])  # fmt: skip
def test_a_bus_error_beside_a_disk_that_is_nearly_full_names_none(
    fills: tuple[FilesystemFill, ...],
) -> None:
    finding = judge_exit(bus(*fills)).finding
    assert finding is not None
    assert finding.verdict is Verdict.RANK_EXITED


def test_a_disk_at_99_percent_is_no_cause_of_another_end() -> None:
    finding = judge_exit(ended("ValueError: shard has bad magic", NINETY_NINE, DATA)).finding
    assert finding is not None
    assert finding.verdict is Verdict.RANK_EXITED
    assert "/home" not in finding.summary


# --- what was cut, and what comes next -------------------------------------------------------------------

GIB = 1 << 30
ERROR = "OSError: [Errno 28] No space left on device: '/data/ckpt/step-4500.pt'"
SERIES = CheckpointsAtExit(folder="/data/ckpt", last="step-4000.pt", last_bytes=14 * GIB, cut="step-4500.pt", cut_bytes=3 * GIB, held=9, held_bytes=115 * GIB)  # fmt: skip
AFTER = msgspec.structs.replace(DATA, left_after=2.0 * GIB, inodes_left_after=900, writer="most to it was written by train.py: 1.2 GiB/s")  # fmt: skip


def test_the_cut_checkpoint_and_what_the_next_attempt_meets_are_told() -> None:
    finding = judge_exit(ended(ERROR, AFTER, checkpoints=(SERIES,))).finding
    assert finding is not None
    words = "; ".join(finding.evidence)
    assert "checkpoint step-4500.pt was cut: 3 GiB of about 14 GiB" in finding.summary
    assert "the next attempt will fail alike: /data has 2 GiB left, and a checkpoint needs about 14 GiB; last whole: step-4000.pt" in finding.summary  # fmt: skip
    assert "written by train.py: 1.2 GiB/s" in words
    assert "9 checkpoints of this run hold 115 GiB in /data/ckpt" in words
    assert "free 12 GiB on /data before it is started again (the cut one holds 3 GiB)" in finding.next_steps  # fmt: skip


def test_no_failure_is_foretold_where_the_next_checkpoint_fits() -> None:
    freed = msgspec.structs.replace(AFTER, left_after=40.0 * GIB)
    finding = judge_exit(ended(ERROR, freed, checkpoints=(SERIES,))).finding
    assert finding is not None
    assert "will fail alike" not in finding.summary
    assert "/data has 40 GiB left, and a checkpoint needs about 14 GiB" in finding.summary
    assert not any(one.startswith("free ") for one in finding.next_steps)


def test_without_inodes_the_next_attempt_fails_whatever_room_there_is() -> None:
    none = msgspec.structs.replace(INODES, left_after=40.0 * GIB, inodes_left_after=0)
    finding = judge_exit(ended(ERROR, none, checkpoints=(SERIES,))).finding
    assert finding is not None
    assert "the next attempt will fail alike: /data has 0 inodes left" in finding.summary


def test_checkpoints_on_another_filesystem_are_not_told_of() -> None:
    elsewhere = msgspec.structs.replace(SERIES, folder="/data/scratch/ckpt")
    finding = judge_exit(ended(ERROR, AFTER, SCRATCH, checkpoints=(elsewhere,))).finding
    assert finding is not None
    assert "step-4500.pt was cut" not in finding.summary


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


def test_a_save_that_failed_and_was_caught_is_no_cause_of_a_later_end() -> None:
    text = "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 768 vs 662"
    attempt = ended(text, ROOT, DATA)
    caught = {1: msgspec.structs.replace(attempt.errors[1], caught=True)}
    finding = judge_exit(msgspec.structs.replace(attempt, errors=caught)).finding
    assert finding is not None
    assert finding.verdict is Verdict.RANK_EXITED
