"""`mldebug flight-recorder` on folders as people have them: odd names, bad files, and recordings of real hangs."""

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from mldebug.capture.flight_recorder.files.folder import read_folder
from mldebug.cli import main as cli
from mldebug.core.errors import EvidenceError
from shared.capture.dumps import as_json, calls, dump, late, write

H200 = Path(__file__).parents[2] / "fixtures" / "h200"
ONE = pickle.dumps(dump(calls(3)), 2)


def judged(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = cli.main(["flight-recorder", "--json", str(folder)])
    return code, json.loads(capsys.readouterr().out)


# --- recordings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hang", "kind", "culprits", "sequence"),
    [("sleep", "missing_rank", [1], 56812), ("desync", "split", [], 28807)],
)
def test_recorded_hangs_on_two_gpus(
    hang: str, kind: str, culprits: list[int], sequence: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder holds other files, too; two ranks have no majority."""
    code, found = judged(H200 / f"hang-{hang}", capsys)
    assert code == 1
    assert (found["kind"], found["culprits"], found["group"], found["seq"]) == (
        kind, culprits, "0", sequence,
    )  # fmt: skip
    assert found["dumps"] == 2


def test_as_a_person_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, late(2))
    assert cli.main(["flight-recorder", str(tmp_path)]) == 1
    assert capsys.readouterr().out == (
        "missing_rank: rank 2\n"
        "  Rank 2 has not called all_reduce 4 of group 0, in which ranks 0-1,3 wait at train_step (train.py:21). Its last"
        " call there was all_reduce 3 at train_step (train.py:21).\n"
    )


def test_a_healthy_job_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, dict.fromkeys(range(4), dump(calls(3))))
    assert cli.main(["flight-recorder", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("healthy\n")


def test_a_folder_behind_a_link_is_that_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "real", late(2))
    (tmp_path / "link").symlink_to("real")
    assert judged(tmp_path / "link", capsys)[1]["culprits"] == [2]


# --- files of other jobs ---------------------------------------------------------------------------


def moved(one: dict[str, Any], seconds: int) -> dict[str, Any]:
    later = [it | {"time_created_ns": it["time_created_ns"] + seconds * 10**9} for it in one["entries"]]  # fmt: skip
    return one | {"entries": later}


@pytest.mark.parametrize("count", [9, 90])
def test_a_file_of_an_earlier_job_is_no_dump_of_this_one(
    count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 2 hangs before it can dump, and its old file is there: of a job that had come less far, or further."""
    now = moved(dump(calls(40, last="started")), 100_000)
    write(tmp_path, dict.fromkeys(range(4), now) | {2: dump(calls(count, last="started"))})
    _, found = judged(tmp_path, capsys)
    assert (found["kind"], found["culprits"], found["dumps"]) == ("no_dump", [2], 3)
    (problem,) = found["problems"]
    assert (problem["file"], problem["rank"]) == ("trace_2", 2)
    assert "it is of another time: its last call was made 27.8 hours before" in problem["reason"]


def test_a_rank_that_is_behind_for_less_than_a_timeout_is_of_this_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumps = late(2) | {n: moved(late(2)[n], 1700) for n in (0, 1, 3)}
    assert judged(write(tmp_path / "near", dumps), capsys)[1]["culprits"] == [2]
    slow = [one | {"timeout_ms": 7_200_000} for one in calls(4, last="started")]
    long = dump(slow) | {"entries": moved(dump(slow), 7000)["entries"]}
    found = judged(write(tmp_path / "long", {0: long, 1: long, 2: late(2)[2], 3: long}), capsys)[1]
    assert (found["culprits"], found["problems"]) == ([2], [])


def test_a_file_of_a_job_of_another_size_is_no_dump_of_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = dump(calls(3), {"0": range(2)})
    write(tmp_path, dict.fromkeys(range(4), dump(calls(4, last="started"))) | {1: other})
    _, found = judged(tmp_path, capsys)
    assert (found["kind"], found["culprits"]) == ("no_dump", [1])
    assert [one["reason"] for one in found["problems"]] == ["it is of another job: one of ranks 0-1, and not 0-3"]  # fmt: skip


# --- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("trace_3", 3), ("3", 3), ("trace3.pickle", 3), ("nccl_trace_rank_3.json", 3), ("trace.3", 3),
        ("host-17.cluster.local_3", 3), ("gpu-08-rank03.pkl", 3), ("trace_0", 0), ("node12-worker5_007.json", 7),
    ],
)  # fmt: skip
def test_the_last_number_is_the_rank(name: str, rank: int, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(ONE)
    assert list(read_folder(tmp_path).records) == [rank]


@pytest.mark.parametrize(
    "name", ["host17.example", "README.md", "fr_trace-tail.txt", "trace_", "trace_3.log"]
)
def test_other_names_are_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / "trace_0").write_bytes(ONE)
    (tmp_path / name).write_bytes(b"whatever")
    found = read_folder(tmp_path)
    assert (list(found.records), found.problems, found.ignored) == ([0], (), 1)


