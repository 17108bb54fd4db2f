"""Jobs that come, train, hang, die and go, wave after wave, under one agent: does it grow?

    python tests/bench/soak.py --minutes 120
    python tests/bench/soak.py --fast --waves 18 --json FILE   # what the test does

A wave is one job of each kind, all at once. The agent is measured between two waves, when it watches nothing.
"""

import argparse
import json
import os
import shutil
import signal
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.alone import alone
from mldebug.status.snapshot import RunState, Snapshot
from processes.agent.light import LightJob, light_job
from processes.harness import wait_for
from processes.incidents.watching import RunningAgent, settings, watching

SOON = 60.0
ASK = 0.2  # seconds between two questions to the agent
STEPS = 10  # lines of log before a job meets its fate


@dataclass(frozen=True)
class Pace:
    """How fast the jobs come. The agent's timeout decides how long a hung one lives."""

    stall: str
    rest: float  # seconds between two waves
    each: int  # jobs of a kind in a wave


SLOW = Pace("{timeout: 5s, interval: 1s}", 20.0, 1)
FAST = Pace("{timeout: 1s, interval: 500ms}", 0.0, 2)


class Size(NamedTuple):
    """What the agent and its children hold while no job is there."""

    minutes: float
    lives: int  # jobs that have come and gone so far
    memory: float  # MiB, anonymous, of all of them; pages that they share count once
    rss: float  # MiB, of the agent's own process
    files: int
    threads: int
    processes: int
    state: float  # KiB in the state dir beside the reports


class PolledStatus:
    """What an agent says, asked at most five times a second however many jobs want to know."""

    def __init__(self, running: RunningAgent) -> None:
        self.running = running
        self.mine: set[str] = set()  # names of all jobs that we have started
        self._runs: tuple[RunState, ...] = ()
        self._at = 0.0
        self._lock = threading.Lock()

    def runs(self) -> tuple[RunState, ...]:
        """All runs that it knows."""
        with self._lock:
            if time.monotonic() - self._at > ASK:
                snap = self.running.snapshot()
                self._runs, self._at = snap.runs if snap else (), time.monotonic()
            return self._runs


# --- one job's life -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Life:
    """One job under the agent, from its first step to its end."""

    agent: "PolledStatus"
    job: LightJob

    def run(self) -> RunState | None:
        """What the agent knows of it."""
        return next((run for run in self.agent.runs() if run.name == self.job.name), None)

    def sees(self, what: str, true: Callable[[RunState], object]) -> None:
        """Wait until the agent knows something of it."""
        try:
            wait_for(what, lambda: (run := self.run()) is not None and true(run), SOON)
        except AssertionError as error:
            raise AssertionError(
                f"{error}: {self.run()}\n{self.agent.running.log[-3000:]}"
            ) from None

    def signal(self, number: signal.Signals) -> None:
        """To all ranks."""
        for process in self.job.processes:
            with suppress(ProcessLookupError):
                process.send_signal(number)

    def let_rank_0_end(self) -> None:
        """It waits in a FIFO; whoever opens and closes the other end lets it go, with exit 0."""
        self.job.hang()
        wait_for("rank 0 waits", lambda: _touch(self.job.folder / "fifo"), SOON)
        assert self.job.processes[0].wait(20) == 0


def _touch(fifo: Path) -> bool:
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def done(life: Life) -> None:
    """Ends by itself, with 0."""
    life.let_rank_0_end()


def killed(life: Life) -> None:
    """Its owner ends it."""
    life.signal(signal.SIGTERM)


def crashed(life: Life) -> None:
    """One rank dies: an abnormal end."""
    life.job.processes[1].kill()
    life.job.processes[1].wait(20)
    try:
        life.sees("its end", lambda run: run.incident_kind == "abnormal_end" and run.report)
    except AssertionError:
        run = life.run()
        if run is None or run.lost != (1,) or run.exits:
            raise
        print(
            "a rank died before the agent held it: nobody saw how, and the other goes on",
            flush=True,
        )


def left(life: Life) -> None:
    """One rank leaves early with 0, and the other waits for ever."""
    life.let_rank_0_end()
    life.sees("the rank that left", lambda run: run.report)


def hung(life: Life) -> None:
    """Hangs until the report is there, and is killed."""
    life.job.hang()
    life.sees("the report on the hang", lambda run: run.report)


def paused(life: Life) -> None:
    """Stands still until the report is there, and goes on."""
    life.signal(signal.SIGSTOP)
    life.sees("the report on the pause", lambda run: run.report)
    life.signal(signal.SIGCONT)
    life.sees("the recovery", lambda run: not run.incident)


KINDS: dict[str, Callable[[Life], None]] = {
    one.__name__: one for one in (done, killed, crashed, left, hung, paused)
}


def live(agent: PolledStatus, folder: Path, kind: str) -> None:
    """One job of that kind, from start to end."""
    with light_job(folder, size=1 if kind == "done" else 2) as job:
        life = Life(agent, job)
        agent.mine.add(job.name)
        ranks = job.ranks
        life.sees("its steps", lambda run: run.ranks == ranks and (run.step or 0) >= STEPS)
        KINDS[kind](life)
    shutil.rmtree(folder)


# --- all of them ----------------------------------------------------------------------------------


