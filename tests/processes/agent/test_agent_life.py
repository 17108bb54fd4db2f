"""The agent's own life: signals, restarts, disks that hang or are full, a second agent, the service manager.

The jobs are light ones (tests/jobs/light.py), so everything here is about the agent.
"""

import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import jsonschema
import psutil
import pytest

from mldebug.incidents.report_store import ReportStore
from mldebug.status.snapshot import RunState, Snapshot
from mldebug_agents.system.child.leftovers import children_of
from mldebug_agents.web.client import ask_agent
from processes.agent.light import LightJob, light_job
from processes.harness import (
    SCRIPTS,
    User,
    clean_environment,
    folder_for,
    free_port,
    send_signal,
    wait_for,
)
from processes.incidents.watching import Report as RunReport
from processes.incidents.watching import RunningAgent, settings, stop, watching
from processes.incidents.watching import start as watching_start
from shared.incidents.report_schema import report_schema
from shared.storage.disks import disk, frozen
from shared.system.hung import frozen_disk, hung_mount, wait_until
from shared.system.hung import state as process_state
from shared.system.patience import PATIENCE

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

STALL = "{timeout: 2s, interval: 500ms}"
NOT_READY = 503
END_SECONDS = 3.0
TESTS = Path(__file__).parents[2]
VALIDATOR = jsonschema.Draft202012Validator(report_schema())
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


class Bare:
    """An agent that is not asked over its socket: its state dir may hang."""

    def __init__(self, folder: Path, config: str, **environ: str) -> None:
        self.folder = folder
        self.config = folder / "mldebug.yaml"
        self.config.write_text(config)
        argv = [str(SCRIPTS / "mldebug"), "agent", "--config", str(self.config)]
        with (folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                argv, stdout=log, stderr=log, cwd="/", env=clean_environment(folder) | environ
            )

    @property
    def log(self) -> str:
        return (self.folder / "agent.log").read_text(errors="replace")

    def snapshot(self) -> Snapshot | None:
        """What it knows, where its state dir answers."""
        return ask_agent(self.folder / "state")

    def end(self) -> float:
        """SIGTERM; returns the seconds to its end, which has to be a good one."""
        started = time.monotonic()
        self.process.terminate()
        code = self.process.wait(20)
        took = time.monotonic() - started
        assert code == 0, self.log
        return took


@contextmanager
def bare(folder: Path, config: str, **environ: str) -> Iterator[Bare]:
    one = Bare(folder, config, **environ)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait(20)


AGENTS: list[RunningAgent] = []


def start(folder: Path, config: str) -> RunningAgent:
    """An agent that `watching.stop` ends; a test that fails leaves none behind."""
    AGENTS.append(watching_start(folder, config))
    return AGENTS[-1]


@pytest.fixture(autouse=True)
def left_alone() -> Iterator[None]:
    """Kill what a failed test has left."""
    yield
    while AGENTS:
        process = AGENTS.pop().process
        process.kill()
        process.wait(20)


