"""`mldebug profile` and `mldebug memory` of ranks on other hosts, by real agents that know each other; each host has a network of its own."""

import gzip
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mldebug.capture.inspection import MOST_SECONDS
from mldebug.capture.profile.trace import parse_trace
from processes.harness import JOBS, MLDEBUG, PACE, clean_environment, wait_for
from shared.system.users import ALICE, BOB, system_python
from system.hosts import job_on
from system.launching import need
from system.networks import NetworkHost, network
from system.test_peers import NAMES, STRIKE, Agent, agents, whole

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(500)]
JOB = "train.py"
HOOK = (*MLDEBUG, "run", "--")
ARMED = (*MLDEBUG, "run", "--memory-history", "--")


@pytest.fixture(scope="module", autouse=True)
def root() -> None:
    """Hosts are namespaces."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    need("unshare", "nsenter", "ip")


class Site(NamedTuple):
    """An agent on each of three hosts, and a job of two ranks on each of the first two; the third is where people log in."""

    agents: dict[str, Agent]
    events: Path

    def ask(self, host: str, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.agents[host]._run(*words)

    def answer(self, host: str, *words: str) -> dict[str, Any]:
        done = self.ask(host, *words, "--json")
        assert done.stdout, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found | {"code": done.returncode}

    def step(self, rank: int) -> int:
        file = self.events / f"step.{rank}"
        return int(file.read_text() or 0) if file.exists() else -1

    def goes_on(self) -> None:
        """All ranks make more steps."""
        now = max(map(self.step, range(4)))
        wait_for("more steps", lambda: min(map(self.step, range(4))) > now + 3, STRIKE)


@contextmanager
def site(folder: Path, *options: str, before: Sequence[str] = HOOK) -> Iterator[Site]:
    """`before`: words in front of each rank's."""
    with network(NAMES) as hosts:
        for host in hosts.values():  # ranks of two hosts may have one pid and one start, and so one name in a folder that both have
            subprocess.run(host.inside("mount", "-t", "tmpfs", "tmpfs", "/dev/shm"), check=True)
        with agents(hosts, folder) as found:
            yield from job(hosts, found, folder, options, before)


def job(
    hosts: Mapping[str, NetworkHost], found: dict[str, Agent], folder: Path, options: Sequence[str], before: Sequence[str]
) -> Iterator[Site]:  # fmt: skip
    """Two ranks on each of the first two hosts, which step."""
    some = [hosts["n1"], hosts["n2"]]
    with job_on(some, folder / "job", 2, *options, before=before) as events:
        made = Site(found, events)
        wait_for("the first steps", lambda: min(map(made.step, range(4))) > 3, STRIKE)
        wait_for("all to know its ranks", lambda: known(found["n3"]), 60)
        yield made


def known(agent: Agent) -> bool:
    """Whether this agent hears of all four ranks."""
    shown = agent.status("--cluster")["members"]
    return sorted(run["ranks"] for one in shown for run in one.get("runs", ())) == ["0-1", "2-3"]


def shared(here: Site, pattern: str) -> list[Path]:
    """Files in the shared memory of all hosts."""
    roots = (Path(f"/proc/{one.host.pid}/root/dev/shm") for one in here.agents.values())
    return [file for root in roots for file in root.glob(pattern)]


def left(here: Site) -> list[str]:
    """Requests that lie in shared memory."""
    return [one.name for one in shared(here, "mldebug-*.request")]


def operators(answer: dict[str, Any], one: dict[str, Any]) -> list[str]:
    data = gzip.decompress(Path(answer["folder"], one["file"]).read_bytes())
    return [span.name for span in parse_trace(data).operators]