def soak(folder: Path, pace: Pace) -> Generator[Size, None, None]:
    """One wave after the other for as long as somebody asks; yields the agent's size after each."""
    kinds = list(KINDS) * pace.each
    lives, began = 0, time.monotonic()
    with (
        watching(folder, settings(folder, stall=pace.stall)) as agent,
        ThreadPoolExecutor(len(kinds)) as pool,
    ):
        status = PolledStatus(agent)
        while True:
            places = [folder / f"job-{lives + number}" for number in range(len(kinds))]
            list(pool.map(lambda place, kind: live(status, place, kind), places, kinds))
            lives += len(kinds)
            idle(status)
            yield size_of(agent, lives, (time.monotonic() - began) / 60)
            time.sleep(pace.rest)


def idle(agent: PolledStatus) -> None:
    """Wait until the agent watches none of our jobs and waits for no disk; it may have lost no report."""

    def quiet() -> Snapshot | None:
        snap = agent.running.snapshot()
        if snap is None or snap.reports_waiting or any(run.name in agent.mine for run in snap.runs):
            return None
        return snap

    result = wait_for("the agent to forget the jobs", quiet, SOON)
    assert result.reports_lost == 0, agent.running.log[-3000:]


def size_of(agent: RunningAgent, lives: int, minutes: float) -> Size:
    """Measure it, at a moment at which no child is just leaving."""
    deadline = time.monotonic() + SOON
    while True:
        try:
            return _size_of(agent, lives, minutes)
        except psutil.NoSuchProcess:
            assert time.monotonic() < deadline, "the agent's children come and go without an end"
            time.sleep(0.5)


def _size_of(agent: RunningAgent, lives: int, minutes: float) -> Size:
    process = psutil.Process(agent.process.pid)
    family = [process, *process.children(recursive=True)]
    state = [file for file in agent.state.iterdir() if file.is_file()]
    return Size(
        minutes,
        lives,
        sum(anonymous(one.pid) for one in family) / 2**10,
        process.memory_info().rss / 2**20,
        sum(one.num_fds() for one in family),
        sum(one.num_threads() for one in family),
        len(family),
        sum(file.stat().st_size for file in state) / 2**10,
    )


def anonymous(pid: int) -> int:
    """KiB. File pages are left out: who else uses the same Python decides how many of them are ours."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:"))


def remembered(folder: Path) -> int:
    """Runs that the agent's memory for a restart still holds after its end."""
    with closing(sqlite3.connect(folder / "state" / "agent.sqlite")) as link:
        ((count,),) = link.execute("SELECT count(*) FROM runs")
    return int(count)


def slope(sizes: list[Size], of: Callable[[Size], float], per: Callable[[Size], float]) -> float:
    """How much it grows per unit, by Theil and Sen: the median of the slopes between any two."""
    rises = [
        (of(b) - of(a)) / (per(b) - per(a)) for n, a in enumerate(sizes) for b in sizes[n + 1 :]
    ]
    return statistics.median(rises) if rises else 0.0


def verdict(sizes: list[Size]) -> str:
    """The slopes after the first quarter, which warms up, and of the second half alone."""
    lines = []
    for name, part in (
        ("last three quarters", sizes[len(sizes) // 4 :]),
        ("second half", sizes[len(sizes) // 2 :]),
    ):
        values = [
            f"{what} {1024 * slope(part, of, lambda one: one.lives):+.2f} KiB/job"
            f" ({60 * slope(part, of, lambda one: one.minutes):+.2f} MiB/h)"
            for what, of in (("memory", lambda one: one.memory), ("RSS", lambda one: one.rss))
        ]
        counts = ", ".join(
            f"{what} {min(value)}-{max(value)}"
            for what, value in (
                ("fds", [one.files for one in part]),
                ("threads", [one.threads for one in part]),
                ("processes", [one.processes for one in part]),
            )
        )
        lines.append(f"{name}: {'; '.join(values)}; {counts}")
    return "\n".join(lines)


def line(one: Size) -> str:
    """One wave, as it is printed."""
    return (
        f"{one.minutes:6.1f} min {one.lives:5} jobs  memory {one.memory:6.2f} MiB  RSS {one.rss:6.2f} MiB"
        f"  {one.files} fds {one.threads} threads {one.processes} processes  state {one.state:.0f} KiB"
    )


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--waves", type=int, default=1_000_000)
    parser.add_argument("--fast", action="store_true", help="no rest between two waves")
    parser.add_argument("--json", type=Path, help="write all sizes there")
    return parser.parse_args()


def main() -> None:
    """Print a line for each wave, now and then the slopes, and at the end all of it."""
    wanted, sizes = options(), list[Size]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with closing(soak(folder, FAST if wanted.fast else SLOW)) as waves:
            for one in waves:
                sizes.append(one)
                print(line(one), flush=True)
                if len(sizes) % 20 == 0:
                    print(verdict(sizes), flush=True)
                if one.minutes >= wanted.minutes or len(sizes) >= wanted.waves:
                    break
        left = remembered(folder)
    print(f"{len(sizes)} waves, {sizes[-1].lives} jobs, {left} remembered\n{verdict(sizes)}")
    if wanted.json:
        facts = {"sizes": [one._asdict() for one in sizes], "remembered": left}
        wanted.json.write_text(json.dumps(facts))


if __name__ == "__main__":
    alone()
    main()
