"""`mldebug trace attach` and `detach`: real processes of a Python that can be asked (3.14), and those that cannot."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mldebug_agents.jobs.hook.trace_attach import FILE
from mldebug_agents.jobs.job_start import hook_folder
from shared.system.patience import PATIENCE
from unit.training.test_hook import interpreters

NEWER = [one for one in ("3.14", "3.15") if one in interpreters()]
NOBODY = 65534
LOOP = """
import sys, time
def work(number):
    return number + 1
done = 0
print("ready", flush=True)
while True:
    done = work(done)
    time.sleep(0.01)
"""
ASLEEP = """
import time
def work(number):
    return number + 1
print("ready", flush=True)
time.sleep({seconds})
print("awake", work(1), flush=True)
time.sleep(60)
"""


@contextmanager
def process(version: str, code: str, **more: Any) -> Iterator["subprocess.Popen[str]"]:
    """A process of that Python that has said it is ready."""
    argv = [interpreters()[version], "-c", code]
    env = {"PATH": os.environ["PATH"], **more.pop("env", {})}
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, **more
    ) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
        try:
            yield one
        finally:
            one.kill()
            for ring in rings(one.pid):
                ring.unlink()


def rings(pid: int) -> list[Path]:
    return list(Path("/dev/shm").glob(f"mldebug_trace-{pid}-*"))


def trace(verb: str, *words: str) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, answers and stderr of `mldebug trace VERB`."""
    done = subprocess.run(
        [sys.executable, "-m", "mldebug", "trace", verb, "--json", *words],
        check=False, capture_output=True, text=True, timeout=60 * PATIENCE,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout or "[]"), done.stderr


def through(version: str, one: "subprocess.Popen[str]", *words: str) -> tuple[str, ...]:
    return str(one.pid), "--python", interpreters()[version], *words


@pytest.mark.parametrize("version", NEWER)
def test_a_process_that_runs_is_traced_until_detached(version: str) -> None:
    with process(version, LOOP) as one:
        code, (answer,), error = trace(
            "attach", *through(version, one, "--include", "__main__:work")
        )
        assert (code, answer["engine"].partition(",")[0], error) == (0, "monitoring", "")
        assert answer["python"].startswith(version)
        time.sleep(0.5)
        (ring,) = rings(one.pid)
        code, (again,), _ = trace("attach", *through(version, one))
        assert (code, again["failure"]) == (1, "it is traced already")
        code, (ended,), _ = trace("detach", *through(version, one))
        assert (code, ended["ring"]) == (0, str(ring))
        shown = subprocess.run(
            [sys.executable, "-m", "mldebug", "trace", "show", str(ring)],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert "work" in shown.stdout
        assert one.poll() is None
        one.kill()
        assert one.communicate()[1] == ""
    left = [path for path in Path("/dev/shm").glob(f"mldebug-{one.pid}-*") if "attach" in path.name]
    assert left == []


@pytest.mark.parametrize("version", NEWER)
def test_who_reaches_no_safe_point_is_not_traced_later(version: str) -> None:
    with process(version, ASLEEP.format(seconds=6 * PATIENCE)) as one:
        code, (answer,), _ = trace("attach", *through(version, one, "--wait", "1s"))
        assert (code, "no safe point in 1 s" in answer["failure"]) == (1, True)
        assert one.stdout is not None
        assert one.stdout.readline() == "awake 2\n"
        time.sleep(0.3)
        assert rings(one.pid) == []
        assert one.poll() is None
        one.kill()
        assert one.communicate()[1] == ""


@pytest.mark.parametrize("version", NEWER)
def test_who_forbids_it_is_left_alone(version: str) -> None:
    with process(version, LOOP, env={"PYTHON_DISABLE_REMOTE_DEBUG": "1"}) as one:
        code, (answer,), _ = trace("attach", *through(version, one))
        assert (code, answer["failure"][:10], answer["missing"]) == (3, "it refuses", True)
        assert not list(Path("/dev/shm").glob(f"mldebug-{one.pid}-*attach*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's process")
@pytest.mark.parametrize("version", NEWER)
def test_root_asks_with_the_rights_of_the_process(version: str) -> None:
    with process(version, LOOP, user=NOBODY, group=NOBODY, extra_groups=[]) as one:
        code, (answer,), _ = trace("attach", *through(version, one, "--include", "__main__:work"))
        scope = Path("/proc/sys/kernel/yama/ptrace_scope")
        if scope.exists() and scope.read_text().strip() != "0":
            assert (code, "ptrace_scope" in answer["failure"]) == (3, True)
            return
        assert (code, answer.get("failure", "")) == (0, "")
        time.sleep(0.5)
        (ring,) = rings(one.pid)
        assert ring.stat().st_uid == NOBODY


def test_an_older_python_is_told_and_untouched() -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version in NEWER:
        pytest.skip("this Python can be asked")
    with process(version, LOOP) as one:
        before = Path(f"/proc/{one.pid}/maps").read_text()
        code, (answer,), _ = trace("attach", *through(version, one))
        assert (code, answer["missing"]) == (3, True)
        assert answer["failure"].startswith(f"it runs Python {version}.")
        assert Path(f"/proc/{one.pid}/maps").read_text() == before
        assert not list(Path("/dev/shm").glob(f"mldebug-{one.pid}-*attach*"))


def test_what_is_no_python_is_not_started_again() -> None:
    program = shutil.which("sleep")
    assert program
    with subprocess.Popen([program, "60"]) as one:
        code, (answer,), _ = trace("attach", str(one.pid))
        one.kill()
    assert (code, answer["missing"]) == (3, True)
    assert "no Python by its name" in answer["failure"]


def test_a_process_that_has_gone_is_told() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as one:
        one.wait()
    code, (answer,), _ = trace("attach", str(one.pid))
    assert (code, answer["failure"]) == (1, "there is no such process")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces")
def test_a_container_is_not_entered() -> None:
    argv = ["unshare", "-m", sys.executable, "-c", LOOP]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
        code, (answer,), _ = trace("attach", str(one.pid))
        one.send_signal(signal.SIGKILL)
    assert (code, answer["failure"]) == (3, "it runs in a container: call mldebug trace in there")


def run_file(
    folder: Path, deadline: float, call: str
) -> tuple[Path, "subprocess.CompletedProcess[str]"]:
    """What Python runs in the process, run by hand."""
    answer = folder / "answer"
    home = str(hook_folder().parent)
    text = FILE.format(deadline=deadline, home=home, call=call, answer=str(answer))
    code = f"exec({text!r}, {{}})\ndef work(): return 1\nwork()"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], check=False, capture_output=True, text=True, cwd=folder
    )  # fmt: skip
    return answer, done


def test_the_file_does_nothing_when_its_time_is_over(tmp_path: Path) -> None:
    answer, done = run_file(tmp_path, time.monotonic() - 1, "attach({})")
    assert (done.returncode, done.stderr, answer.exists()) == (0, "", False)


def test_the_file_answers_what_is_wrong(tmp_path: Path) -> None:
    answer, done = run_file(tmp_path, time.monotonic() + 60, "attach({'size': 'much'})")
    assert (done.returncode, done.stderr) == (0, "")
    assert "why" in json.loads(answer.read_text())


def test_the_file_needs_nothing_of_the_job(tmp_path: Path) -> None:
    ring = tmp_path / "own.ring"
    words = {"include": ["everything"], "ring": str(ring), "size": 1 << 20}
    answer, done = run_file(tmp_path, time.monotonic() + 60, f"attach({words!r})")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(answer.read_text())["engine"]
    assert ring.exists()
    assert answer.stat().st_mode & 0o777 == 0o600
