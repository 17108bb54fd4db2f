"""When a GPU is named: a fatal fault, of the right rank, at the right time; and kills for memory. Beside hangs and ends."""

import signal
from typing import Any

import msgspec
import pytest

from mldebug.core.model import (
    Confidence,
    Diagnosis,
    Fault,
    Job,
    LogTail,
    LostRank,
    NodeCapture,
    RankIdentity,
    Verdict,
)
from mldebug.diagnosis.classify.gpus.gpu_faults import BEFORE, LAG, PROMPT, UNDATED
from mldebug.diagnosis.diagnose import diagnose
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.model import AttemptExit, RankError, RankExit
from mldebug.hardware.gpu.expected import GpuCount, KnownGpu, MissingGpu
from mldebug.hardware.gpu.readings import GpuReading, LostGpu
from mldebug.hardware.health.faults import (
    faults_of_count,
    faults_of_events,
    faults_of_memory,
    gpus_by_address,
)
from mldebug.hardware.health.new_errors import LOW_READS, ErrorCount, NewErrors
from mldebug.hardware.kernel_log.attribution import RankOwner, join
from mldebug.hardware.kernel_log.xids import ACTION_WORDS, catalogue, xid_row
from shared.diagnosis.builders import WAITER, capture, process, rank, still
from shared.hardware.kernellines import fold, parse_line

TAKEN = 1_700_000_000.0  # builders.capture
QUIET = 100.0
STOPPED = TAKEN - QUIET
SLEEPER = ("slow_data_loader (train.py:7)", "<module> (train.py:50)")
GPU3 = {"0000:3b:00.0": ("GPU-3", 3)}


def fault(number: int | None = 1, at: float = STOPPED, **more: Any) -> Fault:
    """Xid 79 of the GPU of a rank, just as the job stopped."""
    facts = {"kind": "xid", "words": "Xid 79 (fallen off the bus) on GPU 0000:3b:00.0", "code": "xid_79", "tier": "fatal",
            "node": "n1", "by": "gpu" if number is not None else "node", "uuid": "GPU-3", "gpu": 3,
            "bus_id": "0000:3b:00.0", "advice": "drain and reboot the node"}  # fmt: skip
    return Fault(rank=number, at=at, **(facts | more))


def waiting(number: int) -> Any:
    return rank(number, process(*WAITER, pid=100 + number, move=still()))


def sleeping(number: int) -> Any:
    what = process(*SLEEPER, pid=100 + number, wchan="hrtimer_nanosleep", move=still(), source="time.sleep(9)")  # fmt: skip
    return rank(number, what)


def diagnosed(
    *faults: Fault, ranks: tuple[Any, ...] = (), quiet: float = QUIET, **job: Any
) -> Diagnosis:
    """The diagnosis of four ranks that all wait (or of these) with these faults."""
    node_capture: NodeCapture = capture(*(ranks or tuple(map(waiting, range(4)))), **job)
    return diagnose(
        [msgspec.structs.replace(node_capture, faults=faults, quiet_seconds=quiet)]
    ).diagnosis


# --- hangs -----------------------------------------------------------------------------------------------


def test_all_wait_and_one_gpu_is_off_the_bus() -> None:
    found = diagnosed(fault())
    (culprit,) = found.culprits

    assert (found.verdict, found.confidence) == (Verdict.GPU_FAULT, Confidence.HIGH)
    assert (culprit.kind, culprit.rank, culprit.node, culprit.pid) == ("gpu", 1, "n1", 101)
    assert found.summary.startswith("Xid 79 (fallen off the bus) on GPU 0000:3b:00.0 (rank 1); ranks 0-3 wait")  # fmt: skip
    assert found.next_steps[0] == "drain and reboot the node  # xid_79"
    assert "0 s before the job stopped" in found.evidence[0]


WHEN = [
    (STOPPED - BEFORE - 1, None),
    (STOPPED - BEFORE, Confidence.MEDIUM),
    (STOPPED - LAG - 1, Confidence.MEDIUM),
    (STOPPED - LAG, Confidence.HIGH),
    (STOPPED + PROMPT, Confidence.HIGH),
    (STOPPED + PROMPT + 1, Confidence.MEDIUM),
    (TAKEN, Confidence.MEDIUM),
    (TAKEN + 60, None),
    (STOPPED - 3600, None),
]


