"""`mldebug up` and `mldebug down`, with a real agent in the background: which one is started, and that no other process is ended."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mldebug.cli.main import main
from mldebug.config.schema import Config
from mldebug_agents.cli.commands.agent.agent import with_listen
from mldebug_agents.cli.commands.agent.up import metrics_port_taken
from mldebug_agents.system.service.background import PID_FILE, BackgroundAgent, running, stop
from shared.web.webpages import pages, shown

Captured = pytest.CaptureFixture[str]

DEADLINE = 100.0  # seconds: an agent starts in two, on an idle machine


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """A state dir; an agent that was left in it is ended."""
    folder = tmp_path / "state"
    yield folder
    if left := running(folder):
        stop(left, DEADLINE)


@pytest.fixture
def config(tmp_path: Path, state_dir: Path) -> Path:
    """A config of an agent that listens at its socket alone."""
    return write(tmp_path, state_dir, "")


def write(folder: Path, state_dir: Path, listen: str) -> Path:
    file = folder / "c.yaml"
    file.write_text(f"agent: {{state_dir: {state_dir}, listen: '{listen}'}}\n")
    return file


def mldebug(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: it forks."""
    return subprocess.run(
        [sys.executable, "-m", "mldebug", *words],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


def test_one_command_starts_it_and_one_ends_it(config: Path, state_dir: Path) -> None:
    answer = mldebug("up", "--status", "--config", str(config))
    assert (answer.returncode, running(state_dir)) == (0, None)
    assert (
        f"no agent runs here\n  way out: start one: mldebug up --config {config}" in answer.stderr
    )
    begun = mldebug("up", "--config", str(config))
    assert begun.returncode == 0, begun.stderr
    found = running(state_dir)
    assert found is not None
    assert f"in the background (pid {found.pid})" in begun.stdout
    assert f"ssh -N -L 8080:{state_dir}/agent.sock " in begun.stdout
    assert "http://localhost:8080/" in begun.stdout
    assert f"To end it: mldebug down --config {config}" in begun.stdout
    assert os.getsid(found.pid) != os.getsid(0)

    answer = mldebug("up", "--status", "--config", str(config))
    assert answer.returncode == 0
    assert answer.stdout.startswith(f"Your agent runs (pid {found.pid}).\n")
    assert "http://localhost:8080/" in answer.stdout
    again = mldebug("up", "--config", str(config))
    assert again.returncode == 0
    assert f"Your agent runs already (pid {found.pid}): nothing was started." in again.stdout
    assert running(state_dir) == found

    status = json.loads(mldebug("status", "--json", "--config", str(config)).stdout)
    assert status["agent"]["started_at"]
    assert (state_dir / "up.log").stat().st_mode & 0o777 == 0o600

    ended = mldebug("down", "--config", str(config))
    assert ended.returncode == 0, ended.stderr
    assert f"The agent (pid {found.pid}) has ended." in ended.stdout
    assert running(state_dir) is None
    once_more = mldebug("down", "--config", str(config))
    assert once_more.returncode == 0
    assert "no agent runs here" in once_more.stderr


def test_files_where_it_is_typed_are_not_imported(config: Path, state_dir: Path, tmp_path: Path) -> None:  # fmt: skip
    """A folder of a training has a `profile.py` of its own; one that others may write has worse."""
    (tmp_path / "click.py").write_text("raise SystemExit('imported from where it was typed')\n")
    (tmp_path / "profile.py").write_text("raise SystemExit('imported from where it was typed')\n")
    begun = subprocess.run(
        [sys.executable, "-P", "-m", "mldebug", "up", "--config", str(config)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert begun.returncode == 0, begun.stderr
    assert running(state_dir) is not None


def test_two_at_once_start_one(config: Path, state_dir: Path) -> None:
    words = [sys.executable, "-m", "mldebug", "up", "--config", str(config)]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [one.communicate(timeout=DEADLINE)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert {re.findall(r"pid (\d+)", text)[0] for text in printed} == {str(running(state_dir).pid)}  # type: ignore[union-attr]


def test_an_agent_that_cannot_start_says_why(tmp_path: Path, state_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        config = write(tmp_path, state_dir, f"127.0.0.1:{other.getsockname()[1]}")
        failed = mldebug("up", "--config", str(config))
    assert failed.returncode == 3
    assert "the agent ended at once" in failed.stderr
    assert "cannot listen on 127.0.0.1:" in failed.stderr
    assert f"{state_dir}/up.log" in failed.stderr


def test_a_taken_port_keeps_nobody_from_his_pages() -> None:
    """The second user of a login node, without a config: the first one's agent has the usual port."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        assert metrics_port_taken(listen)
    assert not metrics_port_taken(listen)
    assert not metrics_port_taken("")
    assert with_listen(Config(), "").agent.listen == ""
    assert with_listen(Config(), None) == Config()


def test_an_agent_of_another_start_is_left_alone(tmp_path: Path, capsys: Captured) -> None:
    state_dir = tmp_path
    config = write(tmp_path, state_dir, "")
    with pages(state_dir, shown()):
        assert main(["up", "--config", str(config)]) == 0
        assert "An agent runs here already: nothing was started." in capsys.readouterr().out
        assert main(["down", "--config", str(config)]) == 0
        assert "was not started by `mldebug up`: it goes on" in capsys.readouterr().err
    assert not (state_dir / PID_FILE).exists()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the number which a pid file names."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("words", ["{pid} 1", "{pid}", "{pid} x", "", "-1 1", "1 1", "{pid} 0"])
def test_a_process_that_has_its_number_now_is_not_ended(tmp_path: Path, words: str, bystander: subprocess.Popen[bytes]) -> None:  # fmt: skip
    config = write(tmp_path, tmp_path, "")
    (tmp_path / PID_FILE).write_text(words.format(pid=bystander.pid))
    assert running(tmp_path) is None
    assert main(["down", "--config", str(config)]) == 0
    assert stop(BackgroundAgent(bystander.pid, 1), 0.0)
    assert bystander.poll() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to somebody else")
def test_what_another_user_has_written_names_no_process(tmp_path: Path, bystander: subprocess.Popen[bytes]) -> None:  # fmt: skip
    """Root takes down what a user's config names: his file must not choose one of root's processes."""
    config = write(tmp_path, tmp_path, "")
    file = tmp_path / PID_FILE
    file.write_text(f"{bystander.pid} {ticks_of(bystander.pid)}\n")
    os.chown(file, 12345, 12345)
    assert main(["down", "--config", str(config)]) == 0
    assert bystander.poll() is None
    os.chown(file, 0, 0)
    assert running(tmp_path) is not None


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_only_a_plain_file_names_a_process(tmp_path: Path, kind: str, bystander: subprocess.Popen[bytes]) -> None:  # fmt: skip
    file = tmp_path / PID_FILE
    if kind == "pipe":
        os.mkfifo(file)
    else:
        (tmp_path / "other").write_text(f"{bystander.pid} {ticks_of(bystander.pid)}\n")
        file.symlink_to("other")
    assert running(tmp_path) is None


def ticks_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_a_process_of_another_start_is_ended_only_by_its_own_name(tmp_path: Path, bystander: subprocess.Popen[bytes]) -> None:  # fmt: skip
    """The control: with its true start in the file it is the one that is ended."""
    ticks = ticks_of(bystander.pid)
    (tmp_path / PID_FILE).write_text(f"{bystander.pid} {ticks}\n")
    found = running(tmp_path)
    assert found == (bystander.pid, ticks)
    assert stop(found, DEADLINE)
    assert bystander.wait(DEADLINE) == -signal.SIGTERM
