"""Who began the end: a table of exits and words, with whom they name and how surely, or why nobody is named."""

import signal

import msgspec
import pytest

from mldebug.core.model import (
    Confidence,
    FlightRecord,
    Job,
    LostRank,
    RankCapture,
    RankIdentity,
    Verdict,
)
from mldebug.diagnosis.diagnose import diagnose
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.judgement import judgement_of, without_processes
from mldebug.diagnosis.exits.model import (
    AttemptExit,
    KernelDeath,
    LauncherFailure,
    LauncherWords,
    RankError,
    RankExit,
)
from mldebug.incidents.incident import Incident, add_capture, add_exit, close_incident
from mldebug.incidents.judge import judge
from mldebug.incidents.report.build import write_report
from shared.capture.flights import call, group
from shared.diagnosis.builders import WAITER, capture, process, rank, still

LAUNCHER = 90
OWN = RankError(
    error="ValueError: bad shard 7",
    lines=("Traceback", "ValueError: bad shard 7"),
    source="its own output",
)
NO_SHARD = RankError(error="FileNotFoundError: /data/shard-0", source="its own output")
OTHER = RankError(error="KeyError: 3", source="its own output")
CAUGHT = msgspec.structs.replace(OWN, caught=True)
ONLY = RankError(error="TypeError: x", source="the job's log", alone=True)
PEER = RankError(
    error="RuntimeError: Connection closed by peer", source="its own output", blames_peer=True
)
SLOW = RankError(
    error="RuntimeError: Timed out waiting 1800000ms for recv operation to complete",
    source="its own output",
    blames_peer=True,
)
TERM, INT, KILL, SEGV, ABRT = (
    signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT
)  # fmt: skip
ONE = 1 << 8
TORCHRUN = LauncherWords(failures=(LauncherFailure(pid=101, local_rank=1, status=ONE),))


def ranks(size: int) -> tuple[RankIdentity, ...]:
    return tuple(
        RankIdentity(rank=rank, world_size=size, pid=100 + rank, node="n1", local_rank=rank)
        for rank in range(size)
    )


def exit_of(
    *statuses: int | None,
    order: tuple[int, ...] = (),
    size: int = 0,
    attempt: int = 0,
    launcher: str = "torchrun",
    **more: object,
) -> AttemptExit:
    """One status for each rank; `order`: their moments, as many as there are exits (default: by rank)."""
    moments = order or tuple(range(len(statuses)))
    exits = [
        RankExit(
            rank=rank,
            pid=100 + rank,
            at=1000.0 + moment,
            moment=moment,
            status=status,
            source="exit status",
        )
        for rank, (status, moment) in enumerate(zip(statuses, moments, strict=True))
    ]
    known = ranks(size or len(statuses))
    job = Job(
        id=f"j{attempt}", name="train.py", launcher=launcher, world_size=len(known), attempt=attempt,
        launcher_pid=LAUNCHER, ranks=known, nodes=("n1",),
    )  # fmt: skip
    attempt_exit = AttemptExit(
        job=job,
        identities=known,
        exits=tuple(sorted(exits, key=lambda one: one.moment or 0)),
        living=tuple(range(len(statuses), len(known))),
        launcher_pid=LAUNCHER,
    )
    return msgspec.structs.replace(attempt_exit, **more)


def on_two_nodes(attempt: AttemptExit) -> AttemptExit:
    """The same where the job has as many ranks on another node."""
    job = msgspec.structs.replace(attempt.job, world_size=2 * attempt.job.world_size)
    return msgspec.structs.replace(attempt, job=job)


