"""What people type about GPUs, beside a real agent whose driver library is a fake that plays recordings of two H200s."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakenvml.library import FakeNvml
from mldebug.status.snapshot import Snapshot
from processes.agent.light import LightJob, light_job
from processes.harness import SCRIPTS, clean_environment, wait_for
from processes.incidents.watching import Report, RunningAgent, settings, watching
from shared.system.patience import PATIENCE

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(180)]

STALL = "{timeout: 20s, interval: 500ms}"
NOBODY = 65534


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    """Two GPUs; whoever reads them holds a device file."""
    folder = tmp_path / "nvml"
    folder.mkdir()
    made = FakeNvml(folder, "training")
    device = folder / "device"
    device.touch()
    made.hold(device)
    return made


@pytest.fixture
def more(fake: FakeNvml) -> dict[str, str]:
    """The environment in which that library is found."""
    return {"LD_LIBRARY_PATH": str(Path(fake.library).parent), **fake.environment}


@pytest.fixture
def agent(tmp_path: Path, more: dict[str, str]) -> Iterator[RunningAgent]:
    """An agent that has read both GPUs."""
    with watching(tmp_path, settings(tmp_path, stall=STALL), more=more) as one:
        wait_for("both reads", lambda: looked(one).gpus and looked(one).gpu_watch, 60)
        yield one


def looked(agent: RunningAgent) -> Snapshot:
    snapshot = agent.snapshot()
    assert snapshot is not None
    return snapshot


def type_in(agent_folder: Path, more: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":  # fmt: skip
    """Type a command as a person does; it has to end."""
    config = str(agent_folder / "mldebug.yaml")
    argv = [str(SCRIPTS / "mldebug"), *words, "--config", config]
    environment = clean_environment(agent_folder) | more
    return subprocess.run(
        argv,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        cwd=agent_folder,
    )


def holders(device: Path) -> list[int]:
    """Pids of all processes that have this file open."""
    found = []
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            links = [os.readlink(one) for one in folder.iterdir()]
        except OSError:
            continue
        if str(device) in links:
            found.append(int(folder.parent.name))
    return found


# --- release -------------------------------------------------------------------------------------------


def test_after_a_release_nobody_holds_a_gpu_and_later_it_is_read_again(
    agent: RunningAgent, fake: FakeNvml, more: dict[str, str]
) -> None:
    device = fake.path.parent / "device"
    assert holders(device), "the agent's reader holds the device"

    done = type_in(agent.folder, more, "gpus", "release", "--for", "10m")

    assert done.returncode == 0, done.stderr
    assert holders(device) == []
    result = wait_for("it says so", lambda: (s := looked(agent)).gpus_released_until and s, 20)
    assert result.gpus_released_until > time.time() + 500
    wait_for("the source fails", lambda: not _works(looked(agent)), 20)
    assert "the GPUs are released" in _error(looked(agent))
    assert looked(agent).gpu_watch is None
    assert holders(device) == []

    listed = type_in(agent.folder, more, "gpus", "list")
    status = type_in(agent.folder, more, "status")
    doctor = type_in(agent.folder, more, "doctor", "--gpus")
    assert "the agent has let go of the GPUs for another" in listed.stdout
    assert "it has let go of the GPUs for another" in status.stdout
    assert "gpus fails" not in status.stdout
    assert "the agent has let go of them for another" in " ".join(doctor.stdout.split())
    assert holders(device) == [], "a look must not take what was released"

    ended = type_in(agent.folder, more, "gpus", "release", "--end")

    assert ended.returncode == 0, ended.stderr
    wait_for("they are read again", lambda: looked(agent).gpu_watch and _works(looked(agent)), 30)
    assert looked(agent).gpus_released_until is None
    assert holders(device)


def test_the_gpus_are_taken_up_again_when_the_time_is_over(
    agent: RunningAgent, fake: FakeNvml, more: dict[str, str]
) -> None:
    device = fake.path.parent / "device"
    assert type_in(agent.folder, more, "gpus", "release", "--for", "2s").returncode == 0
    wait_for("the source fails", lambda: not _works(looked(agent)), 20)
    wait_for("they are read again", lambda: _works(looked(agent)) and looked(agent).gpu_watch, 30)
    assert holders(device)


def test_a_gpu_that_waits_for_its_reset_is_let_go_by_itself(
    tmp_path: Path, fake: FakeNvml, more: dict[str, str]
) -> None:
    for number in range(2):
        fake.set(f"nvmlDeviceGetComputeRunningProcesses_v3 {number}")
    fake.field(1, 230, 1)  # the recovery action: reset
    tries = (_let_go_by_itself(tmp_path / str(turn), fake, more) for turn in range(6))
    assert any(tries), "somebody else's jobs start here all the time: each makes the agent look"


def _let_go_by_itself(folder: Path, fake: FakeNvml, more: dict[str, str]) -> bool:
    """False where a run of somebody else came between."""
    device = fake.path.parent / "device"
    folder.mkdir()
    with watching(folder, settings(folder, stall=STALL), more=more) as agent:
        wait_for("the release", lambda: "GPUs: released for a while" in agent.log, 60)
        try:
            result = wait_for("it is told", lambda: not _works(s := looked(agent)) and s, 10)
            held, later = holders(device), looked(agent)
            status = " ".join(type_in(folder, more, "status").stdout.split())
        except AssertionError:
            result, held, later, status = looked(agent), [], looked(agent), ""
        if "taken up again" in agent.log:
            return False
        assert (held, later.gpus) == ([], None)
        assert "the driver asks for a reset" in result.gpus_released_why
        kept = [one for one in later.health if one.component == "gpu_recovery"]
        assert [(one.gpu, one.state) for one in kept] == [(1, "unhealthy")]
        assert "GPU 1 is unhealthy: the driver asks for: reset" in status
        with light_job(folder / "job"):
            wait_for(
                "they are read again", lambda: _works(looked(agent)) and looked(agent).gpus, 30
            )
            assert looked(agent).gpus_released_until is None
    return True


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_others_may_not_release(agent: RunningAgent, fake: FakeNvml) -> None:
    """Asked by a real process of another user, over the real socket."""
    ask = (
        "import os, socket, sys\n"
        "link = socket.socket(socket.AF_UNIX); place = os.open(sys.argv[1], os.O_PATH)\n"
        "os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
        "link.connect(f'/proc/self/fd/{place}/agent.sock')\n"
        "link.sendall(b'POST /api/v1/gpus/release?seconds=60 HTTP/1.0\\r\\nContent-Length: 0\\r\\n\\r\\n')\n"
        "sys.stdout.buffer.write(link.makefile('rb').read())\n"
    )
    argv = [str(SCRIPTS / "python"), "-c", ask, str(agent.state)]
    answer = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout
    assert answer.startswith("HTTP/1.1 403"), answer
    assert "agent.group" in answer
    assert holders(fake.path.parent / "device")
    assert looked(agent).gpus_released_until is None


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("release",), 2, "--for 10m, or --end"),
        (("release", "--for", "10m", "--end"), 2, "--for 10m, or --end"),
        (("release", "--for", "10"), 2, "has no unit"),
        (("release", "--for", "5h"), 2, "up to 4 h"),
        (("release", "--for", "0s"), 2, "up to 4 h"),
        (("release", "--for", "1m"), 3, "no agent runs here"),
        (("accept",), 3, "no agent runs here"),
    ],
)
def test_what_cannot_be_done_is_said(
    tmp_path: Path, words: tuple[str, ...], code: int, text: str
) -> None:
    (tmp_path / "mldebug.yaml").write_text(settings(tmp_path))
    done = type_in(tmp_path, {}, "gpus", *words)
    assert done.returncode == code
    assert text in done.stderr


# --- accept ----------------------------------------------------------------------------------------------


def test_a_gpu_that_was_taken_out_is_accepted(
    agent: RunningAgent, fake: FakeNvml, more: dict[str, str]
) -> None:
    fake.set("nvmlDeviceGetCount_v2 -1", 1)
    type_in(agent.folder, more, "gpus", "release", "--for", "1s")  # the next full read comes soon
    wait_for("it is missing", lambda: _missing(looked(agent)), 120)
    assert "missing" in type_in(agent.folder, more, "gpus", "list").stdout
    assert type_in(agent.folder, more, "doctor", "--gpus").returncode == 1

    done = type_in(agent.folder, more, "gpus", "accept")

    assert (done.returncode, done.stdout) == (0, "1 GPU is expected from now on.\n"), done.stderr
    wait_for("it is well", lambda: not _missing(looked(agent)), 60)
    assert "missing" not in type_in(agent.folder, more, "gpus", "list").stdout


# --- looks -----------------------------------------------------------------------------------------------


def test_the_list_is_the_agent_s_or_our_own(
    agent: RunningAgent, fake: FakeNvml, more: dict[str, str], tmp_path: Path
) -> None:
    beside = type_in(agent.folder, more, "gpus", "list")
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "mldebug.yaml").write_text(settings(alone))
    own = type_in(alone, more, "gpus", "list")
    assert "by the agent" in " ".join(beside.stdout.split())
    assert "by the agent" not in own.stdout
    assert "  2 GPUs, all healthy" in type_in(agent.folder, more, "status").stdout.splitlines()
    for item in (beside.stdout, own.stdout):
        assert "2 GPUs, all healthy; NVIDIA H200; driver 580.159.04" in item
        assert "0000:00:06.0" in item
        assert "3/140 GiB" in item
    assert set(holders(fake.path.parent / "device")) == {_reader(agent)}, "our own look is over"


def test_a_driver_that_hangs_the_agent_is_not_asked_by_others(
    agent: RunningAgent, fake: FakeNvml, more: dict[str, str]
) -> None:
    fake.block("nvmlDeviceGetUtilizationRates")
    try:
        wait_for("its failure", lambda: "GpuBlockedError" in _error(looked(agent)), 60)
        before = holders(fake.path.parent / "device")
        began = time.monotonic()
        done = type_in(agent.folder, more, "doctor", "--gpus", "--json")
        assert time.monotonic() - began < 15 * PATIENCE
        assert done.returncode == 1
        assert "has not answered" in json.loads(done.stdout)["glance"]["gpu_gap"]["reason"]
        assert holders(fake.path.parent / "device") == before
    finally:
        fake.release()


# --- dump ------------------------------------------------------------------------------------------------


def test_a_dump_without_an_agent_tells_what_each_gpu_does(
    tmp_path: Path, fake: FakeNvml, more: dict[str, str]
) -> None:
    fake.play("hang-sleep")
    (tmp_path / "mldebug.yaml").write_text(settings(tmp_path))
    with light_job(tmp_path / "job") as job:
        _hold_gpus(fake, job)
        _hang(job)
        report = _dumped(tmp_path, more, job)
    evidence = " ".join(report["diagnosis"]["evidence"])
    assert "GPU 1: 0 % busy, 123 W; GPU 0: 100 % busy, 125 W, no memory traffic" in evidence
    assert "rank 1 sleeps in slow_data_loader" in report["diagnosis"]["summary"]


def test_a_dump_beside_an_agent_has_what_it_has_learned(
    agent: RunningAgent, fake: FakeNvml, more: dict[str, str], tmp_path: Path
) -> None:
    with light_job(tmp_path / "job") as job:
        _hold_gpus(fake, job)
        wait_for("work", lambda: any("compute" in run.devices for run in looked(agent).runs), 90)
        began = time.time()
        wait_for("looks", lambda: (w := looked(agent).gpu_watch) and w.at > began + 3.0, 30)
        fake.play("hang-sleep")
        _hold_gpus(fake, job)
        _hang(job)
        wait_for("a wait", lambda: any("waits in" in run.devices for run in looked(agent).runs), 60)
        report = _dumped(agent.folder, more, job)
    evidence = " ".join(report["diagnosis"]["evidence"])
    assert "GPU 0 waits in a collective (100 % busy" in evidence, evidence


def test_a_driver_that_hangs_costs_a_dump_three_seconds_and_the_gpus(
    tmp_path: Path, fake: FakeNvml, more: dict[str, str]
) -> None:
    (tmp_path / "mldebug.yaml").write_text(settings(tmp_path))
    with light_job(tmp_path / "job") as job:
        _hang(job)
        fake.block("nvmlDeviceGetUtilizationRates")
        try:
            began = time.monotonic()
            report = _dumped(tmp_path, more, job)
            assert time.monotonic() - began < 15 * PATIENCE
        finally:
            fake.release()
    gaps = [one["reason"] for one in report["gaps"] if one["what"] == "GPUs"]
    assert gaps == ["the driver has not answered within 3 s"]
    assert "rank 1 sleeps in slow_data_loader" in report["diagnosis"]["summary"]


def _hold_gpus(fake: FakeNvml, job: LightJob) -> None:
    for rank, pid in job.ranks.items():
        fake.set(f"nvmlDeviceGetComputeRunningProcesses_v3 {rank}", pid, 1 << 30)


def _hang(job: LightJob) -> None:
    """Steps have been made, then none any more."""
    wait_for("steps", lambda: job.log.exists() and b"5" in job.log.read_bytes(), 30)
    job.hang()
    size = -1
    deadline = time.monotonic() + 30 * PATIENCE
    while size != job.log.stat().st_size and time.monotonic() < deadline:
        size = job.log.stat().st_size
        time.sleep(1.0)  # what is waited for is that nothing happens


def _dumped(folder: Path, more: dict[str, str], job: LightJob) -> Report:
    pid = str(job.ranks[0])
    done = type_in(folder, more, "dump", "--json", "--pid", pid)
    assert done.returncode == 1, done.stderr
    report: Report = json.loads(done.stdout)
    return report


def _reader(agent: RunningAgent) -> int:
    (pid,) = holders(agent.folder / "nvml" / "device")
    return pid


def _works(snapshot: Snapshot) -> bool:
    return next(one.success for one in snapshot.sources if one.name == "gpus")


def _error(snapshot: Snapshot) -> str:
    return next(one.error for one in snapshot.sources if one.name == "gpus")


def _missing(snapshot: Snapshot) -> bool:
    return any(one.reason_code == "gpu_missing" for one in snapshot.health)
