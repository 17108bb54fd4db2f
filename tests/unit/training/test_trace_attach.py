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

from mldebug_agents.cli.commands.capture.trace import answer_lines
from mldebug_agents.jobs.hook.trace_attach import AttachAnswer, as_user, file_text
from mldebug_agents.system.child.job_paths import Rights
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
        assert (code, again["failure"]) == (3, "it is traced already")
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
        assert (code, "no safe point in 1 s" in answer["failure"]) == (3, True)
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


@contextmanager
def asker(folder: Path, *lines: str) -> Iterator[tuple[str, ...]]:
    """A process, and a program in the place of its Python that says it is a 3.14 and then runs these lines of shell. Its sixth word
    is the path of the file. The words for `trace`.
    """
    folder.chmod(0o755)
    program = folder / "python3"
    program.write_text("\n".join(("#!/bin/sh", *lines, "")))
    program.chmod(0o755)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as one:
        try:
            yield str(one.pid), "--python", str(program), "--wait", "1s"
        finally:
            one.kill()
            for file in Path("/dev/shm").glob(f"mldebug-{one.pid}-*"):
                file.unlink()


def answering(text: str) -> tuple[str, ...]:
    return "echo 3 14 0", "umask 077", f"printf '%s' '{text}' > \"$6.answer\""


NESTED = '{"x":' + "[" * 9000 + "]" * 9000 + "}"


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(answering(NESTED[:15000]), id="an answer that is nested deep"),
        pytest.param(("echo 3 14 0", 'mkfifo -m 600 "$6.answer"'), id="a FIFO"),
        pytest.param(("echo 3 14 0", 'ln -s /etc/shadow "$6.answer"'), id="a link"),
        pytest.param(
            ("echo 3 14 0", 'head -c 9000000 /dev/zero > "$6.answer"', 'chmod 600 "$6.answer"'),
            id="a giant",
        ),
        pytest.param((f"echo 3 14 {'9' * 5000}",), id="a version of 5000 digits"),
        pytest.param(("echo 3 14 \u00b2",), id="a digit that is no number"),
    ],
)
def test_whatever_the_process_answers_is_no_error_of_ours(
    tmp_path: Path, lines: tuple[str, ...]
) -> None:
    with asker(tmp_path, *lines) as words:
        code, (answer,), error = trace("attach", *words)
    assert (code in (1, 3), answer["failure"] != "", error) == (True, True, "")


@pytest.mark.parametrize(
    "lines",
    [
        answering('{"why": "no\\u001b[2J\\nno"}'),
        answering('{"engine": "C\\u001b[2J", "followed": "\\u202eall"}'),
        ("printf 'no\\033[2J' >&2",),
        ("printf '3 14 0\\nRuntimeError no\\033[2J'",),
    ],
)
def test_what_the_process_answers_leaves_the_terminal_alone(
    tmp_path: Path, lines: tuple[str, ...]
) -> None:
    with asker(tmp_path, *lines) as words:
        _, (answer,), _ = trace("attach", *words)
    shown = [answer.get(name, "") for name in ("failure", "engine", "followed")]
    assert any(shown)
    assert all(one.isprintable() for one in shown)


def test_an_answer_is_shown_as_it_is(tmp_path: Path) -> None:
    with asker(
        tmp_path, *answering('{"engine": "C", "followed": "all of \u00e9t\u00e9"}')
    ) as words:
        code, (answer,), _ = trace("attach", *words)
    assert (code, answer["engine"], answer["followed"]) == (0, "C", "all of \u00e9t\u00e9")


@pytest.mark.parametrize(
    ("ring", "shown"),
    [("", "/dev/shm/mldebug_trace-7-*"), ("/data/a b.ring", "'/data/a b.ring'*")],
)
def test_the_ring_is_named_where_it_was_asked_for(ring: str, shown: str) -> None:
    lines = list(answer_lines(AttachAnswer(pid=7, engine="C", followed="all", ring=ring)))
    assert lines[1].endswith(f"mldebug trace show {shown}")


def test_a_file_that_may_still_be_run_keeps_its_name(tmp_path: Path) -> None:
    """Whoever makes a file in its place would have it run by the process."""
    with asker(tmp_path, "sleep 60") as words:
        code, (answer,), _ = trace("attach", *words)
        assert (code, "did not start" in answer["failure"]) == (3, True)
        assert len(list(Path("/dev/shm").glob(f"mldebug-{words[0]}-*.attach-*"))) == 1


def test_the_file_of_who_was_never_asked_goes(tmp_path: Path) -> None:
    with asker(tmp_path, "exit 1") as words:
        assert trace("attach", *words)[0] == 3
        assert not list(Path("/dev/shm").glob(f"mldebug-{words[0]}-*attach*"))


def test_a_python_may_be_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with asker(tmp_path, *answering('{"engine": "C"}')) as (pid, option, program, *rest):
        monkeypatch.chdir(tmp_path)
        assert trace("attach", pid, option, "./python3", *rest)[0] == 0
        assert trace("attach", pid, option, program, *rest)[0] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's process")
@pytest.mark.parametrize("alone", [True, False])
def test_what_root_starts_for_a_user_gets_no_rights_and_leaves_nothing(alone: bool) -> None:
    """It may be any program: the user chose what the process runs."""
    code = 'while read -r line; do echo "$line"; done < /proc/self/status; (echo started)'
    became = as_user(Rights(NOBODY, NOBODY, (NOBODY,)), alone=alone)
    done = subprocess.run(
        [*became, "/bin/sh", "-c", code], check=False, capture_output=True, text=True, env={}
    )
    shown = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    assert set(shown["Uid"].split()) == set(shown["Gid"].split()) == {str(NOBODY)}
    assert (shown["Groups"].split(), shown["NoNewPrivs"]) == ([str(NOBODY)], "1")
    assert {shown[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert ("started" in done.stdout) == (not alone)


def test_a_process_that_has_gone_is_told() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as one:
        one.wait()
    code, (answer,), _ = trace("attach", str(one.pid))
    assert (code, answer["failure"]) == (3, "there is no such process")


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
    folder: Path, deadline: float, call: str, after: str = ""
) -> tuple[Path, "subprocess.CompletedProcess[str]"]:
    """What Python runs in the process, run by hand."""
    answer = folder / "answer"
    text = file_text(str(answer), call, "detach()", deadline)
    code = f"exec({text!r}, {{}})\ndef work(): return 1\nwork()\n{after}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], check=False, capture_output=True, text=True, cwd=folder
    )  # fmt: skip
    return answer, done


def test_the_file_does_nothing_when_its_time_is_over(tmp_path: Path) -> None:
    answer, done = run_file(tmp_path, time.monotonic() - 1, "attach({})")
    assert (done.returncode, done.stderr, answer.exists()) == (0, "", False)


def test_a_trace_that_begins_after_its_time_is_ended(tmp_path: Path) -> None:
    """Who asked was told that nothing is traced."""
    slow = "attach({'include': ['all'], 'size': time.sleep(3) or 1 << 20})"
    after = "from mldebug_training.tracing.trace import running; assert running() is None"
    answer, done = run_file(tmp_path, time.monotonic() + 2, slow, after)
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