def metrics(port: int) -> str:
    """All of them; none from an agent that has not looked yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        if error.code != NOT_READY:
            raise
        return ""


def answers(port: int) -> bool:
    with suppress(OSError):
        return bool(metrics(port))
    return False


def sample_of(port: int, family: str, job: LightJob) -> float | None:
    """The sample of one job, None where there is none (yet)."""
    lines = metrics(port).splitlines()
    info = next((line for line in lines if f'name="{job.name}"' in line), "")
    run = info.partition('run="')[2].partition('"')[0]
    mine = [
        line for line in lines if run and line.startswith(family + "{") and f'run="{run}"' in line
    ]
    return float(mine[0].rpartition(" ")[2]) if mine else None


def hang_once_seen(port: int, job: LightJob) -> None:
    """The agent has to know that the job steps, or it takes the silence for a slow start."""
    wait_for("its steps", lambda: (sample_of(port, "mldebug_run_step", job) or 0) > 20, 60)
    job.hang()
    wait_for("an incident", lambda: sample_of(port, "mldebug_incident_open_info", job), 60)


def run_of(agent: RunningAgent | Bare, job: LightJob) -> RunState | None:
    """What the agent knows of the job."""
    snap = agent.snapshot()
    return next((run for run in snap.runs if run.name == job.name), None) if snap else None


def hang_once_seen_by(agent: RunningAgent | Bare, job: LightJob) -> None:
    """The same over the socket, and its rhythm is known."""

    def knows() -> bool:
        run = run_of(agent, job)
        return run is not None and "usual gap" in run.sentence

    wait_for("its rhythm", knows, 180)  # an agent that comes back looks at all other hangs, too
    job.hang()


def reports_in(state: Path, job: LightJob) -> list[RunReport]:
    found = [json.loads(path.read_text()) for path in state.glob("reports/[!.]*/report.json")]
    mine = set(job.ranks.values())
    return [one for one in found if mine & {rank["pid"] for rank in one["ranks"]}]


def stuck_py_spy(folder: Path, what: str) -> Path:
    """A py-spy that announces its pid and then does something endless."""
    script = folder / "py-spy"
    script.write_text(f"#!/bin/sh\necho $$ >> {folder}/started\n{what}\n")
    script.chmod(0o755)
    return script


def in_time(took: float) -> bool:
    print(f"ended after {took:.2f} s")
    return took < END_SECONDS * PATIENCE


# --- the end ---------------------------------------------------------------------------------------


def test_sigterm_ends_an_idle_agent_at_once(tmp_path: Path) -> None:
    agent = start(tmp_path, settings(tmp_path))
    for line in agent.log.splitlines():
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d [A-Z]+ ", line)
    helpers = [one.pid for one in children_of(agent.process.pid)]
    started = time.monotonic()
    stop(agent)
    assert in_time(time.monotonic() - started)
    wait_until(lambda: not any(process_state(pid) for pid in helpers))
    assert not (agent.state / "agent.sock").exists()


@pytest.mark.parametrize("doing", ["nothing", "a capture"])
def test_an_agent_without_its_helper_ends_so_that_it_is_started_again(
    tmp_path: Path, doing: str
) -> None:
    py_spy = stuck_py_spy(tmp_path, "exec sleep 1000")
    config = settings(tmp_path, stall=STALL) + f"capture: {{py_spy: {py_spy}}}\n"
    with light_job(tmp_path / "job") as job, bare(tmp_path, config) as agent:
        wait_for("its first look", agent.snapshot, 60)
        if doing == "a capture":
            job.hang()
            wait_for("a dump", lambda: (tmp_path / "started").exists(), 60)
        [helper] = [one.pid for one in children_of(agent.process.pid)]
        started = time.monotonic()
        os.kill(helper, signal.SIGKILL)
        assert agent.process.wait(20) == 3, agent.log
        assert in_time(time.monotonic() - started - 1.0)  # the loop looks every second
        assert f"the helper process that starts programs (pid {helper}) is gone" in agent.log
        if doing == "a capture":
            pids = [int(word) for word in (tmp_path / "started").read_text().split()]
            wait_until(lambda: not any(process_state(pid) for pid in pids))
        assert all(process_state(pid) for pid in job.ranks.values())
        with bare(tmp_path, config) as again:
            wait_for("its first look", again.snapshot, 60)


def test_whoever_holds_connections_blinds_nobody(tmp_path: Path) -> None:
    """The socket is open to all users: what they do there costs no descriptors that the watch needs."""
    config = settings(tmp_path, stall=STALL)
    with light_job(tmp_path / "job") as job, bare(tmp_path, config) as agent, ExitStack() as links:
        wait_for("its first look", agent.snapshot, 60)
        resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (256, 256))
        for _ in range(500):
            link = links.enter_context(socket.socket(socket.AF_UNIX))
            link.connect(str(tmp_path / "state/agent.sock"))
        job.hang()
        wait_for(
            "a report", lambda: list((tmp_path / "state/reports").glob("[!.]*/report.json")), 60
        )
        assert agent.snapshot() is not None
        assert len(os.listdir(f"/proc/{agent.process.pid}/fd")) < 128
        agent.end()
        assert "Too many open files" not in agent.log
        assert len(agent.log) < 10_000, agent.log[-2000:]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_capture_that_hangs_does_not_delay_the_end(tmp_path: Path, number: int) -> None:
    py_spy = stuck_py_spy(tmp_path, "exec sleep 1000")
    config = settings(tmp_path, stall=STALL) + f"capture: {{py_spy: {py_spy}}}\n"
    with light_job(tmp_path / "job") as job, bare(tmp_path, config) as agent:
        wait_for("its first look", lambda: ask_agent(tmp_path / "state"), 60)
        job.hang()
        wait_for("a dump", lambda: (tmp_path / "started").exists(), 60)
        started = time.monotonic()
        agent.process.send_signal(number)
        assert agent.process.wait(20) == 0, agent.log
        assert in_time(time.monotonic() - started)
        pids = [int(word) for word in (tmp_path / "started").read_text().split()]
        wait_until(lambda: not any(process_state(pid) for pid in pids))
        assert all(process_state(pid) for pid in job.ranks.values())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_that_follow_the_first_one_do_not_make_a_good_end_a_kill(tmp_path: Path, number: int) -> None:  # fmt: skip
    """Also those that come while Python itself ends, and has given its handlers back."""
    with bare(tmp_path, settings(tmp_path, stall=STALL)) as agent:
        wait_for("its first look", lambda: ask_agent(tmp_path / "state"), 60)
        deadline = time.monotonic() + 20
        while agent.process.poll() is None and time.monotonic() < deadline:
            agent.process.send_signal(number)
            time.sleep(0.002)
        assert agent.process.wait(20) == 0, agent.log


def test_a_hung_state_dir_does_not_delay_the_end(tmp_path: Path) -> None:
    with hung_mount(tmp_path) as mount, light_job(tmp_path / "job") as job:
        config = f"agent: {{state_dir: {mount.target}/state, listen: '127.0.0.1:{(port := free_port())}', public_names: true}}\nstall: {STALL}\n"
        with bare(tmp_path, config) as agent:
            wait_for("its memory", (mount.source / "state/agent.sqlite").exists, 60)
            mount.hang()
            hang_once_seen(port, job)
            wait_for("a report", lambda: "\nmldebug_reports_waiting 0" not in metrics(port), 60)
            assert in_time(agent.end())
            assert "could not be written" in agent.log
            mount.recover()


@root_only
def test_a_child_in_state_d_is_left_named_and_remembered(tmp_path: Path) -> None:
    with frozen_disk(tmp_path) as disk, light_job(tmp_path / "job") as job:
        py_spy = stuck_py_spy(tmp_path, f"exec dd if=/dev/zero of={disk}/$$ count=1")
        config = settings(tmp_path, stall=STALL) + f"capture: {{py_spy: {py_spy}}}\n"
        agent = start(tmp_path, config)
        hang_once_seen_by(agent, job)
        wait_for("a dump", lambda: (tmp_path / "started").exists(), 60)
        pid = int((tmp_path / "started").read_text().split()[0])
        wait_until(lambda: process_state(pid) == "D")
        started = time.monotonic()
        stop(agent)
        assert in_time(time.monotonic() - started)
        assert f"left behind: pid {pid}, started " in agent.log
        assert process_state(pid) == "D"

        again = start(tmp_path, settings(tmp_path))  # with the real py-spy
        wait_for("it is remembered", lambda: _stuck(again) >= {pid}, 20)
        subprocess.run(["fsfreeze", "-u", str(disk)], check=True)
        wait_for("it is forgiven", lambda: not _stuck(again), 20)
        stop(again)


def _stuck(agent: RunningAgent) -> set[int]:
    snap = agent.snapshot()
    remarks = snap.remarks if snap else ()
    return {pid for one in remarks if one.kind == "leftover" for pid in one.pids}


# --- disks -------------------------------------------------------------------------------------------


def test_a_start_on_a_hung_state_dir_serves_metrics_and_writes_when_it_comes_back(
    tmp_path: Path,
) -> None:
    with hung_mount(tmp_path) as mount, light_job(tmp_path / "job") as job:
        state, port = mount.target / "state", free_port()
        mount.hang()
        config = f"agent: {{state_dir: {state}, listen: '127.0.0.1:{port}', public_names: true}}\nstall: {STALL}\n"
        started = time.monotonic()
        with bare(tmp_path, config) as agent:
            wait_for("metrics", lambda: answers(port), 20)
            print(f"metrics after {time.monotonic() - started:.1f} s")
            assert time.monotonic() - started < 10 * PATIENCE
            assert f"the state dir {state} cannot be written: no answer in 3 s" in agent.log
            hang_once_seen(port, job)
            mount.recover()
            wait_for("the report", lambda: reports_in(state, job), 60)
            result = wait_for("the socket", lambda: ask_agent(state), 20)
            wait_for("nothing waits", lambda: (ask_agent(state) or result).reports_waiting == 0, 20)
            assert (ask_agent(state) or result).reports_lost == 0
            assert in_time(agent.end())


@root_only
def test_a_state_dir_that_freezes_blocks_its_keeper_alone_and_is_written_when_it_thaws(
    tmp_path: Path,
) -> None:
    """Writers in state D: nothing ends them, and nothing else may wait for them."""
    (tmp_path / "loop").mkdir()
    with disk(tmp_path / "loop", "ext4") as folder, light_job(tmp_path / "job") as job:
        state, port = folder / "state", free_port()
        config = f"agent: {{state_dir: {state}, listen: '127.0.0.1:{port}', public_names: true}}\nstall: {STALL}\n"
        with bare(tmp_path, config) as agent:
            wait_for("its memory", (state / "agent.sqlite").exists, 60)
            with frozen(folder):
                hang_once_seen(port, job)
                wait_for("a writer in state D", lambda: "D" in child_states(agent.process.pid), 60)
                wait_for("a report", lambda: "\nmldebug_reports_waiting 1" in metrics(port), 60)
                wait_for("that it is told", lambda: "cannot be written" in agent.log, 60)
                assert process_state(agent.process.pid) in ("R", "S")
            wait_for("the report", lambda: reports_in(state, job), 60)
            wait_for("its end is told", lambda: "can be written again" in agent.log, 20)
            assert in_time(agent.end())


def child_states(pid: int) -> set[str]:
    """The states of all processes below one."""
    with suppress(psutil.NoSuchProcess):
        return {process_state(one.pid) for one in psutil.Process(pid).children(recursive=True)}
    return set()


@root_only
def test_a_full_disk_costs_reports_until_it_has_room_and_never_metrics(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], check=True)
    try:
        (disk / "fill").write_bytes(b"x" * 65536)
        port = free_port()
        config = f"agent: {{state_dir: {disk}/state, listen: '127.0.0.1:{port}', public_names: true}}\nstall: {STALL}\n"
        with light_job(tmp_path / "job") as job, bare(tmp_path, config) as agent:
            wait_for("metrics", lambda: answers(port), 20)
            hang_once_seen(port, job)
            wait_for("the trouble is told", lambda: "No space left" in agent.log, 20)
            assert reports_in(disk / "state", job) == []
            subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
            wait_for("the report", lambda: reports_in(disk / "state", job), 60)
            wait_for("its end is told", lambda: "can be written again" in agent.log, 20)
            assert agent.log.count("cannot be written") == 1, agent.log
            assert in_time(agent.end())
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_state_dir_that_is_removed_is_made_anew_with_its_incident_and_its_socket(
    tmp_path: Path,
) -> None:
    with light_job(tmp_path / "job") as job:
        agent = start(tmp_path, settings(tmp_path, stall=STALL))
        hang_once_seen_by(agent, job)
        (before,) = wait_for("the report", lambda: reports_in(agent.state, job), 60)
        lost_at = time.monotonic()
        agent.state.rename(
            tmp_path / "elsewhere"
        )  # rmtree would meet a report that is being written
        shutil.rmtree(tmp_path / "elsewhere")
        (after,) = wait_for("the report again", lambda: reports_in(agent.state, job), 30)
        run = wait_for("the socket", lambda: agent.snapshot() and run_of(agent, job), 20)
        print(f"all is back after {time.monotonic() - lost_at:.1f} s")
        assert before["id"] == after["id"] == run.incident
        snap = agent.snapshot()
        assert snap is not None
        assert (snap.state_dir_losses, snap.reports_lost) == (1, 0)
        assert agent.log.count(" ERROR ") == 1, agent.log
        assert f"ERROR the state dir {agent.state} was removed or replaced" in agent.log
        stop(agent)

        again = start(tmp_path, settings(tmp_path, stall=STALL))
        resumed = wait_for("the run", lambda: _open(again, job), 60)
        assert resumed.incident == before["id"], "its memory was written again too"
        stop(again)


def test_an_agent_whose_state_dir_another_one_has_taken_ends(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    with bare(tmp_path, settings(tmp_path)) as first:
        wait_for("its first look", lambda: ask_agent(tmp_path / "state"), 60)
        first.process.send_signal(signal.SIGSTOP)  # or it may be the first to come there again
        (tmp_path / "state").rename(tmp_path / "elsewhere")
        with bare(tmp_path / "second", settings(tmp_path)) as second:
            wait_for("its successor", lambda: ask_agent(tmp_path / "state"), 60)
            first.process.send_signal(signal.SIGCONT)
            assert first.process.wait(40) == 2, first.log
            taken = f"another agent (pid {second.process.pid}) already uses {tmp_path}/state"
            assert first.log.splitlines()[-2:] == [
                f"mldebug: {taken}, which was removed or replaced while this agent held it",
                "  way out: stop it, or set another agent.state_dir",
            ]
            second.end()


# --- starts that cannot be -----------------------------------------------------------------------------


def refused(folder: Path, config: str) -> tuple[int, str]:
    with bare(folder, config) as agent:
        return agent.process.wait(30), agent.log


def test_a_port_in_use_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, result = refused(tmp_path, settings(tmp_path, listen=address))
    assert code == 2
    assert result.splitlines() == [
        f"mldebug: cannot listen on {address}: Address already in use",
        "  way out: set another agent.listen, or stop what is there",
    ]


def test_a_second_agent_is_refused_while_the_first_goes_on(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    with watching(tmp_path) as first:
        code, result = refused(tmp_path / "second", settings(tmp_path))
        assert (code, result.splitlines()[0]) == (
            2,
            f"mldebug: another agent (pid {first.process.pid}) already uses {first.state}",
        )
        assert first.snapshot() is not None


def test_a_state_dir_that_is_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    code, result = refused(tmp_path, settings(tmp_path))
    assert (code, result.splitlines()[0]) == (
        2,
        f"mldebug: the state dir {tmp_path}/state is not a folder",
    )


def test_a_state_dir_where_no_folder_can_be_is_one_sentence(tmp_path: Path) -> None:
    code, result = refused(tmp_path, "agent: {state_dir: /proc/mldebug, listen: ''}\n")
    assert code == 2
    assert result.splitlines()[0].startswith(
        "mldebug: the state dir /proc/mldebug cannot be made: "
    )
    assert result.splitlines()[1].startswith("  way out: set agent.state_dir in the config to a ")


@root_only
def test_a_state_dir_that_this_user_may_not_write_is_one_sentence_and_exit_3() -> None:
    with folder_for(User()) as folder:
        folder.chmod(0o755)
        (folder / "state").mkdir()
        file = folder / "mldebug.yaml"
        file.write_text(settings(folder))
        argv = [str(SCRIPTS / "mldebug"), "agent", "--config", str(file)]
        done = subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *argv],
            check=False, capture_output=True, text=True, timeout=60, cwd="/", env=clean_environment(folder),
        )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert done.stderr.splitlines()[0] == (
        f"mldebug: this user may not write the state dir {folder}/state"
    )


def test_a_group_that_does_not_exist_is_one_sentence(tmp_path: Path) -> None:
    config = settings(tmp_path).replace("listen: ''", "listen: '', group: no-such-group")
    code, result = refused(tmp_path, config)
    assert code == 2
    assert "no group 'no-such-group'" in result


# --- the configuration ---------------------------------------------------------------------------------


def test_sighup_obeys_a_good_file_and_keeps_the_old_one_over_a_bad_one(tmp_path: Path) -> None:
    with light_job(tmp_path / "job") as job:
        agent = start(tmp_path, settings(tmp_path, stall="{timeout: 10m, interval: 500ms}"))
        hang_once_seen_by(agent, job)

        agent.config.write_text("stall: {timeout: 2}\nagent: {listen: 7, nonsense: 1}\n")
        agent.process.send_signal(signal.SIGHUP)
        wait_for("its problems", lambda: "the configuration stays as it was" in agent.log, 20)
        assert "stall.timeout: '2' is not 'auto' or a duration" in agent.log
        assert "agent.nonsense: there is no such key" in agent.log
        assert _limit(agent, job) == 600.0

        new = settings(tmp_path, stall=STALL).replace(str(tmp_path / "state"), "/elsewhere")
        agent.config.write_text(new)
        agent.process.send_signal(signal.SIGHUP)
        wait_for("the report", lambda: reports_in(agent.state, job), 60)
        assert _limit(agent, job) == 2.0
        assert "agent.state_dir has changed, and is obeyed after a restart" in agent.log
        (report,) = reports_in(agent.state, job)
        assert "usual gap" in report["timeline"][0]["what"]  # the rhythm from before is known
        stop(agent)


def _limit(agent: RunningAgent, job: LightJob) -> float:
    run = run_of(agent, job)
    return run.timeout_seconds if run else -1.0


# --- the service manager -------------------------------------------------------------------------------


@contextmanager
def service_manager(folder: Path) -> Iterator[Callable[[], list[str]]]:
    """A real notification socket; yields a function that returns all states so far."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(folder / "notify"))
        ear.setblocking(False)
        lines: list[str] = []

        def listen() -> list[str]:
            with suppress(BlockingIOError):
                while True:
                    lines.extend(ear.recv(4096).decode().splitlines())
            return lines

        yield listen


