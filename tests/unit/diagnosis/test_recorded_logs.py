"""The end of a job from its logs alone: whom they show, and nobody where they do not tell."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mldebug.cli.commands.diagnose import judge, read_evidence
from mldebug.core.errors import EvidenceError
from mldebug.core.model import Confidence
from mldebug.core.report_model import Report
from shared.diagnosis.fieldcases import FIELD, all_cases
from shared.diagnosis.fieldexits import play

OWN = (
    "Traceback (most recent call last):",
    '  File "/job/train.py", line 88, in train_step',
    "    loss = model(batch)",
    "KeyError: 'labels'",
)
VICTIM = (
    "Traceback (most recent call last):",
    '  File "/job/train.py", line 91, in reduce',
    "    dist.all_reduce(total)",
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:4711",
)
STEPS = ("step 7 loss 2.0", "step 8 loss 2.0")


def marked(rank: int, lines: tuple[str, ...] = OWN) -> list[str]:
    return [f"[rank{rank}]: {line}" for line in lines]


def table(*rows: tuple[int, int, int]) -> list[str]:
    """torchrun's: (rank, local rank, exit code) of each that failed, the first one last."""
    found = ["Failures:"]
    for number, (rank, local, code) in enumerate(rows):
        found += ["Root Cause (first observed failure):"] if number == len(rows) - 1 else []
        found += [
            f"[{number}]:",
            "  time      : 2026-03-05_07:01:51",
            "  host      : n1",
            f"  rank      : {rank} (local_rank: {local})",
            f"  exitcode  : {code} (pid: {4000 + rank})",
            "  error_file: <N/A>",
            "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        ]
    return found


def judged(where: Path, *lines: str) -> Report:
    file = where / "job.log"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return judge(read_evidence(file)).report


def named(report: Report) -> tuple[list[int | None], Confidence]:
    return [one.rank for one in report.diagnosis.culprits], report.diagnosis.confidence


NOBODY: list[int | None] = []


def test_who_failed_by_itself_is_named_and_never_surely_without_its_status(tmp_path: Path) -> None:
    """What nobody saw end has no status, and no order."""
    report = judged(tmp_path, *STEPS, *marked(0, VICTIM), *marked(2), *marked(1, VICTIM))
    assert named(report) == ([2], Confidence.MEDIUM)
    assert "KeyError: 'labels'" in report.diagnosis.summary
    assert len(report.ranks) == 3
    both = judged(
        tmp_path,
        *marked(2),
        *marked(1, ("Traceback (most recent call last):", *OWN[1:3], "ValueError: bad shard 7")),
    )
    assert named(both)[0] == NOBODY


@pytest.mark.parametrize(
    ("error", "alone"),
    [
        ("ValueError: loss is nan at step 7", Confidence.LOW),
        ("job.errors.NanLossError: loss became nan at step 1200", Confidence.LOW),
        ("ValueError: local loss is nan at step 7", Confidence.HIGH),  # before it was reduced
        ("ValueError: loss is nan for sample 'b-17'", Confidence.HIGH),
        ("ValueError: nan in column 'price'", Confidence.HIGH),
        ("ValueError: loss of kind 'focal' is not known", Confidence.HIGH),
    ],
)
def test_a_loss_that_is_not_finite_is_of_who_raised_it_where_others_lost_it(
    tmp_path: Path, error: str, alone: Confidence
) -> None:
    """With a loss that was reduced before, each rank raises, and the launcher ends those that are slower: then one is named at low. A rank
    that lost its peer has not raised: the one that did is to blame.
    """
    lines = (*OWN[:2], "    raise error", error)
    ends = table((2, 2, 1))
    assert named(judged(tmp_path, *STEPS, *marked(2, lines), *ends)) == ([2], alone)
    beside = [*marked(2, lines), *marked(1, VICTIM), *ends]
    assert named(judged(tmp_path, *STEPS, *beside)) == ([2], Confidence.HIGH)
    every = [line for rank in (2, 0, 1) for line in marked(rank, lines)]
    assert named(judged(tmp_path, *STEPS, *every, *ends))[1] is Confidence.LOW


def test_torchruns_table_tells_which_rank_a_pid_is(tmp_path: Path) -> None:
    """Of a second node, where local rank 1 is rank 5."""
    lines = ("[default1]: step 7", *[f"[default1]:{line}" for line in OWN], *table((5, 1, 1)))
    report = judged(tmp_path, *lines)
    assert named(report)[0] == [5]
    assert report.diagnosis.culprits[0].pid == 4005
    labelled = [f"n2: {line}" for line in lines]
    assert named(judged(tmp_path, *labelled))[0] == [5]
    victims = judged(tmp_path, *marked(4, VICTIM), *marked(5, VICTIM), *table((4, 0, 1), (5, 1, 1)))
    assert named(victims)[0] == NOBODY


def test_a_launchers_word_without_the_ranks_own_is_one_sign(tmp_path: Path) -> None:
    """Every victim leaves with 1, and its words may be missing in what somebody posted: the end of a log is torchrun's table alone."""
    assert named(judged(tmp_path, *table((5, 1, 1)))) == ([5], Confidence.LOW)
    task = "srun: error: n1: task 5: Exited with exit code 1"
    assert named(judged(tmp_path, task, "srun: Terminating StepId=7.0")) == ([5], Confidence.LOW)
    assert named(judged(tmp_path, *OWN, *table((5, 1, 1)))) == ([5], Confidence.MEDIUM)
    assert named(judged(tmp_path, *marked(5), *table((5, 1, 1)))) == ([5], Confidence.HIGH)
    assert named(judged(tmp_path, *table((5, 1, -11)))) == ([5], Confidence.HIGH)


@pytest.mark.parametrize("code", [1, 3, -7, -11])
def test_a_table_that_is_cut_before_its_first_failure_names_nobody(
    tmp_path: Path, code: int
) -> None:
    """Whose row is missing failed before all others."""
    whole = table((5, 1, code), (6, 2, -11))
    cut = whole[: whole.index("Root Cause (first observed failure):")]
    assert named(judged(tmp_path, *STEPS, *marked(3, VICTIM), *table((5, 1, code))))[0] == [5]
    assert named(judged(tmp_path, *STEPS, *marked(3, VICTIM), *cut))[0] == NOBODY


FIRST_OF_A_NODE = "E1105 06:18:11.067000 14045 torch/distributed/elastic/multiprocessing/api.py:881] failed (exitcode: -9) local_rank: 0 (pid: 10271) of binary: python"
COMMAND = "subprocess.CalledProcessError: Command '['torchrun', '--nnodes', '2', '--node_rank', '1', 'train.py']' returned non-zero exit status 1."


@pytest.mark.parametrize(
    "lines",
    [
        [FIRST_OF_A_NODE],
        [FIRST_OF_A_NODE, COMMAND],
        ["+ torchrun --nnodes 2 --node_rank 1 --nproc_per_node 1 train.py", FIRST_OF_A_NODE],
        [f"[default0]:{line}" for line in OWN],
        [*(f"[default0]:{line}" for line in OWN), FIRST_OF_A_NODE],
    ],
)
def test_the_first_of_a_node_is_rank_0_only_where_the_log_says_how_many_there_are(
    tmp_path: Path, lines: list[str]
) -> None:
    assert named(judged(tmp_path, *lines))[0] == []
    assert named(judged(tmp_path, "world_size=2", *lines))[0] == []
    assert named(judged(tmp_path, "world_size=1", *lines))[0] == [0]


def test_a_local_rank_alone_is_no_rank(tmp_path: Path) -> None:
    """Of which node, the log does not say."""
    failed = "E1105 06:18:11.067000 14045 torch/distributed/elastic/multiprocessing/api.py:881] failed (exitcode: -11) local_rank: 1 (pid: 10271) of binary: python"
    assert named(judged(tmp_path, *[f"[default1]:{line}" for line in OWN], failed))[0] == NOBODY
    whole = judged(
        tmp_path,
        "world_size: 2",
        "[default0]:step 7",
        *[f"[default1]:{line}" for line in OWN],
        failed,
    )
    assert named(whole)[0] == [1]
    more = judged(
        tmp_path,
        "world_size: 16",
        "[default0]:step 7",
        *[f"[default1]:{line}" for line in OWN],
        failed,
    )
    assert named(more)[0] == NOBODY


@pytest.mark.parametrize(
    "lines",
    [
        marked(1, VICTIM),
        list(OWN),  # of no rank in particular
        ["[2026-05-02 15:45:13,982] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python3', '-u', 'main.py', '--local_rank=1'] exits with return code = -7"],
        ["slurmstepd: error: *** STEP 977.0 ON n1 CANCELLED AT 2026-05-16T10:12:44 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"],
        table((0, 0, 1), (1, 1, 1)),
    ],
)  # fmt: skip
def test_nobody_is_named_where_the_log_does_not_tell(tmp_path: Path, lines: list[str]) -> None:
    assert named(judged(tmp_path, *STEPS, *lines))[0] == NOBODY


@pytest.mark.parametrize(
    ("lines", "rank"),
    [
        (("The first process to do so was:", "Process name: 1", "Exit code: 137"), 1),
        (("The first process to do so was:", "", "  Process name: [[65037,1],2]", "  Exit code:    1"), 2),
        (("mpirun noticed that process rank 3 with PID 1167 on node n2 exited on signal 11 (Segmentation fault).",), 3),
        (("srun: error: n1: task 1: Segmentation fault", "srun: Terminating StepId=7.0"), 1),
        (tuple(f"[1,2]<stderr>:{line}" for line in OWN), 2),
        (tuple(f"Mon Sep  7 07:52:18 2026[1,3]<stderr>:[n1:4711] {line}" for line in ("*** Process received signal ***", "Signal: Segmentation fault (11)")), 3),
        (tuple(f"Mon Sep  7 07:52:18 2026[1,3]<stderr>:[n1:4711 :0:4711] {line}" for line in ("Caught signal 11 (Segmentation fault: address not mapped)",)), 3),
    ],
)  # fmt: skip
def test_launchers_and_mpi_name_the_first(
    tmp_path: Path, lines: tuple[str, ...], rank: int
) -> None:
    report = judged(tmp_path, *STEPS, *lines)
    assert named(report)[0] == [rank]


@pytest.mark.parametrize("lines", [STEPS, ("all is well",), ("",), (*OWN, *(f"step {n} loss 2.0" for n in range(9)))])  # fmt: skip
def test_a_log_of_a_job_that_goes_on_is_refused(tmp_path: Path, lines: tuple[str, ...]) -> None:
    with pytest.raises(EvidenceError):
        judged(tmp_path, *lines)


def test_files_of_ranks_and_of_torchruns_folders(tmp_path: Path) -> None:
    for rank, lines in enumerate((VICTIM, VICTIM, OWN, STEPS)):
        (tmp_path / f"rank{rank}.log").write_text("\n".join((*STEPS, *lines)), encoding="utf-8")
    assert named(judge(read_evidence(tmp_path)).report)[0] == [2]
    run = tmp_path / "run"
    for local, lines in enumerate((VICTIM, OWN)):
        folder = run / "none_x1" / "attempt_0" / str(local)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text("\n".join((*STEPS, *lines)), encoding="utf-8")
    assert named(judge(read_evidence(run)).report)[0] == NOBODY  # of which node?
    (run / "launcher.log").write_text("\n".join(table((0, 0, 1), (1, 1, 1))), encoding="utf-8")
    assert named(judge(read_evidence(run)).report)[0] == [1]


LINES = [*STEPS, *marked(0, VICTIM), *marked(2)]


def _csv(names: tuple[str, ...], row: Callable[[int, str], tuple[str, ...]]) -> str:
    out = io.StringIO()
    csv.writer(out).writerows([names, *(row(number, line) for number, line in enumerate(LINES))])
    return out.getvalue()


def _at(number: int) -> str:
    return f"2026-09-07T13:02:{number:02}.000Z"


EXPORTS = {
    "Kibana, CSV": _csv(('"@timestamp"', "kubernetes.pod.name", "message"), lambda n, line: (f"Sep 7, 2026 @ 13:02:{n:02}.000", "train-0", line)),
    "Datadog, CSV, the newest first": "\n".join((rows := _csv(("Date", "Host", "Service", "Message"), lambda n, line: (_at(n), "n1", "train", line)).splitlines())[:1] + rows[:0:-1]),
    "CloudWatch Insights, CSV": _csv(("@timestamp", "@message", "@logStream"), lambda n, line: (f"2026-09-07 13:02:{n:02}.000", line, "train/n1")),
    "Loki, pretty": json.dumps({"status": "success", "data": {"resultType": "streams", "result": [{"stream": {"pod": "train-0"}, "values": [[str(1788786120 + n) + "000000000", line] for n, line in enumerate(LINES)]}]}}, indent=2),
    "CloudWatch, pretty": json.dumps({"events": [{"timestamp": 1788786120000 + n, "message": line, "logStreamName": "train/n1"} for n, line in enumerate(LINES)]}, indent=4),
    "Stackdriver, pretty, the newest first": json.dumps([{"textPayload": line, "timestamp": _at(n), "insertId": f"x{n}", "resource": {"labels": {"pod_name": "train-0"}}} for n, line in reversed(list(enumerate(LINES)))], indent=2),
    "Elasticsearch, pretty": json.dumps({"hits": {"hits": [{"_source": {"message": line, "@timestamp": _at(n)}} for n, line in enumerate(LINES)]}}, indent=1),
    "Datadog, API": json.dumps({"data": [{"attributes": {"host": "n1", "message": line, "timestamp": _at(n)}} for n, line in enumerate(LINES)]}),
    "JSON lines": "\n".join(json.dumps({"log": line + "\n", "stream": "stderr", "time": _at(n)}) for n, line in enumerate(LINES)),
}  # fmt: skip


@pytest.mark.parametrize("collector", EXPORTS)
def test_last_words_in_exports_of_collectors(tmp_path: Path, collector: str) -> None:
    assert named(judged(tmp_path, EXPORTS[collector])) == ([2], Confidence.MEDIUM)


@pytest.mark.parametrize("plan", sorted((FIELD / "exits").glob("*.plan.json")), ids=lambda one: one.name.partition(".")[0])  # fmt: skip
def test_nobody_is_named_whom_the_exits_clear(tmp_path: Path, plan: Path) -> None:
    """The recorded ends, their logs alone: what is named surely is what is right with the exits seen."""
    right = RIGHT[plan.name.partition(".")[0]]
    steps = json.loads(plan.read_text())["ranks"]
    for mark in ("[rank{}]: ", ""):
        lines = [
            line if line.startswith(("[rank", "step ")) or not line else mark.format(rank) + line
            for rank in range(4)
            for line in play(steps.get(str(rank), steps.get("*", [])), rank).lines
        ]
        try:
            found, confidence = named(judged(tmp_path, *lines))
        except EvidenceError:
            continue
        assert found == NOBODY or found in right or confidence is Confidence.LOW


def _right() -> dict[str, list[list[int]]]:
    return {
        case.name: [list(one) for one in case.named or ()]
        for some in all_cases()
        if some.folder.name == "exits"
        for case in some.cases
    }


RIGHT = _right()


def test_of_ranks_whose_calls_differ_all_that_are_told_of_count(tmp_path: Path) -> None:
    """Two say what they called, and that rank 3 called something else: that is no majority of four."""
    call = "CollectiveFingerPrint(SequenceNumber=9, OpType={}, TensorShape=[8])"
    error = "RuntimeError: Detected mismatch between collectives on ranks. Rank {} is running collective: {}, but Rank 3 is running collective: {}."
    lines = [marked(rank, (*OWN[:3], error.format(rank, call.format("ALLREDUCE"), call.format("BARRIER")))) for rank in range(3)]  # fmt: skip
    assert named(judged(tmp_path, *lines[0], *lines[1])) == ([3], Confidence.LOW)
    assert named(judged(tmp_path, *lines[0], *lines[1], *lines[2])) == ([3], Confidence.MEDIUM)


@pytest.mark.parametrize("mark", ["{}: ", "[1,{}]<stderr>:"])
@pytest.mark.parametrize(("per_task", "ranks"), [(4, NOBODY), (1, [1])])
def test_the_number_of_a_task_is_no_rank_where_its_lines_tell_of_another(
    tmp_path: Path, mark: str, per_task: int, ranks: list[int | None]
) -> None:
    """Lightning starts the ranks of a node itself, and says who it is."""
    world = 2 * per_task
    begins = [f"{mark.format(rank // per_task)}Initializing distributed: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/{world}" for rank in range(world)]  # fmt: skip
    ends = [f"{mark.format(task)}{line}" for task, lines in ((1, OWN), (0, VICTIM)) for line in lines]  # fmt: skip
    stopped = ["srun: error: n1: task 1: Exited with exit code 1"] if mark == "{}: " else []
    assert named(judged(tmp_path, *begins, *ends, *stopped))[0] == ranks


def test_a_traceback_of_the_table_that_is_cut_is_no_error(tmp_path: Path) -> None:
    """Its last line is missing, and with it whose failure it was."""
    rows = table((1, 1, 1))[:-1]
    head = "  traceback : Traceback (most recent call last):"
    own, victim = ([head, *(f"  {line}" for line in lines[1:])] for lines in (OWN, VICTIM))
    assert named(judged(tmp_path, *rows, *victim[:-1])) == ([1], Confidence.LOW)
    assert named(judged(tmp_path, *rows, *victim))[0] == NOBODY
    assert named(judged(tmp_path, *rows, *own)) == ([1], Confidence.HIGH)
