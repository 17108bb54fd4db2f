"""Real jobs that get stuck, one after the other: each is asked by `mldebug dump` and watched by an agent all the time.

One agent watches all the jobs of a user. A job starts while others hang, because starting is what takes long.
"""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from processes.harness import (
    MLDEBUG,
    UNATTACHED,
    Answer,
    Plan,
    RunningJob,
    User,
    folder_for,
    fuse_mount,
    marked,
    mldebug,
    running,
    state_of,
    wait_for,
    wchan_of,
)
from processes.incidents.scenarios import (
    HIGH,
    MEDIUM,
    NIGHTLY,
    SCENARIOS,
    Expected,
    Scenario,
    one,
)
from processes.incidents.watching import Report, RunningAgent
from shared.system.patience import PATIENCE

TIMEOUT, BUSY_TIMEOUT, INIT_TIMEOUT = 15.0, 20.0, 20.0
STALL = (
    f"{{timeout: {TIMEOUT:.0f}s, busy_timeout: {BUSY_TIMEOUT:.0f}s,"
    f" init_timeout: {INIT_TIMEOUT:.0f}s, interval: 1s}}"
)
REPORT_SECONDS = 60.0  # for the report, once the job is stuck
AT_ONCE = 4  # jobs that hang at the same time
STEPS = 40  # before the fault strikes: the agent has seen the job move
POLLING = re.compile(r"hrtimer_nanosleep|poll_schedule_timeout.*")

LIMITS = dict.fromkeys(("loop", "ddp_loop", "regex", "prepare", "thread"), BUSY_TIMEOUT) | {
    "late": INIT_TIMEOUT,
    "missing": INIT_TIMEOUT,
}
MORE = (
    one("dataloader", "dataloader_stalled", HIGH, MEDIUM, options=("--workers", "1"), busy=(2,)),
    one("fuse", "storage_fault", HIGH),
    one("fuse_open", "storage_fault", HIGH, marks=NIGHTLY),  # fuse
    Scenario("missing", {"fault": "none", "launch": (0, 1, 2)},
             Expected("init_incomplete", (3,), (HIGH, MEDIUM)), busy=(0, 1, 2)),
    Scenario("paused", {"fault": "none", "struck": ()}, Expected("job_paused", (), (HIGH, MEDIUM))),
    one("spin", "rank_waiting", HIGH, MEDIUM, world_size=3, after=300, busy=(0, 1)),
    one("chatty", "rank_waiting", HIGH, MEDIUM),
)  # fmt: skip
ALL = {scenario.name: scenario for scenario in (*SCENARIOS, *MORE)}
KINDS = {"dataloader": "worker", "fuse": "mount", "fuse_open": "mount"}


@dataclass
class Case:
    """One stuck job: the right answer, and what came."""

    scenario: Scenario
    plan: Plan
    limit: float
    mount: str = ""
    trouble: str = ""  # why the job did not get stuck
    struck_at: float = 0.0
    culprits: dict[int, tuple[int | None, ...]] = field(default_factory=dict)  # rank -> right pids
    answer: Answer | None = None  # of `mldebug dump`
    health: list[dict[int, str]] = field(default_factory=list)  # before and after it
    reports: list[Report] = field(default_factory=list)  # of the agent
    reported_at: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The scenario's."""
        return self.scenario.name

    @property
    def late(self) -> float:
        """Seconds from the end of the timeout to the agent's report."""
        return self.reported_at[0] - self.struck_at - self.limit

    @property
    def kind(self) -> str:
        """What kind of culprit it has."""
        return KINDS.get(self.name, "rank")


def run_all(
    names: list[str], user: User, agent: RunningAgent, library: Path, *, unattached: bool = False
) -> dict[str, Case]:
    """Run these scenarios; the oldest is judged and ended before a fifth one starts, one that computes as soon as its report is there.

    `unattached`: under `mldebug run`, and nobody may attach to them.
    """
    with ExitStack() as mounts, Clock(agent) as clock:
        todo = (_case(ALL[name], user, library, mounts, hook=unattached) for name in names)
        found = {case.name: case for case in _pipeline(agent, todo)}
    for case in found.values():
        case.reported_at = [clock.observed[report["id"]] for report in case.reports]
    return found