def test_systemd_hears_ready_status_reload_watchdog_and_stopping(tmp_path: Path) -> None:
    with service_manager(tmp_path) as messages, light_job(tmp_path / "job") as job:
        config = settings(tmp_path, stall=STALL)
        with bare(tmp_path, config, NOTIFY_SOCKET=str(tmp_path / "notify")) as agent:
            wait_for("READY", lambda: "READY=1" in messages(), 60)
            result = ask_agent(tmp_path / "state")
            assert result is not None, "ready before it answered"
            assert job.name in [run.name for run in result.runs], "ready before it looked"
            first = next(one for one in messages() if one.startswith("STATUS="))
            assert messages().index(first) < messages().index("READY=1")
            hang_once_seen_by(agent, job)
            wait_for("the incident", lambda: any("; incident " in one for one in messages()), 60)
            agent.process.send_signal(signal.SIGHUP)
            wait_for("RELOADING", lambda: "RELOADING=1" in messages(), 20)
            wait_for("READY again", lambda: messages().count("READY=1") == 2, 20)
            after = messages()[messages().index("RELOADING=1") + 1]
            assert 0 <= time.monotonic() - int(after.removeprefix("MONOTONIC_USEC=")) / 1e6 < 30
            agent.end()
        assert "STOPPING=1" in messages()
        assert any("runs (" in one or "run (" in one for one in messages())