@pytest.mark.parametrize(("at", "confidence"), WHEN)
def test_the_time_must_fit(at: float, confidence: Confidence | None) -> None:
    found = diagnosed(fault(at=at))

    assert (found.verdict is Verdict.GPU_FAULT) is (confidence is not None)
    assert confidence is None or found.confidence is confidence


@pytest.mark.parametrize(("gap", "confidence"), [(1.0, Confidence.MEDIUM), (40.0, Confidence.HIGH)])
def test_how_long_a_job_may_go_on_after_the_fault_is_told_by_its_own_rhythm(
    gap: float, confidence: Confidence
) -> None:
    result = capture(*map(waiting, range(4)))
    result = msgspec.structs.replace(
        result, faults=(fault(at=STOPPED - 35),), quiet_seconds=QUIET, usual_gap_seconds=gap
    )
    found = diagnose([result]).diagnosis

    assert (found.verdict, found.confidence) == (Verdict.GPU_FAULT, confidence)


@pytest.mark.parametrize(("at", "verdict"), [(TAKEN - UNDATED, Verdict.GPU_FAULT), (TAKEN - UNDATED - 1, Verdict.UNKNOWN)])  # fmt: skip
def test_without_knowing_when_the_job_stopped_it_is_medium_at_most(
    at: float, verdict: Verdict
) -> None:
    found = diagnosed(fault(at=at), quiet=0.0)

    assert found.verdict is verdict
    assert found.confidence is not Confidence.HIGH


@pytest.mark.parametrize("tier", ["warning", "application", "information", "unknown", ""])
def test_only_a_fatal_fault_is_one(tier: str) -> None:
    assert diagnosed(fault(tier=tier)).verdict is Verdict.UNKNOWN


def test_the_culprits_own_gpu_is_named() -> None:
    """Rank 2 sleeps, which a retry after a lost GPU may be: named, but with another reason at hand not `high`."""
    found = diagnosed(fault(2), ranks=(waiting(0), waiting(1), sleeping(2), waiting(3)))

    assert (found.verdict, found.confidence) == (Verdict.GPU_FAULT, Confidence.MEDIUM)
    assert [one.rank for one in found.culprits] == [2]


def test_a_fault_of_a_victims_gpu_does_not_excuse_the_culprit() -> None:
    found = diagnosed(fault(0), ranks=(waiting(0), waiting(1), sleeping(2), waiting(3)))

    assert found.verdict is Verdict.RANK_WAITING
    assert [one.rank for one in found.culprits] == [2]


def test_a_stopped_rank_is_stopped_whatever_its_gpu_says() -> None:
    stopped = rank(2, process(*WAITER, pid=102, state="T", wchan="do_signal_stop", move=still()))
    found = diagnosed(fault(2), ranks=(waiting(0), waiting(1), stopped, waiting(3)))

    assert found.verdict is Verdict.RANK_STOPPED


def test_a_rank_that_exited_with_its_gpu_lost() -> None:
    lost = LostRank(rank=3, pid=103, exit_status=1 << 8, reason="exit status 1")
    found = diagnosed(fault(3), ranks=(waiting(0), waiting(1), waiting(2)), lost=(lost,), world=4)

    assert (found.verdict, found.confidence) == (Verdict.GPU_FAULT, Confidence.HIGH)
    assert [one.rank for one in found.culprits] == [3]


def test_a_fault_of_nobody_in_particular_is_low_and_names_no_rank() -> None:
    found = diagnosed(fault(None))

    assert (found.verdict, found.confidence) == (Verdict.GPU_FAULT, Confidence.LOW)
    assert [(one.kind, one.rank) for one in found.culprits] == [("gpu", None)]
    assert diagnosed(fault(None), ranks=(waiting(0), sleeping(1))).verdict is Verdict.RANK_WAITING


