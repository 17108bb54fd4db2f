"""A user's files become links, FIFOs, devices and giants while a real agent reads them; another user's stall is named on time, and nothing of root is shown."""

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from processes.agent.light import LightJob, light_job
from processes.capture.flood import as_user
from processes.capture.test_hostile_jobs import (
    ATTACKER,
    RIGHTS,
    SOON,
    TIMEOUT,
    VICTIM,
    report_of,
)
from processes.harness import User, folder_for, wait_for
from processes.incidents.watching import RunningAgent, settings, watching
from shared.jobs.hostile import BESIDE, HEADERS, SHARED

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.system,
    pytest.mark.timeout(240),
    pytest.mark.long,  # what is read of one path: tests/unit/system/test_job_paths.py
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users"),
]

SECRET = "a line that root alone may read"
GIANT = 1 << 42
UNSEEN = """
import ctypes
libc = ctypes.CDLL(None)
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_char_p)]
allows_all = Filter(1, bytes((6, 0, 0, 0, 0, 0, 0xFF, 0x7F)))
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, ctypes.byref(allows_all), 0, 0) == 0  # PR_SET_SECCOMP
libc.prctl(4, {dumpable}, 0, 0, 0)  # PR_SET_DUMPABLE
"""
"""Each Python of the job starts with it."""


def _fifo(path: Path, _: Path) -> None:
    os.mkfifo(path, 0o666)


def _device(path: Path, _: Path) -> None:
    os.mknod(path, 0o020666, os.makedev(1, 5))  # as root of a container can: /dev/zero


def _link(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def _endless(path: Path, _: Path) -> None:
    path.symlink_to("/dev/zero")


def _giant(path: Path, _: Path) -> None:
    path.write_bytes(next(iter(HEADERS.values())))
    os.truncate(path, GIANT)


def _growing(path: Path, _: Path) -> None:
    path.write_bytes(HEADERS["wandb"] * 40_000)


MADE: tuple[Callable[[Path, Path], None], ...] = (_fifo, _device, _link, _endless, _giant, _growing)


@contextmanager
def changing(files: list[Path], secret: Path) -> Iterator[None]:
    """Each of these files is another kind of thing every moment, put in its place in one step."""
    over = threading.Event()

    def change() -> None:
        for number in itertools.count():
            for place, path in enumerate(files):
                half = path.with_name(f"{path.name}.half")
                with suppress(OSError):
                    MADE[(number + place) % len(MADE)](half, secret)
                    if not half.is_symlink():
                        os.chown(half, ATTACKER, ATTACKER)
                    half.replace(path)
                half.unlink(missing_ok=True)
            if over.wait(0.05):
                return

    worker = threading.Thread(target=change, daemon=True)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join(60)
        for path in files:
            path.unlink(missing_ok=True)


def shared_files(job: LightJob) -> list[Path]:
    """Where hook and tracer of the job would have theirs."""
    found = []
    for pid in job.ranks.values():
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        found += [Path("/dev/shm", name.format(f"{pid}-{start}")) for name in SHARED]
    return found


def files_of(folder: Path) -> list[Path]:
    """The files beside a job, with their folders."""
    files = [folder / name for name in BESIDE]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
    return files


def places(folder: Path) -> Mapping[str, str]:
    """Environment variables that name them."""
    return {
        "TORCHELASTIC_ERROR_FILE": f"{folder}/error.json",
        "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/fr_",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{folder}/fr_",
        "NCCL_DEBUG_FILE": f"{folder}/metrics.csv",
    }


def is_watched(agent: RunningAgent, job: LightJob) -> bool:
    """Whether the agent has seen it step."""
    snap, pids = agent.snapshot(), set(job.ranks.values())
    runs = snap.runs if snap else ()
    return any(pids & set(run.ranks.values()) and run.step for run in runs)


def unseen(folder: Path, dumpable: int) -> Mapping[str, str]:
    """Environment variables of a job below seccomp that (with 0) nobody may dump."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(UNSEEN.format(dumpable=dumpable))
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize("user", RIGHTS)
def test_what_changes_between_check_and_read_ends_nothing_and_tells_nothing(user: User) -> None:
    """The victim runs below seccomp, and the attacker has made the files of its hook before it could."""
    with ExitStack() as stack:
        folder = stack.enter_context(folder_for(User()))
        folder.chmod(0o777)
        secret = folder / "secret"
        secret.write_text(f"{SECRET}\n" * 99)
        secret.chmod(0o600)
        agent = stack.enter_context(watching(folder, settings(folder, stall=TIMEOUT), user))
        more = unseen(folder / "seccomp", 1)
        victim = stack.enter_context(
            light_job(folder / "victim", prefix=as_user(VICTIM), more=more)
        )
        stack.enter_context(changing(shared_files(victim), secret))
        wait_for("the victim is watched", lambda: is_watched(agent, victim), 60)
        at = folder / "hostile"
        files = files_of(at)
        stack.enter_context(changing(files, secret))
        hidden = unseen(folder / "hidden", 0) | places(at)
        both = (places(at), hidden)
        hostile = [
            stack.enter_context(light_job(folder / f"hostile-{n}", prefix=as_user(ATTACKER), more=m))
            for n, m in enumerate(both)
        ]  # fmt: skip
        stack.enter_context(changing(shared_files(hostile[0]), secret))
        os.truncate(hostile[0].log, GIANT)
        wait_for("one of them is found", lambda: agent.log.count("ranks found") > 1, 60)
        os.kill(hostile[0].ranks[0], signal.SIGKILL)
        hostile[1].hang()
        os.kill(victim.ranks[1], signal.SIGSTOP)
        victim.hang()
        report = wait_for("the victim's report", lambda: report_of(agent, victim), SOON)
        wait_for("the end of the other", lambda: report_of(agent, hostile[0]), SOON)
        assert agent.process.poll() is None
        assert "internal error" not in agent.log
        assert "Traceback" not in agent.log
        shown = [one for one in agent.state.rglob("*") if one.is_file() and SECRET.encode() in one.read_bytes()]  # fmt: skip
        assert shown == []
    assert [one["rank"] for one in report["diagnosis"]["culprits"]] == [1]