def test_a_stuck_disk_and_a_stuck_capture_do_not_stop_the_watchdog(tmp_path: Path) -> None:
    py_spy = stuck_py_spy(tmp_path, "exec sleep 1000")
    with (
        service_manager(tmp_path) as messages,
        hung_mount(tmp_path) as mount,
        light_job(tmp_path / "job") as job,
    ):
        mount.hang()
        config = f"agent: {{state_dir: {mount.target}, listen: ''}}\nstall: {STALL}\ncapture: {{py_spy: {py_spy}}}\n"
        with bare(tmp_path, config, NOTIFY_SOCKET=str(tmp_path / "notify")) as agent:
            wait_for("READY", lambda: "READY=1" in messages(), 60)
            job.hang()
            wait_for("a dump", lambda: (tmp_path / "started").exists(), 60)
            before = messages().count("WATCHDOG=1")
            wait_for("more pings", lambda: messages().count("WATCHDOG=1") >= before + 5, 10)
            mount.recover()
            agent.end()


# --- restarts ------------------------------------------------------------------------------------------


def test_a_restart_in_the_middle_of_an_incident_keeps_its_id_and_the_rhythm(tmp_path: Path) -> None:
    with light_job(tmp_path / "job") as job:
        agent = start(tmp_path, settings(tmp_path, stall=STALL))
        hang_once_seen_by(agent, job)
        wait_for("the report", lambda: reports_in(agent.state, job), 60)
        (before,) = reports_in(agent.state, job)
        stop(agent)

        again = start(tmp_path, settings(tmp_path, stall=STALL))
        run = wait_for("the run", lambda: _open(again, job), 60)
        assert (run.incident, run.verdict) == (before["id"], before["diagnosis"]["verdict"])
        assert "usual gap" in run.sentence
        for pid in job.ranks.values():
            send_signal(pid, signal.SIGKILL)  # torchrun kills the others, too
        for process in job.processes:
            process.wait(20)
        wait_for("its end", lambda: reports_in(again.state, job)[0]["state"] != "open", 60)
        stop(again)
        (after,) = reports_in(again.state, job)
    assert (after["id"], after["state"]) == (before["id"], "ended")
    assert after["detected_at"] == before["detected_at"]


