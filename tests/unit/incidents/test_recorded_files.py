"""Which files of a folder `mldebug diagnose` reads: compressed and rotated logs as what they hold, and none that only quote a log."""

import bz2
import gzip
import lzma
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mldebug.cli.commands.diagnose import judge, read_evidence
from mldebug.core.errors import EvidenceError
from shared.capture.dumps import as_json, calls, dump

LOST = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:31337"
OWN = "ValueError: bad shard 7"
_STACK = 'Process {pid}: python train.py\nPython v3.11.9\n\nThread {pid} (idle): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:2806)\n    main (train.py:80)\n'
STEPS = "".join(f"[rank2]: step {n} loss 5.{n}\n" for n in range(40))


def _words(error: str) -> str:
    return f'step 7 loss 5.1\nTraceback (most recent call last):\n  File "/job/train.py", line 30, in train\n    step()\n{error}\n'


def _named(folder: Path) -> list[int | None]:
    return [one.rank for one in judge(read_evidence(folder)).report.diagnosis.culprits]


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_packed_logs_of_ranks(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    for rank in range(4):
        text = _words(OWN if rank == 2 else LOST)
        (tmp_path / f"rank{rank}.log{suffix}").write_bytes(pack(text.encode()))
    assert _named(tmp_path) == [2]


def test_packed_stacks(tmp_path: Path) -> None:
    for rank in range(4):
        where = (
            "slow (train.py:9)"
            if rank == 1
            else "all_reduce (torch/distributed/distributed_c10d.py:2806)"
        )
        text = f'Process {70 + rank}: python train.py\nPython v3.11.9\n\nThread {70 + rank} (idle): "MainThread"\n    {where}\n    main (train.py:80)\n'
        (tmp_path / f"rank{rank}.txt.gz").write_bytes(gzip.compress(text.encode()))
    assert _named(tmp_path) == [1]


def test_what_is_left_of_a_log_that_was_cut_off(tmp_path: Path) -> None:
    noise = "".join(f"{n * 7919:x} {n * n * 104729:x}\n" for n in range(40))
    whole = gzip.compress((_words(OWN) + noise).encode())
    (tmp_path / "rank2.log.gz").write_bytes(whole[:-60])
    (tmp_path / "rank0.log").write_text(_words(LOST))
    assert _named(tmp_path) == [2]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_log_that_lacks_its_end_is_told_and_nobody_is_named_surely(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    """What rank 1 wrote last nobody knows."""
    (tmp_path / "rank2.log").write_text(_words(OWN))
    (tmp_path / "rank0.log").write_text(_words(LOST))
    whole = pack(_words(OWN).encode())
    (tmp_path / "rank1.log.gz").write_bytes(whole)
    assert judge(read_evidence(tmp_path)).report.diagnosis.culprits == ()
    (tmp_path / "rank1.log.gz").write_bytes(whole[:20])
    report = judge(read_evidence(tmp_path)).report
    assert _named(tmp_path) == [2]
    assert report.diagnosis.confidence == "low"
    assert [one.rank for one in report.gaps] == [1]
    assert "damaged or cut off" in report.gaps[0].reason


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_folder_with_nothing_but_what_is_left_of_a_log(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    whole = pack("".join(f"step {n} loss {n * 7919 % 104729}\n" for n in range(400)).encode())
    (tmp_path / "job.log.x").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EvidenceError, match="damaged or cut off"):
        read_evidence(tmp_path)


@pytest.mark.parametrize("older", ["job.log.1", "job.log.1.gz", "job.log-20261127.gz"])
def test_an_error_in_an_older_part_of_a_log_that_went_on(tmp_path: Path, older: str) -> None:
    """A control: what was rotated away is no end of its own."""
    text = "".join(f"[rank2]: {line}\n" for line in _words(OWN).splitlines())
    packed = gzip.compress(text.encode()) if older.endswith(".gz") else text.encode()
    (tmp_path / older).write_bytes(packed)
    (tmp_path / "job.log").write_text(STEPS)
    with pytest.raises(EvidenceError):
        read_evidence(tmp_path)


MARKED = "".join(f"[rank2]: {line}\n" for line in _words(OWN).splitlines())


@pytest.mark.parametrize("name", ["README.md", "manual/README.rst", "test_logs.py", "parse.cpp", "TROUBLESHOOTING.md", "fix.patch"])  # fmt: skip
def test_what_quotes_a_log_is_no_evidence(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(f"When it says this:\n\n{MARKED}\nthen load the shard again.\n")
    for given in (tmp_path, tmp_path / name):
        with pytest.raises(EvidenceError):
            read_evidence(given)


@pytest.mark.parametrize("name", ["troubleshooting.log", "readme-run.err", "faq.out", "changelog.log.gz", "troubleshooting_rank2.txt", "log", "rank.log"])  # fmt: skip
def test_a_log_with_a_name_like_a_page_is_one(tmp_path: Path, name: str) -> None:
    data = MARKED.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert _named(tmp_path) == [2]
    assert _named(tmp_path / name) == [2]


def test_a_page_beside_records_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text(MARKED.replace("rank2", "rank3"))
    (tmp_path / "job.log").write_text(MARKED)
    assert _named(tmp_path) == [2]


def test_a_page_by_itself_is_what_somebody_posted(tmp_path: Path) -> None:
    """A control: the text of an issue that was saved."""
    (tmp_path / "issue.md").write_text(f"### Training dies\n\n```\n{MARKED}```\n")
    assert _named(tmp_path) == [2]
    assert _named(tmp_path / "issue.md") == [2]


def _flight_recorders(folder: Path, form: str) -> None:
    """Dumps of four ranks, of which rank 2 is behind."""
    for rank in range(4):
        one = dump(calls(30 if rank != 2 else 29, last="completed" if rank == 2 else "started"))
        data = as_json(one) if form == "json" else pickle.dumps(one, 2)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_flight_recorder_dumps_alone_are_pointed_to_their_command(
    tmp_path: Path, form: str
) -> None:
    _flight_recorders(tmp_path, form)
    with pytest.raises(EvidenceError, match=r"Flight Recorder dumps of ranks 0-3") as refused:
        read_evidence(tmp_path)
    assert refused.value.way_out == f"type mldebug flight-recorder {tmp_path}"


def test_a_tar_of_flight_recorder_dumps_is_to_be_unpacked_first(tmp_path: Path) -> None:
    (tmp_path / "dumps").mkdir()
    _flight_recorders(tmp_path / "dumps", "pickle")
    with tarfile.open(tmp_path / "dumps.tgz", "w:gz") as packed:
        packed.add(tmp_path / "dumps", "dumps")
    with pytest.raises(EvidenceError) as refused:
        read_evidence(tmp_path / "dumps.tgz")
    assert refused.value.way_out == "unpack it, then type mldebug flight-recorder FOLDER"


def test_flight_recorder_dumps_beside_stacks_are_a_gap(tmp_path: Path) -> None:
    _flight_recorders(tmp_path, "pickle")
    for rank in range(4):
        (tmp_path / f"rank{rank}.txt").write_text(_STACK.format(pid=70 + rank, rank=rank))
    report = judge(read_evidence(tmp_path)).report
    assert len(report.ranks) == 4
    hint = next(one for one in report.gaps if one.what == "Flight Recorder dumps")
    assert hint.way_out == f"type mldebug flight-recorder {tmp_path}"


def test_stacks_alone_and_other_unread_files_get_no_such_hint(tmp_path: Path) -> None:
    """A control: neither a folder of stacks nor a note beside it holds dumps of a Flight Recorder."""
    for rank in range(4):
        (tmp_path / f"rank{rank}.txt").write_text(_STACK.format(pid=70 + rank, rank=rank))
    (tmp_path / "notes_7").write_text("we saw this twice")
    assert "Flight Recorder dumps" not in {one.what for one in judge(read_evidence(tmp_path)).report.gaps}  # fmt: skip
