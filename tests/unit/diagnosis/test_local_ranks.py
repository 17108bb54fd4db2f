"""Local ranks in logs: which rank they are, and where nobody can know."""

from pathlib import Path

import pytest

from mldebug.cli.commands.diagnose import judge, read_evidence
from mldebug.core.model import Confidence
from mldebug.core.report_model import Report
from unit.diagnosis.test_recorded_logs import NOBODY, OWN, STEPS, VICTIM, judged, named, table


def failed(code: int, local: int, pid: int = 10271) -> str:
    return f"E1105 06:18:11.067000 14045 torch/distributed/elastic/multiprocessing/api.py:881] failed (exitcode: {code}) local_rank: {local} (pid: {pid}) of binary: python"


def default(local: int, lines: tuple[str, ...] = OWN) -> list[str]:
    """As `torchrun --tee` marks lines."""
    return [f"[default{local}]:{line}" for line in lines]


@pytest.mark.parametrize(
    "size",
    [
        *("data parallel world size: 2", "> DP world_size = 2", "Local world size: 2", "tensor parallel world size: 2", "pipeline world_size: 2"),
        *("world_size=2\nnnodes=2", "+ torchrun --nnodes 2 --node_rank 0 train.py\nworld_size=2", "world_size=2\n--node_rank=1"),
    ],
)  # fmt: skip
def test_the_size_of_a_part_makes_no_rank_of_a_local_rank(tmp_path: Path, size: str) -> None:
    lines = (*default(0, STEPS), *default(1), failed(1, 1))
    assert named(judged(tmp_path, *size.splitlines(), *lines))[0] == NOBODY
    assert named(judged(tmp_path, "world size: 2", *lines))[0] == [1]


LABELS = ("{0}: {1}", "[pod/{0}/train] {1}", "{0}  | {1}")
FAR = [*default(1, STEPS), failed(1, 1, 4003), *table((3, 1, 1))]


@pytest.mark.parametrize("label", LABELS)
def test_a_local_rank_of_one_node_is_none_of_the_other(tmp_path: Path, label: str) -> None:
    """The table is of the second node, where local rank 1 is rank 3; what local rank 1 of the first one wrote is of rank 1, which no line says."""
    lines = [(1, line) for line in (*default(0, STEPS), *default(1))] + [(2, line) for line in FAR]
    report = judged(tmp_path, *(label.format(f"n{node}", line) for node, line in lines))
    assert report.diagnosis.confidence is Confidence.LOW
    assert "code 1: KeyError" not in report.diagnosis.summary
    alone = [label.format("n2", line) for _, line in lines]
    if label == LABELS[0]:
        # its steps stand below its error
        assert named(judged(tmp_path, *alone)) == ([3], Confidence.MEDIUM)


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_marks_behind_the_label_of_a_host_are_read_with_the_table_of_that_host(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    """Local rank 1 of the first node lost its peer; that of the second, which is rank 3, raised. A label that the table lacks tells nothing."""
    of_node = {
        1: [*default(0, STEPS), *default(1, VICTIM)],
        2: [*default(0, VICTIM), *default(1), failed(1, 1, 4003), *table((3, 1, 1))],
    }
    lines = [f"n{node}: {line}" for node in order for line in of_node[node]]
    report = judged(tmp_path, *lines)
    assert named(report) == ([3], Confidence.HIGH)
    assert "KeyError" in report.diagnosis.summary
    cut = [line for line in lines if "local_rank" not in line and "rank  " not in line]
    assert named(judged(tmp_path, *cut))[0] == NOBODY


def judged_folder(where: Path, **logs: list[str]) -> Report:
    """Of logs by their paths, in which `__` stands for a slash."""
    for name, lines in logs.items():
        file = where / f"{name.replace('__', '/')}.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return judge(read_evidence(where)).report


@pytest.mark.parametrize(
    "logs",
    [
        {"node0": [*default(0, STEPS), *default(1)], "node1": FAR},
        {"n0__attempt_0__0__stderr": list(STEPS), "n0__attempt_0__1__stderr": list(OWN), "n1__attempt_0__1__stderr": list(STEPS), "n1__launcher": table((3, 1, 1))},
    ],
)  # fmt: skip
def test_an_error_in_the_log_of_another_node_is_not_that_of_the_rank_in_the_table(
    tmp_path: Path, logs: dict[str, list[str]]
) -> None:
    report = judged_folder(tmp_path, **logs)
    assert named(report) == ([3], Confidence.LOW)  # its exit code is all that is known
    assert "printed KeyError" not in report.diagnosis.summary


def test_logs_of_one_node_still_tell_whose_error_it_is(tmp_path: Path) -> None:
    """Its table in stderr, its marks in stdout; or the launcher's log beside torchrun's folder."""
    report = judged_folder(tmp_path / "a", job_out=[*default(0, STEPS), *default(1)], job_err=table((3, 1, 1)))  # fmt: skip
    assert named(report) == ([3], Confidence.HIGH)
    report = judged_folder(
        tmp_path / "b",
        n1__attempt_0__0__stderr=list(STEPS),
        n1__attempt_0__1__stderr=list(OWN),
        n1__launcher=table((3, 1, 1)),
    )
    assert named(report) == ([3], Confidence.HIGH)


@pytest.mark.parametrize(
    ("names", "rank"),
    [
        (("node0__rank0", "node0__rank1", "node1__rank0", "node1__rank1"), None),
        (("gpu-a__rank0", "gpu-b__rank0", "gpu-b__rank1"), None),
        (("node1__rank0", "node1__rank1"), None),
        (("node1-rank0", "node1-rank1"), None),
        (("node0__rank0", "node0__rank1"), 1),
        (("node0__rank0", "node1__rank1"), 1),
        (("node1__rank0", "node1__rank1", "node2__rank2", "node2__rank3"), 3),
        (("logs__rank0", "logs__rank1"), 1),
        (("stdout__rank0", "stderr__rank0", "stdout__rank1", "stderr__rank1"), 1),
    ],
)
def test_a_rank_in_the_name_of_a_log_may_be_a_local_one(
    tmp_path: Path, names: tuple[str, ...], rank: int | None
) -> None:
    """The last of them failed."""
    report = judged_folder(tmp_path, **{name: list(STEPS) for name in names[:-1]}, **{names[-1]: [*STEPS, *OWN]})  # fmt: skip
    assert named(report)[0] == ([] if rank is None else [rank])


@pytest.mark.parametrize("marks", [(9,), (8, 9), ()])
def test_that_all_ranks_left_well_is_said_only_of_ranks_that_were_seen_to(
    tmp_path: Path, marks: tuple[int, ...]
) -> None:
    """A killed rank of a second node, of which no line says which rank it is."""
    steps = [f"[rank{rank}]: {line}" for rank in marks for line in STEPS]
    report = judged(tmp_path, *steps, failed(-9, 1))
    assert named(report)[0] == NOBODY
    assert "exit 0" not in report.diagnosis.summary
    assert "a process had failed" in report.diagnosis.summary
