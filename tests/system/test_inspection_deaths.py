"""Who asks other nodes to look inside a job, who coordinates, or the agent of a rank's node ends in the middle: the job is as it was."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from processes.harness import PACE, SCRIPTS, clean_environment, wait_for
from processes.needs import need_torch
from system.launching import need
from system.test_inspections import (
    ARMED,
    ENDED,
    JOB,
    Site,
    accepted,
    begun,
    end,
    known,
    left,
    own_pid,
    ranks_of,
    shared,
    site,
    whys,
    words_in,
)
from system.test_peers import Agent, follows

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.long, pytest.mark.timeout(500)]
need_torch("the ranks have the hook's profiler")
KEPT = 60.0  # seconds for which a rank keeps an answer
DEATHS = (  # a coordinator passes on five requests of a node in ten minutes, and one that was started again has forgotten them
    ("memory", "n1"),
    ("profile", "n1", "--steps", "20"),
    ("memory", "n2"),
    ("profile", "n2", "--steps", "20"),
)
NODES = ("n1", "n2")


@pytest.fixture(scope="module", autouse=True)
def root() -> None:
    """Hosts are namespaces."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    need("unshare", "nsenter", "ip")


class RankTraits(NamedTuple):
    """What an inspection must leave as it was in a rank."""

    threads: int
    files: tuple[str, ...]  # that it holds open
    signals: tuple[str, ...]  # which it handles, blocks, ignores
    tracer: str
    children: str


def traits(here: Site) -> Mapping[int, RankTraits]:
    """Of each rank, by pid."""
    return {pid: _traits(Path("/proc", str(pid))) for pid in ranks_of(here.events)}


def settled(here: Site) -> Mapping[int, RankTraits]:
    """The same, once it was alike in five looks: a rank that writes its step has one file more for a moment, and may still start threads."""
    looks: list[Mapping[int, RankTraits]] = []

    def alike() -> bool:
        looks.append(traits(here))
        return len(looks) >= 5 and all(one == looks[-1] for one in looks[-5:])

    wait_for("the ranks to be alike for a while", alike, ENDED)
    return looks[-1]


def _traits(process: Path) -> RankTraits:
    lines = dict(one.split(":\t", 1) for one in (process / "status").read_text().splitlines())
    return RankTraits(
        threads=len(list((process / "task").iterdir())),
        files=tuple(sorted(_links(process / "fd"))),
        signals=tuple(lines[name] for name in ("SigBlk", "SigIgn", "SigCgt")),
        tracer=lines["TracerPid"],
        children=(process / "task" / process.name / "children").read_text(),
    )


def _links(folder: Path) -> Iterator[str]:
    for one in folder.iterdir():
        try:
            yield os.readlink(one)
        except FileNotFoundError:  # closed meanwhile
            continue


@contextmanager
def no_steps(here: Site) -> Iterator[None]:
    """Nobody ends a step in the block: they wait for rank 1, which stands."""
    environ = {pid: words_in(Path(f"/proc/{pid}/environ")) for pid in ranks_of(here.events)}
    pids = [
        pid for pid, words in environ.items() if b"RANK=1" in words
    ]  # with what has entered its host
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


def taken(here: Site, reply: "Future[subprocess.CompletedProcess[str]]") -> None:
    """Wait until ranks 0 and 3 have taken it."""
    wait_for("the ranks to take it", lambda: accepted(here) == 2 or reply.done(), 60)
    assert not reply.done(), reply.result()


def as_before(here: Site, before: Mapping[int, RankTraits]) -> None:
    """The ranks go on, have stopped what they were asked for, and nothing is left in them."""
    wait_for("them to stop", lambda: accepted(here) == 0, ENDED)
    assert whys(here) == {"nobody waits for it any more"}
    here.goes_on()
    wait_for("the ranks to be as they were", lambda: traits(here) == before, ENDED)
    assert left(here) == []


def die(agent: Agent) -> None:
    """As the kernel's out-of-memory killer ends an agent; all that it has started ends, too."""
    os.kill(own_pid(agent), signal.SIGKILL)
    agent.process.wait(30)
    wait_for("its children to end", lambda: not _processes(agent), ENDED)


def _processes(agent: Agent) -> str:
    argv = agent.host.inside("pgrep", "-af", str(agent.config))
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def children(agent: Agent) -> int:
    """How many processes run in the agent's host beside it."""
    return len(_processes(agent).splitlines())


def taken_back(here: Site, counts: Mapping[str, int]) -> None:
    """Wait until no agent works on it any more, and no request lies there."""
    wait_for("its children to end", lambda: all(children(here.agents[n]) < counts[n] for n in counts), ENDED)  # fmt: skip
    wait_for("the ranks to have heard it", lambda: left(here) == [], ENDED)


def start_again(agent: Agent, first: str) -> None:
    """As its service does."""
    argv = [str(SCRIPTS / "mldebug"), "agent", "--config", str(agent.config)]
    with (agent.folder / "log").open("wb") as log:
        agent.process = subprocess.Popen(
            agent.host.inside(*argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env=clean_environment(agent.folder), start_new_session=True,
        )  # fmt: skip
    wait_for("it to follow the first", lambda: follows(agent, first), 60)


def test_ranks_with_the_hook_are_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ends while ranks 0 and 3 wait for the end of a step: by ways to go of who asks for their memory, then by the death of the
    coordinator (n1) and of the agent of rank 3 (n2), for memory and profiles.
    """
    monkeypatch.setattr(Agent, "stall", "{timeout: 200s, interval: 1s}")
    everywhere = ("--job", JOB, "--ranks", "0,3", "--cluster")
    with site(tmp_path, *PACE, before=ARMED) as here, ThreadPoolExecutor() as pool:
        before = settled(here)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
            with no_steps(here):
                asker = begun(here.agents["n3"], "memory", *everywhere)
                wait_for("the ranks to take it", lambda: accepted(here) == 2, 60)
                counts = {name: children(here.agents[name]) for name in NODES}
                end(asker, number)
                taken_back(here, counts)
            as_before(here, before)
        for verb, dies, *more in DEATHS:
            with no_steps(here):
                reply = pool.submit(here.ask, "n3", verb, *everywhere, *more)
                taken(here, reply)
                counts = {name: children(here.agents[name]) for name in NODES}
                die(here.agents[dies])
                if dies == "n2":  # rank 0 goes on with it
                    del counts["n1"]
                taken_back(here, counts)
            ended = reply.result()
            assert ended.returncode == 3, ended
            if dies == "n1":
                wait_for(
                    "the reason", lambda: whys(here) == {"nobody waits for it any more"}, ENDED
                )
                assert ended.stdout == "", ended
                assert "hung up" in ended.stderr
            else:
                assert "rank 3 (pid 0 on n2)" in ended.stdout, ended
                assert (
                    "hung up" in ended.stdout or "no agent is there" in ended.stdout
                )  # asked again
                assert "nobody waits for it any more" in whys(here)
            here.goes_on()
            start_again(here.agents[dies], "n[1-3]")
            wait_for("all to know its ranks", lambda: known(here.agents["n3"]), 60)
            works(here)
        wait_for("the answers to go", lambda: shared(here, "mldebug-*.answer") == [], KEPT + 20)
        assert shared(here, "mldebug-*trace*") == []


def works(here: Site) -> None:
    """The next request works: ranks answer, and that they have no CUDA memory."""
    answer = here.answer("n3", "memory", "--job", JOB, "--ranks", "0,3", "--cluster")
    assert [one["failure"] for one in answer["ranks"]] == ["CUDA is not used yet"] * 2, answer