def test_ranks_on_two_hosts_are_profiled_from_any_host(tmp_path: Path) -> None:
    with site(tmp_path, *PACE) as here:
        both = here.answer("n1", "profile", "--job", JOB, "--ranks", "0,3", "--steps", "2")
        assert both["code"] == 0, both
        profiles = both["profiles"]
        assert [(one["rank"], one["node"]) for one in profiles] == [(0, "n1"), (3, "n2")]
        assert [operators(both, one).count("aten::mse_loss") for one in profiles] == [2, 2]
        here.goes_on()
        text = here.ask("n3", "profile", "--job", JOB, "--ranks", "2", "--steps", "1").stdout
        assert " on n2), step" in text, text
        assert "in collectives" in text
        names = {one.name for one in evidence(here.agents["n3"])}
        assert {"capture-n2.json", "profile-rank2.trace.json.gz", "profile.txt", "profile.json"} <= names  # fmt: skip
        memory = here.answer("n3", "memory", "--job", JOB, "--ranks", "1")
        assert (memory["code"], memory["folder"]) == (3, "")
        (holders,) = memory["ranks"]
        assert (holders["rank"], holders["node"]) == (1, "n1")
        assert "was not started with `mldebug run --memory-history`" in holders["failure"]
        refused = here.ask("n3", "profile", "--job", JOB, "--ranks", "2,4")
        assert (refused.returncode, refused.stdout) == (3, "")
        assert "no node shows rank 4 of it" in refused.stderr
        here.goes_on()
        assert left(here) == []
        full = here.agents["n3"].folder / "state/reports"
        mount = here.agents["n3"].host.inside("mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(full))  # fmt: skip
        subprocess.run(mount, check=True)
        unstored = here.ask("n3", "profile", "--job", JOB, "--ranks", "3", "--steps", "1")
        assert " on n2), step" in unstored.stdout, unstored.stderr
        assert (unstored.returncode, "file: " in unstored.stdout) == (0, False)
        assert "the report was not stored in" in unstored.stderr
        seen_there = Path(f"/proc/{here.agents['n3'].host.pid}/root{full}")
        assert [one for one in seen_there.iterdir() if not one.name.startswith(".")] == []


def test_a_job_that_ends_meanwhile_is_told_by_rank(tmp_path: Path) -> None:
    """The steps are long, so that the profile is under way when all is killed."""
    with site(tmp_path, "--pace", "2") as here, ThreadPoolExecutor() as pool:
        words = ("profile", "--job", JOB, "--ranks", "0,2", "--steps", "20")
        reply = pool.submit(here.answer, "n3", *words)
        wait_for("the ranks to begin", lambda: accepted(here) == 2, 60)
        for pid in ranks_of(here.events):
            os.kill(pid, signal.SIGKILL)
        answer = reply.result()
        assert (answer["code"], answer["folder"]) == (3, ""), answer
        whys = {one["rank"]: one["failure"] for one in answer["profiles"]}
        assert whys.keys() == {0, 2}
        assert set(whys.values()) == {"it ended meanwhile"}
        assert left(here) == []


def ranks_of(events: Path) -> list[int]:
    """The processes of the job that writes there."""
    files = Path("/proc").glob("[0-9]*/cmdline")
    return [int(one.parent.name) for one in files if str(events).encode() in words_in(one)]


def words_in(file: Path) -> list[bytes]:
    try:
        return file.read_bytes().split(b"\0")
    except OSError:  # it has ended
        return []


def accepted(here: Site) -> int:
    """How many ranks have taken a request and not ended it."""
    files = shared(here, "mldebug-*.answer")
    return sum(json.loads(one.read_bytes() or b"{}").get("state") == "accepted" for one in files)


USERS = {name: f"--reuid={uid} --regid={uid} --clear-groups".split() for name, uid in (("alice", ALICE), ("bob", BOB))}  # fmt: skip
READS = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search", "--bounding-set=-all,+dac_read_search"]  # fmt: skip


def test_everybody_has_jobs_of_his_own_profiled_and_no_others() -> None:
    """Users may read files, as otherwise this Python may be closed to them, and no process."""
    with (
        tempfile.TemporaryDirectory(prefix="mldebug-test-") as name,
        network(NAMES) as hosts,
    ):
        folder = Path(name)
        folder.chmod(0o755)
        library, script = folder / "libtorch_cpu.so", folder / "light.py"
        library.write_bytes(b"\x7fELF" + bytes(8192))
        script.write_text((JOBS / "light.py").read_text())
        alice = ["setpriv", *USERS["alice"], system_python(), str(script), str(library)]
        some = [hosts["n1"], hosts["n2"]]
        with agents(hosts, folder) as found, job_on(some, folder / "job", 2, before=alice):
            wait_for("all to know its ranks", lambda: known(found["n3"]), 60)
            words = ("profile", "--job", "light.py", "--ranks", "2", "--seconds", "2", "--json")

            def by(user: str, *more: str) -> "subprocess.CompletedProcess[str]":
                one = found["n3"]
                home = Path(tempfile.mkdtemp(dir=folder))
                home.chmod(0o777)
                argv = [
                    "setpriv",
                    *USERS[user],
                    *READS,
                    *MLDEBUG,
                    *words,
                    *more,
                    "--config",
                    str(one.config),
                ]
                return subprocess.run(
                    one.host.inside(*argv), env=clean_environment(home), capture_output=True, text=True,
                    timeout=120, check=False, cwd="/",
                )  # fmt: skip

            own = by("alice")
            assert own.returncode == 0, own.stdout + own.stderr
            (profile,) = json.loads(own.stdout)["profiles"]
            assert (profile["node"], profile["rank"]) == ("n2", 2)
            assert profile["samples"]["samples"] > 10
            assert "no training job can be seen on this node" in by("bob").stderr
            stranger = by("bob", "--cluster")
            assert (stranger.returncode, stranger.stdout) == (3, "")
            assert "none of your runs match light.py" in stranger.stderr
            root = found["n3"]._run(*words)
            assert root.returncode == 0, root.stderr


def evidence(agent: Agent) -> list[Path]:
    """The evidence files of its newest report."""
    newest = max(agent.folder.glob("state/reports/[!.]*"))
    return list((newest / "evidence").iterdir())


def test_two_who_ask_at_once_and_a_job_without_the_hook(tmp_path: Path) -> None:
    with site(tmp_path, *PACE, before=()) as here, ThreadPoolExecutor() as pool:
        words = ("profile", "--job", JOB, "--ranks", "2", "--seconds", "20")
        first = pool.submit(here.answer, "n1", *words)
        host = here.agents["n2"].host
        wait_for("py-spy to sample it", lambda: sampled(host), 60)
        second = here.ask("n3", *words)
        assert second.returncode == 3, second.stdout
        assert "one at a time" in second.stderr
        answer = first.result()
        assert answer["code"] == 0, answer
        (one,) = answer["profiles"]
        assert (one["rank"], one["node"], one["file"]) == (2, "n2", "profile-rank2.folded.txt")
        assert one["samples"]["samples"] > 100
        here.goes_on()


def sampled(host: NetworkHost) -> bool:
    done = subprocess.run(host.inside("pgrep", "-f", "py-spy record"), capture_output=True, check=False)  # fmt: skip
    return done.returncode == 0


def test_while_a_stall_is_open_no_host_inspects_it(tmp_path: Path) -> None:
    with site(tmp_path, "--fault", "sleep", "--ranks", "3", "--after", "8") as here:
        wait_for("rank 3 to sleep", (here.events / "strike.3").exists, STRIKE)
        wait_for("the report over all nodes", lambda: whole(here.agents["n1"], 2), 90)
        for verb in ("profile", "memory"):
            refused = here.ask("n3", verb, "--job", JOB, "--ranks", "0,3")
            assert (refused.returncode, refused.stdout) == (1, "")
            assert "a stall of train.py is open (report " in refused.stderr
        assert left(here) == []


ENDED = 10.0  # seconds in which nothing of it may be left on any node


def begun(agent: Agent, *words: str) -> "subprocess.Popen[bytes]":
    """A command on that host, which its user may end."""
    with (agent.folder / "asked.log").open("wb") as log:
        return subprocess.Popen(
            agent.host.inside("env", "--default-signal", *MLDEBUG, *words, "--config", str(agent.config)), stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, env=clean_environment(agent.folder), start_new_session=True,
        )  # fmt: skip


def end(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """As a terminal does: the whole group has it."""
    os.killpg(process.pid, number)
    process.wait(30)


def own_pid(agent: Agent) -> int:
    """The agent itself: the child of what entered its host."""
    pid = agent.process.pid
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


WAYS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)


def test_who_goes_has_nobody_sampled_any_longer(tmp_path: Path) -> None:
    """By each way to go, at last the agent that he asked: py-spy ends on all nodes, and the next may ask at once."""
    words = ("--job", JOB, "--ranks", "1,2", "--cluster")
    with site(tmp_path, *PACE, before=()) as here:
        nodes = [here.agents[name].host for name in ("n1", "n2")]
        for number in (*WAYS, None):
            asker = begun(here.agents["n3"], "profile", *words, "--seconds", "60")
            wait_for("py-spy on both nodes", lambda: all(map(sampled, nodes)), 60)
            if number is None:
                os.kill(own_pid(here.agents["n3"]), signal.SIGKILL)
            else:
                end(asker, number)
            wait_for(
                f"nobody to sample after {number}", lambda: not any(map(sampled, nodes)), ENDED
            )
            asker.wait(60)
            here.goes_on()
        after = here.answer("n1", "profile", *words, "--seconds", "1")
        assert after["code"] == 0, after


def test_who_goes_has_no_rank_traced_any_longer(tmp_path: Path) -> None:
    """Ranks that have begun twenty steps stop at the next one; nothing is left in shared memory, and the next may ask at once."""
    words = ("--job", JOB, "--ranks", "0,3", "--cluster")
    with site(tmp_path, "--pace", "1") as here:
        for number in (signal.SIGINT, signal.SIGHUP):
            asker = begun(here.agents["n3"], "profile", *words, "--steps", "20")
            wait_for("the ranks to begin", lambda: accepted(here) == 2, 60)
            end(asker, number)
            wait_for(f"them to stop after {number}", lambda: accepted(here) == 0, ENDED)
            assert whys(here) == {"nobody waits for it any more"}
            wait_for("no request to lie there", lambda: left(here) == [], ENDED)
            after = here.answer("n1", "profile", *words, "--steps", "1")
            assert after["code"] == 0, after
            here.goes_on()


def whys(here: Site) -> set[str]:
    """Why ranks have declined."""
    return {json.loads(one.read_bytes() or b"{}").get("why") for one in shared(here, "mldebug-*.answer")}  # fmt: skip


def test_a_network_that_is_cut_ends_it_on_the_nodes(tmp_path: Path) -> None:
    """Nobody says that the asker is lost: the nodes notice it by themselves, and by both ways."""
    with site(tmp_path, *PACE, before=()) as here:
        node = here.agents["n2"].host
        asker = begun(here.agents["n3"], "profile", "--job", JOB, "--ranks", "2", "--cluster", "--seconds", str(MOST_SECONDS))  # fmt: skip
        wait_for("py-spy to sample it", lambda: sampled(node), 60)
        here.agents["n3"].host.link("down")
        began = time.monotonic()
        wait_for("nobody to sample any more", lambda: not sampled(node), MOST_SECONDS)
        assert time.monotonic() - began < MOST_SECONDS - 15, "it has ended by itself"
        asker.kill()
        asker.wait(30)
        here.goes_on()
