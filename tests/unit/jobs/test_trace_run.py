"""`mldebug trace run` and `mldebug run --trace`: what reaches the processes below, and what they leave."""

import fcntl
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from mldebug.cli.main import main
from mldebug.core.errors import UsageError
from mldebug_agents.cli.commands.jobs import run as run_verb
from mldebug_agents.jobs import trace_start
from mldebug_agents.jobs.trace_start import TraceOptions, make_way, variables
from mldebug_training.tracing import ring_file
from shared.capture.ringwords import Words

JOB = """
import os, sys
def train_step():
    work()
def work():
    return 1
work()
for step in range(3):
    train_step()
if "child" in sys.argv and __name__ == "__main__":
    import multiprocessing
    one = multiprocessing.get_context("spawn").Process(target=train_step)
    one.start()
    one.join()
if "killed" in sys.argv:
    os.kill(os.getpid(), 9)
if "fails" in sys.argv:
    raise ValueError("on purpose")
"""
SHM = Path("/dev/shm")


def mldebug(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, in this folder, with a job beside it."""
    (folder / "job.py").write_text(JOB)
    argv = [sys.executable, "-m", "mldebug", *words]
    return subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )


def rings_of_the_dead(before: set[str]) -> list[Path]:
    return [SHM / name for name in rings() - before]


def rings() -> set[str]:
    return {one.name for one in SHM.glob("mldebug_trace-*")}


def test_a_program_leaves_its_ring(tmp_path: Path) -> None:
    done = mldebug(
        tmp_path,
        "trace",
        "run",
        "--ring",
        "a.ring",
        "--size",
        "1MiB",
        "--",
        sys.executable,
        "job.py",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = Words(tmp_path / "a.ring")
    assert found.reported("MainThread", "call")[:3] == [
        "call <module>",
        " call work",
        " call train_step",
    ]
    assert (found.followed, found.state) == ("include=uninstalled exclude=- start=-", 4)
    assert found.command.endswith("job.py")


def test_it_begins_with_a_function(tmp_path: Path) -> None:
    words = ["--ring", "a.ring", "--start", "train_step", "--what", "both"]
    done = mldebug(tmp_path, "trace", "run", *words, "--", sys.executable, "job.py")
    assert done.returncode == 0, done
    result = Words(tmp_path / "a.ring").reported()
    assert result[:4] == ["call train_step", " line train_step", " call work", "  line work"]


def test_killed_it_leaves_its_ring_and_its_code(tmp_path: Path) -> None:
    done = mldebug(
        tmp_path, "trace", "run", "--ring", "a.ring", "--", sys.executable, "job.py", "killed"
    )
    assert done.returncode == -9
    found = Words(tmp_path / "a.ring")
    assert found.state == 1
    assert found.reported()[-1] == " return train_step"


def test_children_have_rings_of_their_own(tmp_path: Path) -> None:
    done = mldebug(
        tmp_path,
        "trace",
        "run",
        "--ring",
        "a.ring",
        "--size",
        "1MiB",
        "--",
        sys.executable,
        "job.py",
        "child",
    )
    assert done.returncode == 0, done
    assert len(list(tmp_path.glob("a.ring*"))) >= 2
    pids = {Words(path).pid for path in tmp_path.glob("a.ring*")}
    assert len(pids) == len(list(tmp_path.glob("a.ring*")))


@pytest.mark.parametrize(("how", "left"), [("well", 0), ("fails", 1), ("killed", 1)])
def test_in_shared_memory_it_stays_only_where_somebody_will_ask(
    tmp_path: Path, how: str, left: int
) -> None:
    before = rings()
    done = mldebug(
        tmp_path,
        "run",
        "--trace",
        "uninstalled",
        "--trace-size",
        "1MiB",
        "--",
        sys.executable,
        "job.py",
        how,
    )
    mine = []
    try:
        mine = [path for path in rings_of_the_dead(before) if "job.py" in Words(path).command]
        assert len(mine) == left, done
        assert all(Words(path).reported()[-1] for path in mine)
    finally:
        for path in mine:
            path.unlink()


BECOMES = """
import os, sys
def before(): return 1
def after(): return 2
if "again" not in sys.argv:
    before()
    print(os.getpid(), flush=True)
    os.execv(sys.executable, [sys.executable, "job.py", "again"])
if "works" in os.environ["THEN"]:
    after()
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("then", ["works", "idles"])
def test_what_was_written_before_an_exec_is_not_taken_for_what_came_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """An exec keeps pid and start, and so the name of the ring."""
    monkeypatch.setenv("THEN", then)
    (tmp_path / "job.py").write_text(BECOMES)
    words = ["run", "--trace", "job:after", "--trace", "job:before", "--trace", "__main__"]
    argv = [sys.executable, "-m", "mldebug", *words, "--trace-size", "1MiB", "--"]
    done = subprocess.run(
        [*argv, sys.executable, "job.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (-9, ""), done
    left = list(SHM.glob(f"mldebug_trace-{done.stdout.strip()}-*"))
    try:
        results = [Words(path).reported("MainThread", "call") for path in left]
        assert results == [["call <module>", *([" call after"] if then == "works" else [])]]
    finally:
        for path in left:
            path.unlink()


def test_who_calls_nothing_that_is_followed_leaves_nothing(tmp_path: Path) -> None:
    before = rings()
    done = mldebug(
        tmp_path, "run", "--trace", "nosuch", "--", sys.executable, "-c", "import os; os._exit(0)"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not rings_of_the_dead(before)


def test_a_program_says_that_a_misspelt_name_was_never_called(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
    words = ["--start", "train_stap", "--ring", str(tmp_path / "a.ring")]
    done = mldebug(tmp_path, "trace", "run", *words, "--", sys.executable, "-c", code)
    assert done.returncode == 0
    assert done.stderr == (
        "mldebug: there is no ring: nothing was called of include=uninstalled exclude=- start=train_stap\n"
    )


def test_an_older_ring_makes_way_and_nothing_else_does(tmp_path: Path) -> None:
    ring, other = tmp_path / "a.ring", tmp_path / "notes.txt"
    ring.write_bytes(b"mltrace\x01 and the rest")
    other.write_text("mine")
    make_way(ring)
    assert not ring.exists()
    assert (tmp_path / "a.ring.before").read_bytes().startswith(b"mltrace")
    with pytest.raises(UsageError, match="is no ring"):
        make_way(other)
    with pytest.raises(UsageError):
        make_way(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is no ring"):
        make_way(tmp_path / "pipe")
    assert other.read_text() == "mine"


def test_a_ring_in_use_stays_where_it_is(tmp_path: Path) -> None:
    """Two ranks of srun have one command line: the second one never takes the ring of the first away."""
    ring = tmp_path / "a.ring"
    ring.write_bytes(b"mltrace\x01 and the rest")
    with ring.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        make_way(ring)
    assert [one.name for one in tmp_path.iterdir()] == ["a.ring"]


def test_what_travels_is_checked_first(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(
        variables(TraceOptions(("mypkg",), what="both", size="1MiB"))["MLDEBUG_TRACE"]
    )
    assert answer == {
        "include": ["mypkg"], "exclude": [], "start": "", "stop": "", "calls": True, "lines": True,
        "ring": None, "size": 1 << 20,
    }  # fmt: skip
    for words in (
        ["--size", "1KiB"],
        ["--size", "much"],
        ["--include", ""],
        ["--stop", "step:x"],
        ["--start", "signal:TERM"],
    ):
        assert main(["trace", "run", *words, "--", "true"]) == 2
    assert main(["trace", "run"]) == 2
    assert "way out" in capsys.readouterr().err


def test_run_takes_the_options_of_trace_run(capsys: pytest.CaptureFixture[str]) -> None:
    """One definition: each option of `trace run` is there as --trace-…, and says the same to the ranks."""
    assert main([
        "run", "--trace", "mypkg", "--trace-include", "other", "--trace-exclude", "mypkg.noise", "--trace-start", "step:3",
        "--trace-stop", "signal:USR2", "--trace-what", "both", "--trace-size", "1MiB", "--print-env",
    ]) == 0  # fmt: skip
    line = next(one for one in capsys.readouterr().out.splitlines() if "MLDEBUG_TRACE=" in one)
    setting = shlex.split(line.split(";")[0].partition(":-")[2].removesuffix("}"))[0]
    assert json.loads(setting) == {
        "include": ["mypkg", "other"], "exclude": ["mypkg.noise"], "start": "step:3", "stop": "signal:USR2",
        "calls": True, "lines": True, "ring": None, "size": 1 << 20,
    }  # fmt: skip
    given = {name.split("=")[0] for name in _options_of(trace_start.run) - {"--ring", "--help"}}
    assert {f"--trace-{name.removeprefix('--')}" for name in given} <= _options_of(run_verb.command)


def _options_of(command: click.Command) -> set[str]:
    return {name for one in command.params for name in one.opts if name.startswith("--")}


@pytest.mark.parametrize(
    "words",
    [
        ["--trace-exclude", "mypkg"],
        ["--trace-what", "lines"],
        ["--trace", "mypkg", "--trace-start", "step:x"],
        ["--trace", " mypkg"],
    ],
)
def test_run_refuses_what_cannot_be_traced(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words, "--", "true"]) == 2
    assert "way out" in capsys.readouterr().err


def test_rings_of_the_dead_go_after_a_day(tmp_path: Path) -> None:
    paths = [tmp_path / f"mldebug_trace-{number}-1" for number in range(1 << 22, (1 << 22) + 20)]
    for age, path in enumerate(paths):
        path.write_bytes(b"")
        moment = path.stat().st_mtime - age * 3600 * 2
        os.utime(path, (moment, moment))
    (tmp_path / "other").touch()
    ring_file.sweep(str(tmp_path))
    left = sorted(one.name for one in tmp_path.iterdir())
    assert left == sorted(["other", *(path.name for path in paths[:12])])