ABNORMAL = [
    # what, ending, verdict, ranks, confidence, part of the summary
    ("a traceback", exit_of(TERM, ONE, TERM, order=(1, 0, 2), errors={1: OWN}), "rank_exited", [1], "high", "exited with code 1: ValueError: bad shard 7; ranks 0,2 ended after it (killed by SIGTERM)"),
    ("exit code without a word", exit_of(TERM, 3 << 8, order=(1, 0), output_read=True), "rank_exited", [1], "medium", "rank 1 exited with code 3"),
    ("exit code of one whose words nobody could read", exit_of(TERM, 3 << 8, order=(1, 0)), "rank_exited", [1], "low", "rank 1 exited with code 3"),
    ("exit codes without a word: whoever ends first may be a victim", exit_of(TERM, 3 << 8, ONE, order=(2, 0, 1), output_read=True), "rank_exited", [1], "low", "rank 1 exited with code 3"),
    ("one without a word, and its launcher kills the other", exit_of(KILL, 3 << 8, order=(1, 0), output_read=True, kernel_readable=True), "rank_exited", [1], "medium", "exited with code 3"),
    ("one without a word, and the other crashes on its way out", exit_of(SEGV, 3 << 8, order=(1, 0), output_read=True), "rank_exited", [1], "medium", "exited with code 3"),
    ("one that says why, after one that does not", exit_of(ONE, 3 << 8, order=(1, 0), errors={0: OWN}, output_read=True), "rank_exited", [0], "medium", "ValueError"),
    ("SIGKILL", exit_of(TERM, KILL, order=(1, 0), kernel_readable=True), "rank_exited", [1], "high", "rank 1 was killed by SIGKILL"),
    ("a crash", exit_of(ONE, SEGV, order=(1, 0), errors={0: PEER}), "rank_exited", [1], "high", "killed by SIGSEGV"),
    ("peers fail first on the clock, but blame another", exit_of(ONE, ONE, order=(0, 1), errors={0: PEER, 1: OWN}), "rank_exited", [1], "high", "ValueError"),
    ("left with 0, the other lost its peer", exit_of(ONE, 0, order=(1, 0), errors={0: PEER}), "rank_exited", [1], "high", "left early with exit code 0"),
    ("SIGTERM to one rank, says torchrun", exit_of(TERM, TERM, order=(1, 0), words=LauncherWords(failures=(LauncherFailure(pid=101, status=TERM),), ended=(100,))), "rank_exited", [1], "high", "killed by SIGTERM"),
    ("status told by the launcher alone", exit_of(None, None, order=(1, 0), words=LauncherWords(failures=TORCHRUN.failures, ended=(100,)), output_read=True), "rank_exited", [1], "medium", "exited with code 1"),
    ("no status, an error of its own", exit_of(None, None, order=(1, 0), errors={1: OWN}, words=LauncherWords(ended=(100,))), "rank_exited", [1], "medium", "ended: ValueError"),
    ("came together, one with an error of its own", exit_of(ONE, ONE, order=(0, 0), errors={1: OWN}), "rank_exited", [1], "high", "ValueError"),
    ("two errors of their own, in order", exit_of(ONE, ONE, order=(1, 0), errors={0: OTHER, 1: OWN}), "rank_exited", [1], "high", "rank 1"),
    ("OOM kill, by the kernel", exit_of(TERM, KILL, order=(1, 0), deaths=(KernelDeath(pid=101, kind="out_of_memory", text="Killed process 101"),)), "out_of_memory", [1], "high", "killed by the kernel's OOM killer"),
    ("the kernel overrules the order", exit_of(ONE, KILL, order=(0, 1), deaths=(KernelDeath(pid=101, kind="out_of_memory", text="x"),)), "out_of_memory", [1], "high", "OOM"),
    ("OOM kill, by the cgroup's counter", exit_of(TERM, KILL, order=(1, 0), oom_kills=1), "out_of_memory", [1], "medium", "OOM killer worked in its cgroup"),
    ("an OOM kill in the cgroup, of which the kernel has no line for this rank", exit_of(TERM, KILL, order=(1, 0), oom_kills=1, kernel_readable=True, deaths=(KernelDeath(pid=4711, kind="out_of_memory", text="x"),)), "rank_exited", [1], "high", "rank 1 was killed by SIGKILL"),
    ("a caught traceback, after one that left with 0", exit_of(0, ONE, ONE, order=(0, 2, 1), errors={2: CAUGHT}), "unknown", [], "low", "rank 0 (exit status 0) left before rank 2 (exit status 1) failed"),
    ("a last traceback, after one that left with 0", exit_of(0, ONE, errors={1: OWN}), "rank_exited", [1], "medium", "ValueError"),
    ("a caught traceback of the first", exit_of(ONE, TERM, errors={0: CAUGHT}), "rank_exited", [0], "medium", "exited with code 1; some lines before its last it printed ValueError: bad shard 7"),
    ("a caught traceback does not tell who was first", exit_of(ONE, ONE, order=(0, 0), errors={1: CAUGHT}), "unknown", [], "low", "order is not known"),
    ("a caught lack of memory", exit_of(ONE, TERM, errors={0: RankError(error="torch.OutOfMemoryError: CUDA out of memory.", caught=True)}), "rank_exited", [0], "medium", "rank 0"),
    ("a caught lack of memory of nobody in particular", exit_of(ONE, TERM, shared_error=RankError(error="torch.OutOfMemoryError: CUDA out of memory.", caught=True)), "rank_exited", [0], "medium", "holds torch.OutOfMemoryError: CUDA out of memory., with other words after it, of no rank"),
    ("a lost peer that was not its last word, after one that left with 0", exit_of(0, ONE, errors={1: msgspec.structs.replace(PEER, caught=True)}), "rank_exited", [0], "medium", "left early"),
    ("the only failure and the only traceback, and the others live on", exit_of(ONE, size=3, shared_error=ONLY), "rank_exited", [0], "medium", "ranks 1-2 live on; the job's log ends with TypeError: x"),
    ("the only traceback was caught, and the others live on", exit_of(ONE, size=3, shared_error=msgspec.structs.replace(ONLY, caught=True)), "unknown", [], "low", "while others live on; the job's log holds TypeError: x"),
    ("the only traceback blames a peer, and the others live on", exit_of(ONE, size=3, shared_error=msgspec.structs.replace(ONLY, blames_peer=True)), "unknown", [], "low", "while others live on"),
    ("two failed, the others live on", exit_of(ONE, ONE, size=3, order=(0, 0), shared_error=ONLY), "unknown", [], "low", "order is not known; the job's log ends with TypeError: x"),
    ("one traceback, and one that does not exit as a traceback does", exit_of(3 << 8, size=3, shared_error=ONLY), "unknown", [], "low", "while others live on"),
    ("the first of all that left alike, with the only traceback", exit_of(ONE, ONE, ONE, shared_error=ONLY), "rank_exited", [0], "medium", "exited with code 1"),
    ("all left alike within a moment, with one traceback", exit_of(ONE, ONE, ONE, order=(0, 0, 0), shared_error=ONLY), "unknown", [], "low", "the job's log ends with TypeError: x"),
    ("all failed with one error", exit_of(ONE, ONE, errors={0: OWN, 1: OWN}), "unknown", [], "low", "all 2 ranks failed with ValueError: bad shard 7"),
    ("all failed with one error, but for its numbers", exit_of(ONE, ONE, errors={0: NO_SHARD, 1: msgspec.structs.replace(NO_SHARD, error="FileNotFoundError: /data/shard-1")}), "unknown", [], "low", "all 2 ranks failed with FileNotFoundError"),
    ("two of three failed alike before the third was ended: another run might name the other", exit_of(ONE, ONE, TERM, errors={0: OWN, 1: OWN}), "rank_exited", [0], "low", "bad shard 7"),
    ("the first of two without a word, and a traceback of nobody in particular", exit_of(ONE, 3 << 8, TERM, shared_error=OWN, output_read=True), "unknown", [], "low", "no line of the log says whose its last error is"),
    ("one failed, and the log ends with an error that accuses nobody", exit_of(TERM, ONE, order=(1, 0), shared_error=msgspec.structs.replace(ONLY, unclear=True), output_read=True), "rank_exited", [1], "low", "TypeError"),
    ("all failed with one error, in one log", exit_of(ONE, ONE, shared_error=RankError(error="FileNotFoundError: x", copies=2)), "unknown", [], "low", "all 2 ranks failed with FileNotFoundError: x"),
    ("all left alike, and a log says something", exit_of(ONE, ONE, shared_error=OWN), "unknown", [], "low", "none says why; the job's log ends with ValueError: bad shard 7"),
    ("told to stop, and one failed with an error", exit_of(ONE, TERM, errors={0: OWN}, launcher="environment", told_to_stop="caught SIGTERM"), "rank_exited", [0], "high", "ValueError"),
    ("Ctrl-C long after a failure", exit_of(ONE, INT, order=(0, 9), errors={0: OWN}), "rank_exited", [0], "high", "ValueError"),
    ("Ctrl-C, and a crash", exit_of(SEGV, INT), "rank_exited", [0], "high", "SIGSEGV"),
    ("told to stop, perhaps by the launcher because one had failed", exit_of(ONE, ONE, launcher="slurm", told_to_stop="caught SIGTERM"), "unknown", [], "low", "none says why"),
    ("told to stop, with different codes", exit_of(ONE, 3 << 8, launcher="environment", told_to_stop="caught SIGTERM"), "rank_exited", [0], "low", "rank 0"),
    ("told to stop, and one killed", exit_of(KILL, ONE, launcher="environment", told_to_stop="caught SIGTERM"), "rank_exited", [0], "high", "SIGKILL"),
    ("OOM killed a worker process", exit_of(TERM, ONE, order=(1, 0), errors={1: RankError(error="RuntimeError: DataLoader worker (pid 555) is killed by signal: Killed.")}, deaths=(KernelDeath(pid=555, kind="out_of_memory", text="x"),)), "out_of_memory", [1], "high", "lost its worker process 555"),
    ("CUDA out of memory", exit_of(TERM, ONE, order=(1, 0), errors={1: RankError(error="torch.OutOfMemoryError: CUDA out of memory.")}), "out_of_memory", [1], "high", "CUDA out of memory"),
    ("an error that names no rank", exit_of(TERM, ONE, order=(1, 0), shared_error=OWN), "rank_exited", [1], "medium", "ended after it (killed by SIGTERM); the job's log ends with ValueError: bad shard 7, of no rank in particular"),
    ("torch's own abort after a timeout is no cause", exit_of(ABRT, ABRT, order=(0, 1), errors={0: PEER, 1: PEER}), "unknown", [], "low", "blames another one"),
    ("all blame a peer", exit_of(ONE, TERM, order=(0, 1), errors={0: PEER}), "unknown", [], "low", "blames another one"),
    ("two at once without a word", exit_of(ONE, ONE, order=(0, 0)), "unknown", [], "low", "order is not known"),
    ("a bare failure after one that left with 0", exit_of(ONE, 0, order=(1, 0)), "unknown", [], "low", "no log tells"),
    ("an exit nobody saw, then a bare failure", exit_of(ONE, None, order=(1, 0)), "unknown", [], "low", "no log tells"),
    ("an exit nobody saw, then lost peers", exit_of(ONE, None, order=(1, 0), errors={0: PEER}), "rank_exited", [1], "medium", "rank 1 ended"),
    ("all killed, and memory may be why", exit_of(KILL, KILL, order=(0, 0), launcher_gone=True, launcher_status=KILL), "unknown", [], "low", "order is not known"),
    ("one killed, the others live on", exit_of(KILL, size=3, kernel_readable=True), "rank_exited", [0], "high", "killed by SIGKILL"),
    ("left with 0, and the only peer needs long to say so", exit_of(ONE, 0, order=(90, 0), errors={0: PEER}), "rank_exited", [1], "high", "left early"),
    ("left with 0, and its peers need their time to end", exit_of(ONE, 0, ONE, order=(9, 0, 10), errors={0: PEER, 2: PEER}), "rank_exited", [1], "high", "left early"),
    ("left with 0, and the peers notice much later", exit_of(ONE, 0, ONE, order=(90, 0, 91), errors={0: PEER, 2: PEER}), "rank_exited", [1], "medium", "left early"),
    ("left with 0, seen at the same moment as its peer's end", exit_of(ONE, 0, order=(0, 0), errors={0: PEER}), "rank_exited", [1], "high", "left early"),
    ("left with 0 after its peer had lost somebody", exit_of(ONE, 0, order=(0, 1), errors={0: PEER}), "unknown", [], "low", "blames another one"),
    ("left with 0, and its peer only timed out", exit_of(ONE, 0, order=(9, 0), errors={0: SLOW}), "rank_exited", [1], "medium", "left early"),
    ("left with 0, its peer timed out, and one that says nothing may hang", exit_of(ONE, 0, TERM, order=(9, 0, 10), errors={0: SLOW}), "unknown", [], "low", "left long before the first timed out"),
    ("left with 0 because it had lost a peer itself", exit_of(ONE, 0, order=(1, 0), errors={0: PEER, 1: PEER}), "unknown", [], "low", "blames another one"),
    ("left with 0, and ranks of other nodes may be gone, too", on_two_nodes(exit_of(ONE, 0, order=(9, 0), errors={0: PEER})), "rank_exited", [1], "low", "left early"),
    ("a victim leaves, and who kept it waiting lives", exit_of(ONE, size=3), "unknown", [], "low", "while others live on"),
    ("the watchdog aborts a waiter, and who kept it waiting lives", exit_of(ABRT, size=2), "unknown", [], "low", "killed by SIGABRT"),
    ("the watchdog aborts a waiter without a word", exit_of(ABRT, TERM, order=(0, 1), output_read=True), "rank_exited", [0], "low", "SIGABRT"),
    ("all saved and left with 1 when they were told to stop", exit_of(ONE, ONE, ONE), "unknown", [], "low", "all left with exit status 1, and none says why"),
    ("killed before the launcher told the others", exit_of(TERM, KILL, order=(1, 0), launcher_gone=True, kernel_readable=True, words=LauncherWords(failures=(LauncherFailure(pid=101, status=KILL),), ended=(100,))), "rank_exited", [1], "high", "SIGKILL"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("attempt_exit", "verdict", "blamed", "confidence", "text"),
    [case[1:] for case in ABNORMAL],
    ids=[case[0] for case in ABNORMAL],
)
def test_who_began_it(
    attempt_exit: AttemptExit, verdict: str, blamed: list[int], confidence: str, text: str
) -> None:
    outcome = judge_exit(attempt_exit)

    assert outcome.kind == "abnormal", outcome.sentence
    assert outcome.finding is not None
    assert outcome.finding.verdict == Verdict(verdict), outcome.sentence
    assert [culprit.rank for culprit in outcome.finding.culprits] == blamed
    assert outcome.finding.confidence == Confidence(confidence)
    assert text in outcome.finding.summary
    assert outcome.finding.next_steps


SILENT = [
    ("all left with 0", exit_of(0, 0), "normal"),
    ("nothing is known", exit_of(None, None), "normal"),
    ("0 and unknown", exit_of(0, None), "normal"),
    ("SIGTERM to all", exit_of(TERM, TERM, order=(0, 0)), "outside"),
    ("SIGTERM to all, one after the other", exit_of(TERM, TERM), "outside"),
    ("exit codes that stand for SIGTERM", exit_of(143 << 8, 143 << 8), "outside"),
    ("Ctrl-C", exit_of(INT, INT, words=LauncherWords(outside="torchrun received signal 2", ended=(100, 101))), "outside"),
    ("SIGTERM to torchrun, and a rank that fails while it is told to end", exit_of(ONE, TERM, errors={0: OWN}, words=LauncherWords(outside="torchrun received signal 15")), "outside"),
    ("all killed with their launcher", exit_of(KILL, KILL, launcher_gone=True, launcher_status=KILL, kernel_readable=True), "outside"),
    ("all killed after their launcher, whose status nobody saw", exit_of(KILL, None, order=(3, 4), launcher_gone=True, launcher_moment=2, oom_kills=0), "outside"),
    ("all killed, and the launcher has nothing to say", exit_of(KILL, KILL, launcher_gone=True, launcher_moment=9, oom_kills=0), "outside"),
    ("all saved and left with 1, and one said that it was told to stop", exit_of(ONE, ONE, ONE, launcher="environment", told_to_stop="caught SIGTERM, saving"), "outside"),
    ("Ctrl-C without a launcher, and a rank that fails over it", exit_of(INT, ONE, INT, order=(1, 0, 1), errors={1: OWN}), "outside"),
    ("the same, and one still saves", exit_of(ONE, ONE, size=3, launcher="environment", told_to_stop="caught SIGTERM, saving"), "outside"),
    ("one saved and left with 0, the others by the signal and by 1", exit_of(0, ONE, TERM, launcher="environment", told_to_stop="caught SIGTERM, saving"), "outside"),
    ("one process, killed", exit_of(KILL, launcher_pid=None, kernel_readable=True), "outside"),
    ("all killed, no launcher", exit_of(KILL, KILL, launcher_pid=None, kernel_readable=True), "outside"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("attempt_exit", "kind"), [case[1:] for case in SILENT], ids=[case[0] for case in SILENT]
)
def test_what_is_no_failure_of_a_rank(attempt_exit: AttemptExit, kind: str) -> None:
    outcome = judge_exit(attempt_exit)

    assert (outcome.kind, outcome.finding) == (kind, None)
    assert outcome.sentence


def test_everything_together_never_names_at_high_without_a_status_or_a_kernel_line() -> None:
    statuses = (None, 0, ONE, KILL, TERM)
    for first in statuses:
        for second in statuses:
            for error in (None, OWN, PEER):
                errors = {1: error} if error else {}
                outcome = judge_exit(exit_of(first, second, order=(1, 0), errors=errors))
                finding = outcome.finding
                if finding and finding.confidence is Confidence.HIGH:
                    (culprit,) = finding.culprits
                    assert (first, second)[culprit.rank or 0] is not None


# --- written down --------------------------------------------------------------------------------------


def test_what_to_type_next_names_the_real_log() -> None:
    attempt = exit_of(TERM, ONE, order=(1, 0), errors={1: OWN}, log_path="/home/ada/it's a run.log")

    finding = judge_exit(attempt).finding

    assert finding is not None
    assert finding.next_steps[0].endswith("""'/home/ada/it'"'"'s a run.log' | tail -40""")


def test_what_to_type_next_names_the_log_of_the_rank() -> None:
    attempt = exit_of(
        TERM, ONE, order=(1, 0), errors={1: OWN}, log_path="/job0.log", log_paths={1: "/job1.log"}
    )

    finding = judge_exit(attempt).finding

    assert finding is not None
    assert finding.next_steps[0].endswith("/job1.log | tail -40")


def incident() -> Incident:
    return Incident(
        id="20261121T000000Z-j0", key="k", job_id="j0", detected_at=1000.0, kind="abnormal_end"
    )


def test_a_report_has_a_row_for_every_rank_and_the_last_words_of_the_culprit() -> None:
    attempt = exit_of(TERM, ONE, TERM, order=(1, 0, 2), errors={1: OWN})
    one = add_exit(incident(), attempt, 1001.0, "rank 1 exited")
    report = write_report(
        close_incident(one, "ended", 1002.0, "the job has ended"), judge(one), 1003.0
    )

    assert (report.kind, report.trigger, report.state) == ("abnormal_end", "exit", "ended")
    assert [(row.rank, row.class_, row.culprit) for row in report.ranks] == [
        (0, "exited", False),
        (1, "exited", True),
        (2, "exited", False),
    ]
    assert report.ranks[1].log == OWN.lines
    assert [(group.ranks, group.count) for group in report.groups] == [("1", 1), ("0,2", 2)]
    assert report.captures == ()
    assert report.nodes[0].node == "n1"


def test_the_job_named_in_the_report_is_the_attempt_that_failed() -> None:
    taken = without_processes(exit_of(ONE, TERM, attempt=2), 5.0, {})

    assert (taken.job.attempt, taken.job.ranks, len(taken.job.lost)) == (2, (), 2)


def test_attempts_that_fail_alike_are_counted_in_one_story() -> None:
    one = incident()
    for attempt in range(3):
        ended = exit_of(TERM, ONE, order=(1, 0), errors={1: OWN}, attempt=attempt)
        one = add_exit(one, ended, 1000.0 + attempt, "rank 1 exited")

    assert one.failed == (0, 1, 2)
    assert "3 attempts failed this way (0, 1, 2)" in judge(one).diagnosis.summary
    assert [event.what for event in one.timeline][
        1
    ] == "attempt 1 failed the same way: rank 1 exited"


def test_attempts_that_only_the_launcher_saw_are_counted_too() -> None:
    failures = tuple(LauncherFailure(pid=pid, local_rank=1, status=ONE) for pid in (101, 201, 301))
    attempt = exit_of(TERM, ONE, order=(1, 0), words=LauncherWords(failures=failures))
    one = add_exit(incident(), attempt, 1000.0, "rank 1 exited")
    again = add_exit(one, exit_of(TERM, ONE, order=(1, 0), attempt=2), 1001.0, "rank 1 exited")

    assert one.failed == again.failed == (0, 1, 2)


def test_a_rank_that_ends_later_belongs_to_the_same_attempt() -> None:
    one = add_exit(incident(), exit_of(KILL, size=2), 1000.0, "rank 0 was killed")
    more = add_exit(one, exit_of(KILL, TERM), 1001.0, "rank 1 ended")

    assert more.failed == (0,)
    assert more.exit is not None
    assert more.exit.living == ()
    assert [culprit.rank for culprit in judge(more).diagnosis.culprits] == [0]


def test_what_an_agent_saw_before_its_restart_is_not_lost_to_less() -> None:
    one = add_exit(incident(), exit_of(KILL, size=2), 1000.0, "rank 0 was killed")
    rest = msgspec.structs.replace(
        exit_of(KILL, TERM), identities=ranks(2)[1:], exits=exit_of(KILL, TERM).exits[1:]
    )
    more = add_exit(one, rest, 1001.0, "rank 1 ended")

    assert [culprit.rank for culprit in judge(more).diagnosis.culprits] == [0]


def test_ranks_that_live_on_are_shown_as_they_were_captured() -> None:
    waits = rank(1, process(*WAITER, pid=101, move=still()), world=2)
    taken = capture(waits, lost=(LostRank(rank=0, pid=100, exit_status=KILL),))
    attempt = exit_of(KILL, size=2, kernel_readable=True)
    one = add_capture(add_exit(incident(), attempt, 1000.0, "x"), taken)
    judgement = judge(one)

    assert [row.is_.name for row in judgement.ranks] == ["exited", "collective"]
    assert len(write_report(one, judgement, 1.0).captures) == 1


def test_where_exits_name_nobody_a_capture_from_just_before_may() -> None:
    waits = rank(0, process(*WAITER, pid=100, move=still()), world=2)
    sleeps = process(
        "load (train.py:7)", pid=101, wchan="hrtimer_nanosleep", syscall="clock_nanosleep", move=still(span=20.0),
    )  # fmt: skip
    attempt = exit_of(ONE, TERM, order=(0, 1), errors={0: PEER})
    judgement = judgement_of(attempt, judge_exit(attempt), capture(waits, rank(1, sleeps, world=2)))

    assert judgement.diagnosis.verdict is Verdict.RANK_WAITING
    assert [culprit.rank for culprit in judgement.diagnosis.culprits] == [1]
    assert "then the job ended" in judgement.diagnosis.summary


def blocked(number: int) -> RankCapture:
    """Blocked in a read that nobody answers, and in no call of which we know that others must answer it."""
    pipe = process(
        "read_all (train.py:9)", pid=100 + number, wchan="pipe_read", syscall="read", move=still(span=20.0),
    )  # fmt: skip
    return rank(number, pipe, world=3)


@pytest.mark.parametrize("status", [ONE, 3 << 8, ABRT])
def test_who_outlives_a_failed_rank_is_not_named_for_it(status: int) -> None:
    lost = (LostRank(rank=0, pid=100, exit_status=status),)
    taken = capture(blocked(1), blocked(2), world=3, lost=lost)
    taken = msgspec.structs.replace(taken, taken_at=1030.0)
    attempt = exit_of(status, size=3)

    judgement = judgement_of(attempt, judge_exit(attempt), taken)

    assert judgement.diagnosis.culprits == ()
    assert "then the job ended" not in judgement.diagnosis.summary


def test_who_kept_the_first_waiting_is_named_though_it_outlives_it() -> None:
    sleeps = process(
        "load (train.py:7)", pid=101, wchan="hrtimer_nanosleep", syscall="clock_nanosleep", move=still(span=20.0),
    )  # fmt: skip
    waits = rank(2, process(*WAITER, pid=102, move=still()), world=3)
    taken = capture(rank(1, sleeps, world=3), waits, world=3)
    taken = msgspec.structs.replace(taken, taken_at=1030.0)
    attempt = exit_of(ONE, size=3, errors={0: PEER})

    judgement = judgement_of(attempt, judge_exit(attempt), taken)

    assert [culprit.rank for culprit in judgement.diagnosis.culprits] == [1]
    assert judgement.diagnosis.summary.endswith("then a rank ended")


@pytest.mark.parametrize(
    ("status", "verdict", "blamed", "confidence"),
    [
        (KILL, Verdict.RANK_EXITED, [0], Confidence.MEDIUM),
        (SEGV, Verdict.RANK_EXITED, [0], Confidence.MEDIUM),
        (ABRT, Verdict.RANK_BLOCKED_IO, [1], Confidence.LOW),  # a victim of rank 1, perhaps
        (ONE, Verdict.RANK_BLOCKED_IO, [1], Confidence.LOW),
    ],
)
def test_a_capture_of_who_outlived_another_names_them_at_low_only(
    status: int, verdict: Verdict, blamed: list[int], confidence: Confidence
) -> None:
    taken = capture(blocked(1), world=2, lost=(LostRank(rank=0, pid=100, exit_status=status),))

    diagnosis = diagnose([taken]).diagnosis

    assert (diagnosis.verdict, diagnosis.confidence) == (verdict, confidence)
    assert [culprit.rank for culprit in diagnosis.culprits] in (blamed, [])


# --- dumps of Flight Recorders -----------------------------------------------------------------------


def dumped(created: float, timeout: float) -> dict[int, FlightRecord]:
    """Rank 0 waits in a call that rank 1 has not made."""
    hangs = call("all_reduce", 6, at=created)
    waiting = group(msgspec.structs.replace(hangs, timeout=timeout), ranks=(0, 1))
    behind = group(call("all_reduce", 5, done=True), ranks=(0, 1))
    return {0: FlightRecord(groups=(waiting,)), 1: FlightRecord(groups=(behind,))}


@pytest.mark.parametrize(
    ("created", "timeout", "counts"),
    [
        (390.0, 600.0, True),
        (281.0, 600.0, True),
        (279.0, 600.0, False),
        (990.0, 600.0, False),
        (390.0, 0.0, False),
    ],
    ids=["10 s before", "119 s before", "121 s before", "not too late yet", "no limit told"],
)
def test_a_dump_counts_where_its_call_was_too_late_just_before_the_end(
    created: float, timeout: float, counts: bool
) -> None:
    """Rank 0 ended at 1000.0; an older dump is one that the job survived, or a neighbour's with the same path."""
    changed = msgspec.structs.replace(exit_of(ABRT, ABRT), flights=dumped(created, timeout))
    plain = judge_exit(exit_of(ABRT, ABRT)).finding
    found = judge_exit(changed).finding
    assert plain is not None
    assert found is not None
    words = "Flight Recorder, dumped before the end: rank 0 waited in all_reduce 6 of group 0, which rank 1 had not called"
    assert found.evidence == (*plain.evidence, *([words] if counts else []))
    assert (found.culprits, found.confidence) == (plain.culprits, plain.confidence)