def test_two_gpus_at_once_are_both_named_and_a_later_one_is_evidence() -> None:
    second = fault(2, at=STOPPED + 3, uuid="GPU-5", bus_id="0000:5b:00.0")
    later = fault(3, at=STOPPED + 20, uuid="GPU-7", bus_id="0000:7b:00.0", words="Xid 45")
    found = diagnosed(fault(), second, later)

    assert [one.rank for one in found.culprits] == [1, 2]
    assert found.confidence is Confidence.MEDIUM
    assert any(fact.startswith("Xid 45") for fact in found.evidence)


def test_the_same_gpu_twice_is_one_culprit() -> None:
    found = diagnosed(fault(), fault(at=STOPPED + 2, code="xid_45"))

    assert (len(found.culprits), found.confidence) == (1, Confidence.HIGH)


def test_a_line_that_a_program_wrote_into_the_kernels_log_is_never_high() -> None:
    assert diagnosed(fault(trusted=False)).confidence is Confidence.MEDIUM


def test_a_child_of_the_rank_is_never_high() -> None:
    assert diagnosed(fault(by="child")).confidence is Confidence.MEDIUM


def test_a_rank_that_only_a_convention_puts_on_the_gpu_is_never_high() -> None:
    found = diagnosed(fault(by="environment"))

    assert found.confidence is Confidence.MEDIUM
    assert "(probably rank 1)" in found.summary
    dead = judge_exit(exit_of(fault(1, by="environment"), errors={1: ECC})).finding
    assert dead is not None
    assert (dead.verdict, dead.confidence) == (Verdict.GPU_FAULT, Confidence.MEDIUM)


def test_faults_of_ranks_that_were_not_seen_are_for_their_own_node() -> None:
    assert diagnosed(fault(77)).verdict is Verdict.UNKNOWN


# --- kills for memory ------------------------------------------------------------------------------------

KILL: dict[str, Any] = {"kind": "oom_kill", "words": "the kernel killed a process for memory", "uuid": "", "bus_id": "", "advice": "", "by": "process"}  # fmt: skip


def test_a_rank_that_the_kernel_killed_for_memory() -> None:
    lost = LostRank(rank=3, pid=103, exit_status=9, reason="killed by SIGKILL")
    found = diagnosed(
        fault(3, **KILL), ranks=(waiting(0), waiting(1), waiting(2)), lost=(lost,), world=4
    )

    assert (found.verdict, found.confidence) == (Verdict.OUT_OF_MEMORY, Confidence.HIGH)
    assert "killed a process for memory" in found.summary


def test_a_kill_of_somebody_else_is_no_cause() -> None:
    lost = LostRank(rank=3, pid=103, exit_status=9, reason="killed by SIGKILL")
    found = diagnosed(fault(None, **{**KILL, "by": "node"}), ranks=(waiting(0), waiting(1)), lost=(lost,), world=4)  # fmt: skip

    assert found.verdict is Verdict.RANK_EXITED


def test_a_living_rank_was_not_killed() -> None:
    found = diagnosed(fault(1, **KILL), ranks=(waiting(0), sleeping(1)))

    assert found.verdict is Verdict.RANK_WAITING


def test_a_rank_that_hangs_after_a_lack_of_device_memory() -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 80.00 GiB of which 1.00 GiB is free."  # fmt: skip
    hung = msgspec.structs.replace(sleeping(1), log=LogTail(path="x", lines=("step 3", text, "cleaning up")))  # fmt: skip
    found = diagnosed(ranks=(waiting(0), hung))

    assert (found.verdict, found.confidence) == (Verdict.OUT_OF_MEMORY, Confidence.MEDIUM)
    assert "after CUDA out of memory on GPU 1: 2.00 GiB asked" in found.summary
    victim = msgspec.structs.replace(waiting(0), log=hung.log)
    assert diagnosed(ranks=(victim, sleeping(1))).verdict is Verdict.RANK_WAITING


