"""An agent that runs as root reads no file for a job that the job's own user may not read."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mldebug.core.plugins import create_all
from mldebug.jobs.logs.parser import LogParser
from mldebug_agents.jobs.logs.follower import LogFollower, LogUpdate
from mldebug_agents.jobs.logs.locations import LogFile, LogFinder
from mldebug_agents.jobs.logs.tail import log_of, read_log
from mldebug_agents.system.child.job_paths import Rights
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import FilePiece, Reader, Unreadable
from mldebug_agents.system.spawn import Spawner
from shared.system.hung import wait_until
from shared.system.whose import MINE

NOBODY = 65534
SECRET = "step 99 loss 1\n"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can read for others")


@pytest.fixture
def reader() -> Iterator[Reader]:
    with Spawner() as spawner, Reader(spawner) as it:
        yield it


@contextmanager
def job_of_nobody(log: Path, flags: int = os.O_WRONLY) -> Iterator[int]:
    """A rank of user nobody whose stdout a process with more rights has opened for it."""
    descriptor = os.open(log, flags | os.O_APPEND)
    rank = subprocess.Popen(
        ["/bin/sh", "-c", "echo step 1 loss 1; exec sleep 600"], stdout=descriptor, stderr=subprocess.DEVNULL,
        user=NOBODY, group=NOBODY, extra_groups=[],
    )  # fmt: skip
    os.close(descriptor)
    try:
        wait_until(lambda: b"step 1 loss" in log.read_bytes())
        yield rank.pid
    finally:
        rank.kill()
        rank.wait()


def place_of(pid: int) -> LogFile:
    host = Host()
    state = host.process_state(pid, threads=False, files=True)
    assert state is not None
    (place,) = LogFinder(host).find(state, ()).places
    return place


def follower(reader: Reader) -> LogFollower:
    return LogFollower(reader, LogParser(create_all("logs")))


def steps(news: LogUpdate) -> list[int | None]:
    return [record.step for record in (news.before, *news.records) if record]


@needs_root
def test_a_file_that_only_root_may_read_is_not_read_for_nobody(
    tmp_path: Path, reader: Reader
) -> None:
    log = tmp_path / "secret.log"
    log.write_text(SECRET)
    log.chmod(0o600)
    with job_of_nobody(log) as pid:
        news = follower(reader).poll(place_of(pid))
        assert steps(news) == []
        assert news.gap is not None
        assert news.gap.reason == f"{log}: user {NOBODY} of the job may not read it"
        state = Host().process_state(pid, files=True)
        assert state is not None
        place = log_of([state])
        assert place is not None
        rights = Host().rights.of_process(pid, state.start_ticks)
        tail = read_log(reader, *place[:2], rights)
        assert isinstance(tail, Unreadable)
        assert "may not read it" in tail.reason
        log.chmod(0o644)
        assert steps(follower(reader).poll(place_of(pid))) == [1]
        assert not isinstance(read_log(reader, *place[:2], rights), Unreadable)


@needs_root
def test_groups_are_those_of_the_rank(tmp_path: Path, reader: Reader) -> None:
    log = tmp_path / "shared.log"
    log.touch()
    os.chown(log, 0, NOBODY)
    log.chmod(0o640)
    with job_of_nobody(log) as pid:
        assert steps(follower(reader).poll(place_of(pid))) == [1]


@needs_root
def test_the_log_of_another_user_s_tee(tmp_path: Path, reader: Reader) -> None:
    """Root's `tee` reads the pipe of nobody's job: its file is read only as far as nobody may."""
    log = tmp_path / "train.log"
    tee = subprocess.Popen(["tee", str(log)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert tee.stdin is not None
    rank = subprocess.Popen(
        ["/bin/sh", "-c", "echo step 5 loss 1; exec sleep 600"], stdout=tee.stdin,
        stderr=subprocess.DEVNULL, user=NOBODY, group=NOBODY, extra_groups=[],
    )  # fmt: skip
    tee.stdin.close()
    try:
        wait_until(lambda: log.exists() and log.stat().st_size > 0)
        place = place_of(rank.pid)
        assert (place.kind, place.via) == ("reader", f"tee (pid {tee.pid})")
        hidden = follower(reader).poll(place)  # pytest's folder is root's alone
        assert hidden.gap is not None
        assert "may not read it" in hidden.gap.reason
        for folder in tmp_path.parents[:-2]:
            folder.chmod(0o755)
        tmp_path.chmod(0o755)
        assert steps(follower(reader).poll(place)) == [5]
        log.chmod(0o600)
        news = follower(reader).poll(place)
        assert news.gap is not None
        assert "may not read it" in news.gap.reason
    finally:
        rank.kill()
        rank.wait()
        tee.wait()


class SwappingReader(Reader):
    """Gives the attacker the moment between the check of a name and the read of it."""

    def __init__(self, spawner: Spawner, swap: "list[tuple[Path, Path]]") -> None:
        super().__init__(spawner)
        self.swap = swap

    def read_from(
        self,
        path: str,
        offset: int,
        *,
        rights: Rights,
        place: str = "",
        max_bytes: int,
        timeout: float = 2.0,
    ) -> FilePiece | Unreadable:
        answer = super().read_from(
            path, offset, rights=rights, place=place, max_bytes=max_bytes, timeout=timeout
        )
        if "/root/" in path and isinstance(answer, FilePiece) and self.swap:
            folder, elsewhere = self.swap.pop()
            folder.rename(folder.with_name("moved"))
            folder.symlink_to(elsewhere)
        return answer


def test_a_folder_that_becomes_a_link_between_check_and_read(tmp_path: Path) -> None:
    """The rest of a rotated log is read under a name that the job owns: it may lead anywhere by then."""
    mine, secret = tmp_path / "mine", tmp_path / "secret"
    mine.mkdir()
    secret.mkdir()
    (secret / "train.log").write_text(SECRET * 100)
    log = os.open(mine / "train.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    path = f"/proc/{os.getpid()}/fd/{log}"

    def place() -> LogFile:
        return LogFile(
            rights=MINE, path=path, target=os.readlink(path), pid=os.getpid(), kind="stdout"
        )

    with Spawner() as spawner, SwappingReader(spawner, [(mine, secret)]) as reader:
        watch = follower(reader)
        os.write(log, b"step 1 loss 1\n")
        assert steps(watch.poll(place())) == [1]
        os.write(log, b"step 2 loss 1\n")
        other = os.open(tmp_path / "next.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(other, log)
        os.close(other)
        os.write(log, b"step 3 loss 1\n")
        news = watch.poll(place())
    assert reader.swap == [], "the attack did not take place"
    assert news.rotated
    assert steps(news) == [3]  # the end of the old log is lost, which is the attacker's own loss
    os.close(log)
    shutil.rmtree(secret)