def test_an_incident_whose_run_ended_while_no_agent_watched_is_closed(tmp_path: Path) -> None:
    with light_job(tmp_path / "job") as job:
        agent = start(tmp_path, settings(tmp_path, stall=STALL))
        hang_once_seen_by(agent, job)
        wait_for("the report", lambda: reports_in(agent.state, job), 60)
        stop(agent)
    with watching(tmp_path, settings(tmp_path, stall=STALL)) as again:
        wait_for("its end", lambda: reports_in(again.state, job)[0]["state"] == "ended", 60)
        (report,) = reports_in(again.state, job)
    assert "gone when the agent came back" in report["timeline"][-1]["what"]


def _open(agent: RunningAgent, job: LightJob) -> RunState | None:
    run = run_of(agent, job)
    return run if run and run.incident and run.sentence else None


# --- kill -9 -------------------------------------------------------------------------------------------

# MLDEBUG_KILL_ROUNDS: kills in all. Two in ten hit the whole agent, which takes longer to come up than its writer alone:
# 200 are about two minutes on two cores.
ROUNDS = int(os.environ.get("MLDEBUG_KILL_ROUNDS") or (200 if os.environ.get("CI") else 20))
AGENT_ROUNDS = int(os.environ.get("MLDEBUG_AGENT_KILL_ROUNDS") or max(4, ROUNDS // 5))
LIFE = (
    0.5  # a killed agent that had answered has lived on for up to so many times what a start takes
)
BARELY = 0.3  # seconds in which no agent can answer
FRESH = 15  # the first two kills and one of so many come in a hang that is new; the others beside the old ones
MOMENTS = (2.0, 4.0)  # seconds from that hang to the kill: about its blame, its capture, its report
DURABLE = 0.5  # seconds after which an id that was told has to survive


@pytest.mark.timeout(900)
def test_no_report_is_lost_or_torn_when_the_writer_is_killed(tmp_path: Path) -> None:
    rounds = ROUNDS - ROUNDS // 5
    argv = [sys.executable, "-m", "processes.agent.killed", str(tmp_path), str(rounds), "20261121"]
    paths = [str(TESTS), str(TESTS.parent), str(TESTS.parent / "agents")]
    environment = clean_environment(tmp_path) | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(argv, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    print(f"{rounds} kills: {found}")
    assert found["wrong"] == []
    assert len(found["stalls"]) == 1, "the same stall has one id over all restarts"
    assert found["open"] == [], "what nobody watches any more is closed"
    assert found["reports"] >= found["promised"] > rounds // 4, "it was killed before it wrote"
    assert found["unseen"] > 0, (
        "every incident had its capture when it was over, or its writer was killed"
    )


@pytest.mark.timeout(1200)
def test_the_agent_itself_is_killed_at_random_moments(tmp_path: Path) -> None:
    """From the moment that it answers: each life takes up what is open, and no id that was told is without a report.

    Some hangs are new in the life that is killed; every other one of these jobs is gone before the next life begins.
    """
    chance, config = random.Random(20261121), settings(tmp_path, stall=STALL)
    hangs: list[Hang] = []
    with ExitStack() as jobs:
        began, counts = time.monotonic(), Counts(_start_seconds(tmp_path, config))
        for number in range(AGENT_ROUNDS):
            fresh = number < 2 or number % FRESH == 0
            with ExitStack() as gone, bare(tmp_path, config) as life:
                if fresh:
                    scope = gone if len(hangs) % 2 else jobs
                    job = scope.enter_context(light_job(tmp_path / f"job-{number}"))
                    hangs.append(_hang_and_kill(life, job, chance.uniform(*MOMENTS)))
                else:
                    _live(life, counts.start, chance, number)
                    counts.died_at(life)
                    life.process.kill()
            _whole(tmp_path / "state", f"kill {number}")
        print(f"{AGENT_ROUNDS} kills in {time.monotonic() - began:.0f} s: {counts}; {hangs}")
        agent = start(tmp_path, config)
        wait_for("every hang", lambda: all(_is_reported(agent, hang) for hang in hangs), 60)
        stop(agent)
    for hang in hangs:
        found = {one["id"] for one in reports_in(agent.state, hang.job)}
        assert not hang.reported or found == {hang.reported}, f"{hang} and {found}"
    assert counts.late, "no agent lived long enough to write"
    assert counts.early, "no agent was killed while it came up"


def _live(life: Bare, start: float, chance: random.Random, number: int) -> None:
    """For a while after its first answer, a start or less, or hardly at all: how long a start takes changes with what else runs."""
    if late := number % 2 == 0:
        wait_for("its first look", life.snapshot, 60)
    usual = LIFE * start if late else start
    time.sleep(chance.uniform(0, BARELY if number % 4 == 3 else usual))


class Hang(NamedTuple):
    """A hang that was new when its agent was killed. `told`: the id that the agent had told for a while by then."""

    job: LightJob
    reported: str

    def __repr__(self) -> str:
        return f"{self.job.name}: {self.reported or 'no incident yet'}"


def _hang_and_kill(life: Bare, job: LightJob, seconds: float) -> Hang:
    """Let a job hang once its agent knows its rhythm, and kill the agent so much later."""
    hang_once_seen_by(life, job)
    deadline, text, since = time.monotonic() + seconds, "", 0.0
    while time.monotonic() < deadline:
        run = run_of(life, job)
        if run is not None and run.incident and not text:
            text, since = run.incident, time.monotonic()
        time.sleep(0.02)
    life.process.kill()
    return Hang(job, text if text and time.monotonic() - since > DURABLE else "")


def _is_reported(agent: RunningAgent, hang: Hang) -> bool:
    """Is there a report, or was there nothing to report when its job went?"""
    lives = all(process.poll() is None for process in hang.job.processes)
    return bool(reports_in(agent.state, hang.job)) or not (lives or hang.reported)


class Counts:
    """How far the agents had come when they were killed; `start`: the seconds that one takes to answer."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.early = self.late = 0

    def died_at(self, life: Bare) -> None:
        """Before or after its first look."""
        answered = life.snapshot() is not None
        self.late += answered
        self.early += not answered

    def __str__(self) -> str:
        return f"{self.early} before and {self.late} after the first look, which took {self.start:.2f} s"


def _start_seconds(folder: Path, config: str) -> float:
    began = time.monotonic()
    with bare(folder, config) as one:
        wait_for("its first look", one.snapshot, 60)
        return time.monotonic() - began


def _whole(state: Path, when: str) -> None:
    """Every report folder is readable and obeys the schema."""
    archive = ReportStore(state)
    for entry in archive.list():
        assert not entry.broken, f"{when}: {entry}"
        VALIDATOR.validate(json.loads((archive.path(entry.id) / "report.json").read_bytes()))
