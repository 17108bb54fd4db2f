"""What a probe writes besides its table: nothing that stands there is lost, and no device is replaced by a file."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mldebug.cli.main import main
from mldebug.probes.collectives import CollectiveResult, collective_result
from mldebug_agents.probes.measurement import CollectivesRequest, Measurement
from mldebug_agents.probes.output import OutputFiles, check_places, write
from mldebug_agents.probes.rank_events import MeasuredRanks

FOUND = collective_result("all_reduce", 1024, [[0.001, 0.002], [0.001, 0.003]], [0, 0])
JOINED = {"event": "joined", "ranks": 2, "backend": "gloo"}
CELL = {"event": "cell", "op": "reduce", "bytes": 4, "times": [[0.1], [0.1]], "wrong": [0, None]}


def written(*results: CollectiveResult, **places: Path) -> None:
    """Write these results to `csv`, `plot` and `textfile`."""
    measurement = Measurement(CollectivesRequest(nproc=2, ops=("all_reduce",)))
    measurement.results, measurement.about = list(results), MeasuredRanks(ranks=2, backend="gloo")
    whole = {"csv": None, "plot": None, "textfile": None, **places}
    output = OutputFiles(as_json=False, **whole)
    check_places(output)
    write(measurement, output)


def read(folder: Path, *events: object) -> int:
    """What a printed line has said, read again."""
    file = folder / "told"
    file.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in events))  # fmt: skip
    return main(["probe", "collectives", "--read", str(file)])


@pytest.mark.parametrize("place", ["csv", "textfile"])
def test_a_device_stays_one(tmp_path: Path, place: str) -> None:
    link = tmp_path / "link"
    link.symlink_to(os.devnull)
    written(FOUND, **{place: link})
    assert link.is_symlink()
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_pipe_gets_the_metrics(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    written(FOUND, textfile=pipe)
    assert b"mldebug_probe_collective_median_seconds" in os.read(reading, 1 << 16)
    os.close(reading)
    assert pipe.is_fifo()


def test_what_measured_nothing_leaves_the_last_figures(tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("csv", "textfile")}
    written(FOUND, **places)
    before = {name: path.read_text() for name, path in places.items()}
    written(**places)
    assert {name: path.read_text() for name, path in places.items()} == before


def test_one_that_cannot_be_written_keeps_no_other_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "told").write_text("".join(json.dumps(one) + "\n" for one in (JOINED, CELL, {"event": "done"})))  # fmt: skip
    words = ["--csv", "/dev/full", "--textfile", str(tmp_path / "t.prom")]
    assert main(["probe", "collectives", "--read", str(tmp_path / "told"), *words]) == 3
    assert "/dev/full cannot be written: No space left on device" in capsys.readouterr().err
    assert "mldebug_probe_collective_median_seconds" in (tmp_path / "t.prom").read_text()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--csv", "/" + "x" * 300), "cannot be written"),
        (("--textfile", "/" + "x" * 300), "cannot be written"),
        (("--csv", "/"), "is a directory"),
        (("--plot", "x.quatsch"), "there is no kind of picture .quatsch"),
        (("--hosts", ""), "it names 0 nodes"),
        (("--duration", "0s"), "that leaves no time"),
        (("--sizes", ""), "--sizes ''"),
    ],
)
def test_what_cannot_be_is_told_before_anything_runs(
    words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", "collectives", *words]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("events", "code", "text"),
    [
        ((JOINED, CELL, {"event": "done"}), 0, ""),
        ((JOINED, CELL), 1, "it ended before all was measured"),
        ((JOINED, CELL, {"event": "died", "rank": 1, "code": -9}), 1, "rank 1 was killed by signal 9"),
        ((JOINED, CELL, {"event": "late", "ranks": [1]}), 1, "did not end within its --duration"),
        ((JOINED, CELL, {"event": "stranger", "reason": "a job"}), 3, "the probe was ended: a job"),
        ((JOINED, CELL | {"times": [[1e-320], [0.1]]}), 2, "less than a nanosecond"),
        ((JOINED, CELL, {"event": "done"}, '{"event": ' + "[" * 200_000), 0, ""),
    ],
)  # fmt: skip
def test_a_printed_line_that_did_not_end_well_is_told(
    tmp_path: Path, events: tuple[object, ...], code: int, text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert read(tmp_path, *events) == code
    output = capsys.readouterr()
    assert text in output.err
    assert "internal error" not in output.err


def test_a_printed_line_has_all_that_was_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    words = ["--hosts", "a,b", "--nproc", "8", "--device", "cuda", "--print-commands", "--duration", "5s"]  # fmt: skip
    words += ["--python", "/opt/a b/python", "--interface", "ib0;touch x"]
    assert main(["probe", "collectives", *words]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "NCCL_P2P_DISABLE=1 " in first
    assert "NCCL_SOCKET_IFNAME='ib0;touch x' '/opt/a b/python' -m torch.distributed.run" in first
    assert '"seconds":5.0' in first
    assert '"alone":true' in first
    assert "--node-rank 1 " in second
    monkeypatch.setenv("NCCL_ALGO", "quatsch")
    assert main(["probe", "collectives", *words]) == 2


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_stream_that_is_closed_is_not_wanted(closed: str) -> None:
    words = f"{sys.executable} -m mldebug --version {closed}"
    done = subprocess.run(["bash", "-c", words], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert bool(done.stdout) == (not closed.startswith(">"))