@pytest.mark.parametrize(
    ("text", "confidence", "words"),
    [
        ("n1:1:2 [1] include/alloc.h:178 NCCL WARN Cuda failure 2 'out of memory'", Confidence.MEDIUM, "after CUDA out of memory: NCCL asked for it"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", Confidence.LOW, "after cuBLAS could not allocate its workspace"),
    ],
)  # fmt: skip
def test_a_rank_that_hangs_after_a_library_got_no_memory(
    text: str, confidence: Confidence, words: str
) -> None:
    found = diagnosed(ranks=(waiting(0), logged(sleeping(1), "step 3", text, "cleaning up")))

    assert (found.verdict, found.confidence) == (Verdict.OUT_OF_MEMORY, confidence)
    assert words in found.summary


LACK = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 80.00 GiB of which 1.00 GiB is free."


def logged(one: Any, *lines: str, path: str = "job.log") -> Any:
    return msgspec.structs.replace(one, log=LogTail(path=path, lines=lines))


def test_in_a_shared_log_only_a_line_with_the_ranks_own_mark_counts() -> None:
    """Each rank is shown the launcher's file."""

    def in_one_log(text: str) -> Diagnosis:
        ranks = (waiting(0), waiting(1), sleeping(2), waiting(3))
        return diagnosed(ranks=tuple(logged(one, "step 3", text) for one in ranks))

    for text in (LACK, f"[rank1]: {LACK}", f"[default1]:[rank1]: {LACK}"):
        assert in_one_log(text).verdict is Verdict.RANK_WAITING, text
    for text in (f"[rank2]: {LACK}", f"[default2]:{LACK}"):
        assert in_one_log(text).verdict is Verdict.OUT_OF_MEMORY, text


def test_a_log_in_which_a_rank_that_is_gone_may_have_written_is_shared() -> None:
    lost = LostRank(rank=1, pid=101, exit_status=1 << 8, reason="exited with code 1")
    found = diagnosed(ranks=(waiting(0), logged(sleeping(2), LACK)), lost=(lost,), world=3)

    assert found.verdict is not Verdict.OUT_OF_MEMORY


@pytest.mark.parametrize(
    "after",
    ["step 38 loss 0.1", "{'loss': 0.1, 'epoch': 0.38}", "2026-11-21 20:00:00 INFO retrying with batch size 4"],
)  # fmt: skip
def test_a_lack_of_memory_after_which_the_rank_went_on_is_no_last_word(after: str) -> None:
    one = logged(sleeping(1), f"{LACK} Retrying with batch size 4", after, "tidying")
    found = diagnosed(ranks=(waiting(0), one, waiting(2)))

    assert found.verdict is Verdict.RANK_WAITING


# --- ends ------------------------------------------------------------------------------------------------


def exit_of(
    *faults: Fault, errors: dict[int, RankError], order: tuple[int, ...] = (1, 0)
) -> AttemptExit:
    """Rank 1 exits with code 1, rank 0 is told to end a second later."""
    ranks = tuple(RankIdentity(rank=n, world_size=2, pid=100 + n, node="n1") for n in (0, 1))
    status = {1: 1 << 8, 0: int(signal.SIGTERM) if 0 not in errors else 1 << 8}
    exits = tuple(
        RankExit(rank=n, pid=100 + n, at=STOPPED + at, moment=at, status=status[n], source="pidfd")
        for at, n in enumerate(order)
    )
    job = Job(id="j", name="train.py", launcher="torchrun", world_size=2, ranks=ranks)
    return AttemptExit(job=job, identities=ranks, exits=exits, errors=errors, faults=faults)


ECC = RankError(error="RuntimeError: CUDA error: uncorrectable ECC error encountered", source="its log")  # fmt: skip
PEER = RankError(error="RuntimeError: Connection closed by peer", source="its log", blames_peer=True)  # fmt: skip


def test_a_rank_that_died_of_its_gpu() -> None:
    finding = judge_exit(exit_of(fault(1, code="xid_48", words="Xid 48 (double-bit ECC)"), errors={1: ECC})).finding  # fmt: skip

    assert finding is not None
    assert (finding.verdict, finding.confidence) == (Verdict.GPU_FAULT, Confidence.HIGH)
    assert [(one.kind, one.rank, one.pid) for one in finding.culprits] == [("gpu", 1, 101)]
    assert finding.summary.startswith("Xid 48 (double-bit ECC); rank 1 exited with code 1")
    assert "uncorrectable ECC" in finding.summary


OTHERS = [fault(0), fault(1, at=STOPPED - 3600), fault(1, tier="application"), fault(None)]


@pytest.mark.parametrize("other", OTHERS, ids=["another rank's", "an hour ago", "the job's own", "of nobody"])  # fmt: skip
def test_a_fault_that_does_not_fit_changes_nothing(other: Fault) -> None:
    plain = judge_exit(exit_of(errors={1: ECC}))

    assert judge_exit(exit_of(other, errors={1: ECC})) == plain
    assert plain.finding is not None
    assert plain.finding.verdict is Verdict.RANK_EXITED


@pytest.mark.parametrize("errors", [{1: ECC}, {0: PEER, 1: PEER}], ids=["one", "all blame a peer"])
def test_what_a_gpu_says_after_its_rank_has_ended_is_a_remark(errors: dict[int, RankError]) -> None:
    plain = judge_exit(exit_of(errors=errors)).finding
    found = judge_exit(exit_of(fault(1, at=STOPPED + 3), errors=errors)).finding

    assert plain is not None
    assert found is not None
    assert found.evidence[:-1] == plain.evidence
    assert found.evidence[-1].endswith("3 s after rank 1 had ended")
    assert msgspec.structs.replace(found, evidence=plain.evidence) == plain
    clocks = judge_exit(exit_of(fault(1, at=STOPPED + 1.5), errors=errors)).finding
    assert clocks is not None
    assert clocks.verdict is Verdict.GPU_FAULT


def test_a_fault_names_the_rank_where_all_blame_a_peer() -> None:
    both = {0: PEER, 1: PEER}
    plain = judge_exit(exit_of(errors=both)).finding
    found = judge_exit(exit_of(fault(1), errors=both)).finding

    assert plain is not None
    assert plain.culprits == ()
    assert found is not None
    assert (found.verdict, found.confidence) == (Verdict.GPU_FAULT, Confidence.MEDIUM)
    assert [one.rank for one in found.culprits] == [1]
    two = judge_exit(exit_of(fault(1), fault(0, at=STOPPED + 1), errors=both)).finding
    assert two == plain


# --- from events and readings to faults ------------------------------------------------------------------


def of_lines(*lines: str) -> tuple[Fault, ...]:
    events = [one for line in lines if (one := parse_line(f"[    0.0] {line}", STOPPED))]
    owners = {"0000:3b:00.0": (RankOwner(run="r1", rank=5),)}
    pids = {4711: RankOwner(run="r1", rank=6), 4712: RankOwner(run="r2", rank=1)}
    return faults_of_events(join(fold(events), pids, owners), "r1", GPU3, "n1")


def test_an_xid_becomes_a_fault_of_the_rank_on_that_gpu() -> None:
    (one,) = of_lines("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")  # fmt: skip

    assert (one.kind, one.code, one.tier, one.rank, one.by) == ("xid", "xid_79", "fatal", 5, "gpu")
    assert (one.uuid, one.gpu, one.bus_id, one.node, one.at) == ("GPU-3", 3, "0000:3b:00.0", "n1", STOPPED)  # fmt: skip
    assert one.advice
    assert one.catalogue == catalogue().version
    assert of_lines("Out of memory: Killed process 4711 (python) total-vm:1kB")[0].catalogue == ""


MMU = "NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python, Ch 00000008, MMU Fault"
GONE = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus."


def test_a_burst_is_dated_and_advised_by_its_worst_line_and_told_from_its_first() -> None:
    """The job's own Xid 31 each 4 s for two minutes; then the GPU falls off the bus, and the job stops."""
    many = [parse_line(f"[{4 * i:.1f}] {MMU}", STOPPED - 120) for i in range(30)]
    last = parse_line(f"[120.0] {GONE}", STOPPED - 120)
    burst = fold(one for one in (*many, last) if one)
    (one,) = faults_of_events(
        join(burst, {4711: RankOwner(run="r1", rank=1)}, {}), "r1", GPU3, "n1"
    )

    assert (one.at, one.code, one.tier) == (STOPPED, "xid_79", "fatal")
    assert one.advice == ACTION_WORDS[xid_row(79).action]
    assert one.words.startswith("Xid 31 (")
    assert diagnosed(one).verdict is Verdict.GPU_FAULT


def test_a_line_that_names_the_pid_goes_before_the_gpu() -> None:
    (one,) = of_lines("NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python, Ch 00000008")

    assert (one.rank, one.by, one.tier) == (6, "process", "application")


def test_faults_of_another_run_and_of_no_gpu_are_left_out() -> None:
    assert of_lines("NVRM: Xid (PCI:0000:99:00): 79, pid=4712, name=python, x") == ()
    assert of_lines("mlx5_core 0000:12:00.0 ens1f0: Link down") == ()
    assert of_lines("Out of memory: Killed process 4712 (python) total-vm:1kB") == ()
    assert of_lines("Out of memory: Killed process 9999 (payroll) total-vm:1kB") == ()  # nobody's


def test_a_gpu_that_does_not_start_is_fatal_for_its_rank_alone() -> None:
    """Of one that nobody works on the log tells at each look at the GPUs, for weeks."""
    line = "NVRM: GPU 0000:{}:00.0: RmInitAdapter failed! (0x62:0xffff:2477)"
    (mine,) = of_lines(line.format("3b"))
    (other,) = of_lines(line.format("99"))

    assert (mine.kind, mine.tier, mine.rank, mine.uuid) == ("gpu_init_failed", "fatal", 5, "GPU-3")
    assert mine.words == "the driver's start failed on GPU 0000:3b:00.0"
    assert mine.advice == ACTION_WORDS["check_hardware"]
    assert (other.tier, other.rank) == ("warning", None)
    assert diagnosed(msgspec.structs.replace(mine, rank=1)).verdict is Verdict.GPU_FAULT
    assert diagnosed(other).verdict is not Verdict.GPU_FAULT


def test_addresses_of_the_driver_and_of_the_kernel_meet() -> None:
    gpus = [GpuReading(uuid="GPU-3", index=3, bus_id="00000000:3B:00.0")]

    assert gpus_by_address(gpus) == GPU3
    lost = [LostGpu(uuid=uuid, index=3, bus_id="00000000:3B:00.0", reason="x") for uuid in ("GPU-3", "")]  # fmt: skip
    assert [gpus_by_address([one]) for one in lost] == [GPU3, {}]


def test_a_missing_gpu_becomes_a_fault_of_its_rank() -> None:
    gone = MissingGpu(gpu=KnownGpu(uuid="GPU-3", bus_id="0000:3b:00.0", index=3), since=STOPPED, reason="GPU is lost")  # fmt: skip
    (one,) = faults_of_count(GpuCount(missing=(gone,)), {"GPU-3": (5,)}, "n1")
    (nobody,) = faults_of_count(GpuCount(missing=(gone,)), {}, "n1")

    assert (one.kind, one.rank, one.by, one.at, one.tier) == ("gpu_missing", 5, "gpu", STOPPED, "fatal")  # fmt: skip
    assert (nobody.rank, nobody.by) == (None, "node")
    assert diagnosed(msgspec.structs.replace(one, rank=1)).verdict is Verdict.GPU_FAULT


# --- which memory errors are new ---------------------------------------------------------------------------


def standing(*counts: int | None) -> list[tuple[int, float, bool]]:
    """What is held against a GPU after these reads, one a second: how many, since when, and whether it is sure."""
    error_count, sure, unsure = ErrorCount(), [], []
    for at, count in enumerate(counts):
        found = error_count.see(count, float(at))
        sure += [tuple(one) for one in found if one.sure]
        unsure = [tuple(one) for one in found if not one.sure]
    return sure + unsure


GARBAGE = 2**32 - 2
LOW = (0,) * (LOW_READS + 1)

NEW: list[tuple[tuple[int | None, ...], list[tuple[int, float, bool]]]] = [
    ((0, 0, 3), [(3, 2.0, False)]),
    ((0, 0, 3, 3, 3), [(3, 2.0, True)]),
    ((0, 0, 3, 5), [(3, 2.0, True), (2, 3.0, False)]),
    ((0, 0, 3, 5, 5), [(3, 2.0, True), (2, 3.0, True)]),
    ((7, 7, 7, 8, 8), [(1, 3.0, True)]),
    ((0, 0, None, 3, None), [(3, 3.0, False)]),
    ((0, 0, None, 3, None, 3), [(3, 3.0, True)]),
    ((5, 5, *LOW, 1, 1), [(1, 2.0 + len(LOW), True)]),
    ((5, 5, *LOW, 5, 5), [(5, 2.0 + len(LOW), True)]),
    ((5, 5, 0, 0, 3, 3), [(3, 4.0, True)]),
    ((5, 5, 0, 0, 3, 3, 8, 8), [(3, 4.0, True), (5, 6.0, True)]),
    ((0, 0, GARBAGE, 3, 3), [(3, 3.0, True)]),
]  # fmt: skip


@pytest.mark.parametrize(("counts", "found"), NEW, ids=str)
def test_new_memory_errors_are_sure_once_two_reads_tell_them(
    counts: tuple[int | None, ...], found: list[tuple[int, float, bool]]
) -> None:
    assert standing(*counts) == found


NOTHING_NEW: list[tuple[int | None, ...]] = [
    (), (None, None), (3,), (3, 3, 3), (0, 5, 5), (5, 0, 5, 5),
    (0, 0, 7, 0, 0), (0, 0, GARBAGE, 0, 0), (0, 0, GARBAGE, GARBAGE, GARBAGE),
    (5, 5, 0, 5), (5, 5, 0, 0, 5, 5), (5, 5, 3, 5, 5), (5, 5, 3, 3, 5, 5), (5, 5, 2, 3, 0, 5, 5), (5, 5, 0, 6, 6),
    (5, 5, 0, 0, 0), (5, 5, 2, 2, 2),
]  # fmt: skip


@pytest.mark.parametrize("counts", NOTHING_NEW, ids=str)
def test_what_was_wrong_or_there_before_is_not_new(counts: tuple[int | None, ...]) -> None:
    assert standing(*counts) == []


def test_a_count_that_came_back_to_where_it_was_goes_on_from_there() -> None:
    assert standing(5, 5, 0, 0, 5, 5, 6, 6) == [(1, 6.0, True)]


def test_new_memory_errors_become_a_fault_of_each_rank() -> None:
    gpu = GpuReading(uuid="GPU-3", index=3)
    new = (NewErrors(2, STOPPED), NewErrors(1, STOPPED + 30, sure=False))
    found = list(faults_of_memory(gpu, new, {"GPU-3": (1, 2)}, "n1"))
    (nobody,) = faults_of_memory(gpu, new[:1], {}, "n1")

    assert [(one.rank, one.at, one.confirmed) for one in found] == [
        (1, STOPPED, True), (2, STOPPED, True), (1, STOPPED + 30, False), (2, STOPPED + 30, False)]  # fmt: skip
    assert found[0].words == "2 uncorrectable memory errors (ECC) on GPU 3 (GPU-3)"
    assert (nobody.rank, nobody.by) == (None, "node")


@pytest.mark.parametrize(("confirmed", "confidence"), [(True, Confidence.HIGH), (False, Confidence.MEDIUM)])  # fmt: skip
def test_what_one_read_alone_tells_is_medium_at_most(
    confirmed: bool, confidence: Confidence
) -> None:
    ecc = fault(kind="ecc", code="ecc_uncorrected", confirmed=confirmed)
    ended = judge_exit(exit_of(ecc, errors={1: ECC})).finding

    assert diagnosed(ecc).confidence is confidence
    both = diagnosed(msgspec.structs.replace(ecc, confirmed=False), ecc)
    assert (both.confidence, len(both.culprits)) == (confidence, 1)
    assert ended is not None
    assert (ended.verdict, ended.confidence) == (Verdict.GPU_FAULT, confidence)