class Clock(threading.Thread):
    """Notes when each report is first there: it is written anew with the second capture."""

    def __init__(self, agent: RunningAgent) -> None:
        super().__init__(daemon=True)
        self.observed: dict[str, float] = {}
        self._agent = agent
        self._over = threading.Event()

    def run(self) -> None:
        """Look ten times a second."""
        while not self._over.wait(0.1):
            self._look()
        self._look()

    def _look(self) -> None:
        for file in self._agent.state.glob("reports/[!.]*/report.json"):
            self.observed.setdefault(file.parent.name, time.time())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def _case(scenario: Scenario, user: User, library: Path, mounts: ExitStack, *, hook: bool) -> Case:
    arguments: dict[str, Any] = {"after": STEPS, "user": user, "hook": hook} | scenario.plan
    case = Case(scenario, Plan(), LIMITS.get(scenario.name, TIMEOUT))
    if scenario.name == "spin":
        arguments["options"] = ("--library", str(library))
    if case.kind == "mount":
        shard, server = mounts.enter_context(
            fuse_mount(mounts.enter_context(folder_for(user)), user)
        )
        arguments |= {"options": ("--path", str(shard)), "server": server}
        case.mount = str(shard.parent)
    case.plan = Plan(**arguments)
    return case


def _pipeline(agent: RunningAgent, todo: Iterator[Case]) -> Iterator[Case]:
    hanging: list[tuple[RunningJob, Callable[[], Case]]] = []
    with ExitStack() as everything, ThreadPoolExecutor(AT_ONCE) as pool:
        for case in todo:
            matching = [one for one in hanging if agent.reports(one[0])]
            for over in matching or hanging[: len(hanging) == AT_ONCE]:
                hanging.remove(over)
                yield over[1]()
            stack = everything.enter_context(ExitStack())
            job = stack.enter_context(running(case.plan))
            try:
                _strike(agent, case, job)
                _dump(case, job)
            except Exception as error:  # noqa: BLE001 - of this job alone, all others are judged
                case.trouble = f"{type(error).__name__}: {error}"
            finish = partial(_finish, agent, case, job, stack)
            # who keeps a core is ended with its report, others when their turn comes: a second report of theirs would be seen
            hanging.append((job, pool.submit(finish).result if case.scenario.busy else finish))
        for _, waiting in hanging:
            yield waiting()


def _strike(agent: RunningAgent, case: Case, job: RunningJob) -> None:
    """Wait until the fault has struck: from that moment on the latency counts."""
    if case.name == "missing":
        job.wait_for_event("started", (0, 1, 2))
    elif case.name == "paused":
        job.wait_for_step(STEPS)
        wait_for("the agent sees its steps", lambda: (run := agent.run_of(job)) and run.step, 30)
        for pid in job.ranks.values():
            _stop(pid)
    else:
        job.wait_for_event("strike", case.plan.struck)
    case.struck_at = time.time()
    job.wait_until_stuck(case.scenario.busy)
    for pid in job.ranks.values() if case.name == "missing" else ():
        wait_for("the ranks wait in the store", lambda p=pid: POLLING.fullmatch(wchan_of(p)), 60)


def _stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_for("the rank is stopped", lambda: state_of(pid) == "T", 10)


def _dump(case: Case, job: RunningJob) -> None:
    """Ask at once, by hand, while the agent still waits for its timeout."""
    case.culprits = {rank: _right_pids(job, case, rank) for rank in case.scenario.expected.ranks}
    case.health.append({pid: health(pid) for pid in marked(job.mark)})
    program = UNATTACHED if case.plan.hook else MLDEBUG
    asking = ("dump", "--json", "--pid", str(min(job.ranks.values())))
    case.answer = mldebug(job, *asking, program=program)
    case.health.append({pid: health(pid) for pid in case.health[0]})


def _right_pids(job: RunningJob, case: Case, rank: int) -> tuple[int | None, ...]:
    """What a report may give as the pid of a culprit: none, or its former one, where it lives no more."""
    if case.name == "missing":
        return (None,)
    if case.kind == "worker":
        return (int((job.events / f"worker.{rank}").read_text()),)
    pid = job.ranks[rank]
    return (None, pid) if case.kind == "mount" or state_of(pid) in ("", "Z") else (pid,)


def health(pid: int) -> str:
    """The state of a process as far as a capture could have harmed it: who polls is now on a CPU, now asleep."""
    # the agent that watches beside us may just read a native stack
    deadline = time.monotonic() + 5 * PATIENCE
    while (state := state_of(pid)) == "t" and time.monotonic() < deadline:
        time.sleep(0.05)
    return {"R": "runs", "S": "runs", "D": "runs"}.get(state, state)


def _finish(agent: RunningAgent, case: Case, job: RunningJob, stack: ExitStack) -> Case:
    with stack:
        deadline = time.monotonic() + (0 if case.trouble else REPORT_SECONDS * PATIENCE)
        while not agent.reports(job) and time.monotonic() < deadline:
            time.sleep(0.2)
        case.reports = agent.reports(job)
    return case