def test_two_files_of_one_rank(tmp_path: Path) -> None:
    """That which is named as the others are is read, and the other one named."""
    write(tmp_path, dict.fromkeys(range(3), dump(calls(3))))
    (tmp_path / "a_2").write_bytes(b"garbage")
    found = read_folder(tmp_path)
    assert sorted(found.records) == [0, 1, 2]
    assert [(one.file, one.rank) for one in found.problems] == [("a_2", 2)]
    assert found.problems[0].reason == "left out: trace_2 is of the same rank"


def test_json_beside_pickles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = late(2)
    write(tmp_path, {rank: made[rank] for rank in (0, 1)})
    for rank in (2, 3):
        (tmp_path / f"trace_{rank}.json").write_bytes(as_json(made[rank]))
    assert judged(tmp_path, capsys)[1]["culprits"] == [2]


# --- bad files -------------------------------------------------------------------------------------


class Command:
    def __reduce__(self) -> Any:
        return os.system, ("echo harm > harmed",)


def test_bad_files_are_named_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write(
        tmp_path / "dumps", {rank: one for rank, one in late(2, world=12).items() if rank < 4}
    )
    (folder / "trace_4").write_bytes(ONE[:200])
    with (folder / "trace_5").open("wb") as file:
        file.truncate(1 << 30)
    (folder / "trace_6").write_bytes(pickle.dumps(Command(), 2))
    (folder / "trace_7").symlink_to("trace_0")
    os.mkfifo(folder / "trace_8")
    (folder / "trace_9").mkdir()
    (folder / "trace_10").write_bytes(b"")
    (folder / "trace_1000000000").write_bytes(ONE)
    code, found = judged(folder, capsys)
    assert code == 1
    assert (found["kind"], found["culprits"], found["dumps"]) == ("missing_rank", [2], 4)
    reasons = {one["file"]: one["reason"] for one in found["problems"]}
    assert reasons == {
        "trace_4": "it is being written, or was cut off",
        "trace_5": "it has 1,073,741,824 bytes, more than 67,108,864",
        "trace_6": "it asks for a class or a function, which a dump never does",
        "trace_7": "it is a symbolic link",
        "trace_8": "it is not a regular file",
        "trace_9": "it is not a regular file",
        "trace_10": "it is empty",
        "trace_1000000000": "its name ends in no rank: the number is too large",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["dumps"]


def test_a_rank_whose_dump_is_broken_is_not_one_without_a_dump(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, late(2))
    (tmp_path / "trace_2").write_bytes(ONE[:200])
    _, found = judged(tmp_path, capsys)
    assert (found["kind"], found["culprits"]) == ("unknown", [])
    assert (
        "the dump of rank 2 is there and cannot be used (it is being written"
        in found["explanation"]
    )
    assert "no dump of rank 2" not in found["explanation"]
    assert cli.main(["flight-recorder", str(tmp_path)]) == 1
    assert "1 file tells nothing\n  trace_2: it is being written" in capsys.readouterr().out


def test_nothing_that_can_be_read_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for made in ("empty", "bad"):
        (tmp_path / made).mkdir()
    (tmp_path / "bad" / "trace_0").write_bytes(b"no dump")
    (tmp_path / "file_0").write_bytes(ONE)
    for place, why in (
        ("empty", "holds no file whose name ends in a rank"),
        ("bad", "trace_0: it is neither a pickle nor JSON"),
        ("file_0", "is not a folder"),
        ("none", "No such file"),
    ):
        assert cli.main(["flight-recorder", str(tmp_path / place)]) == 2
        output = capsys.readouterr()
        assert why in output.err
        assert "way out: " in output.err
        assert output.out == ""


def test_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mldebug.capture.flight_recorder.files.folder.MAX_FILES", 3)
    write(tmp_path, dict.fromkeys(range(4), dump(calls(1))))
    with pytest.raises(EvidenceError, match="holds 4 files"):
        read_folder(tmp_path)


def test_a_copy_elsewhere_gives_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither times of files nor their order in the folder matter."""
    write(tmp_path / "one", late(2))
    (tmp_path / "two").mkdir()
    for rank in (3, 1, 2, 0):
        shutil.copyfile(tmp_path / "one" / f"trace_{rank}", tmp_path / "two" / f"trace_{rank}")
    assert judged(tmp_path / "one", capsys) == judged(tmp_path / "two", capsys)
