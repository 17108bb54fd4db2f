"""Every format that is known, each printed by a process of its own into its own log in pieces cut anywhere, under one real agent: its
status has the step and the loss that stand in the fixtures, and no other. Each evaluation, preparation and background thread raises
nothing while its job is well, and is noticed where the job hangs in it, or beside it.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mldebug.status.snapshot import RunState
from processes.harness import clean_environment, free_port, wait_for
from processes.incidents.watching import RunningAgent, settings, watching
from shared.system.patience import PATIENCE
from unit.jobs.test_field_logs import STACKS as POSTED
from unit.jobs.test_headed_tables import LINES as FROM_SOURCES
from unit.jobs.test_log_stacks import BEFORE, counted
from unit.jobs.test_log_stacks import STACKS as COLLECTED
from unit.jobs.test_looked_up_stacks import STACKS as LOOKED_UP

pytestmark = [pytest.mark.scenario, pytest.mark.long, pytest.mark.timeout(900)]

AT_ONCE = 60  # processes
HANGS_AT_ONCE = 16  # of them: each is sampled and captured
TIMEOUT, WELL = 15.0, 35.0  # seconds: of the agent, and for which each job is well
LATE = 25.0  # seconds after the timeout: sixteen are captured at once
PRINTS = "import os\nwhile piece := os.read(0, 4096): os.write(1, piece)"
WORKS = Path(__file__).parents[2] / "jobs" / "prints.py"
Answer = tuple[int | None, float | None]
Case = tuple[str, str, Answer]  # name, text, step and loss at its end


def cases() -> list[Case]:
    """Trainings of every stack, and evaluations and other threads after twelve steps of one."""
    posted = [(name, counted(line), (step, loss)) for name, (line, (step, loss, _)) in POSTED.items()]  # fmt: skip
    looked_up = [_looked_up(one) for one in (*LOOKED_UP, *FROM_SOURCES) if not one.keys() & {"may_step", "may_loss"}]  # fmt: skip
    return [*posted, *(_case(one) for one in COLLECTED), *looked_up]


def _case(one: dict[str, Any]) -> Case:
    name = f"{one['kind']}: {one['name']}"
    if one["kind"] == "training":
        return name, counted(one["text"]), (one["step"], one["loss"])
    if one["kind"] == "preparation":
        return name, counted(one["text"]), (None, None)
    return name, f"{BEFORE}\n{counted(one['text'], 1, 30)}", (12, 8.88)


def _looked_up(one: dict[str, Any]) -> Case:
    text = "\n".join(part for part in (one["before"], counted(one["text"]), one["after"]) if part)
    return f"looked up: {one['name']}", text, (one["step"], one["loss"])


CASES = cases()
PARTS = [CASES[at : at + AT_ONCE] for at in range(0, len(CASES), AT_ONCE)]


class Printer:
    """A process that its environment calls a rank; it prints what it is given."""

    def __init__(self, folder: Path, case: Case) -> None:
        self.name, text, self.answer = case
        self.log = folder / "job.log"
        place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}  # fmt: skip
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-S", "-c", PRINTS], stdin=subprocess.PIPE, stdout=log, stderr=log, env=clean_environment(folder) | place,
            )  # fmt: skip
        self.left = f"{text}\n".encode()
        self.printed = 0

    def print_some(self, dice: random.Random) -> None:
        """Give it the next bytes, cut anywhere."""
        assert self.process.stdin is not None
        size = dice.randint(1, max(90, len(self.left) // 8))
        piece, self.left = self.left[:size], self.left[size:]
        os.write(self.process.stdin.fileno(), piece)
        self.printed += len(piece)


@contextmanager
def printers(folder: Path, some: Sequence[Case]) -> Iterator[list[Printer]]:
    """Start them, and end them."""
    found: list[Printer] = []
    try:
        for number, case in enumerate(some):
            own = folder / f"job-{number}"
            own.mkdir()
            found.append(Printer(own, case))
        yield found
    finally:
        for one in found:
            one.process.kill()
        for one in found:
            one.process.communicate()


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    folder = tmp_path_factory.mktemp("agent")
    with ExitStack() as stack:
        yield stack.enter_context(watching(folder, settings(folder, stall="{interval: 1s}")))


def runs_of(agent: RunningAgent) -> dict[int, RunState]:
    """By the pid of its only rank."""
    snapshot = agent.snapshot()
    return {pid: run for run in snapshot.runs for pid in run.ranks.values()} if snapshot else {}


def read(agent: RunningAgent, made: list[Printer]) -> bool:
    """Whether the agent follows each log, and has parsed all that was printed into it."""
    runs = runs_of(agent)
    return all(
        (run := runs.get(one.process.pid)) is not None and run.log_counts.bytes >= one.printed
        for one in made
    )


def answer(run: RunState) -> Answer:
    return run.step, None if run.loss is None else round(run.loss, 6)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part[0][0]} and {len(part) - 1} more")
def test_its_step_and_its_loss_stand_in_the_status(agent: RunningAgent, part: list[Case], tmp_path: Path) -> None:  # fmt: skip
    dice = random.Random(json.dumps([name for name, _, _ in part]))
    with printers(tmp_path, part) as made:
        wait_for("all runs", lambda: read(agent, made), 120)
        while left := [one for one in made if one.left]:
            for one in dice.sample(left, max(1, len(left) // 2)):
                one.print_some(dice)
            time.sleep(0.3)
        wait_for("all logs", lambda: read(agent, made), 120)
        runs = runs_of(agent)
        found = {one.name: answer(runs[one.process.pid]) for one in made}
    wanted = {one.name: one.answer for one in made}
    assert {name: (found[name], wanted[name]) for name in wanted if found[name] != wanted[name]} == {}  # fmt: skip


# --- well, and hung --------------------------------------------------------------------------------

PHASES = [(one["kind"], one["name"], one["text"]) for one in COLLECTED if one["kind"] != "training"]
HANG_PARTS = [PHASES[at : at + HANGS_AT_ONCE] for at in range(0, len(PHASES), HANGS_AT_ONCE)]


@contextmanager
def working(folder: Path, kind: str, text: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A rank that trains, or prepares, and prints; it hangs where a file `hang` comes into its folder."""
    folder.mkdir()
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}  # fmt: skip
    with (folder / "job.log").open("ab") as log:
        one = subprocess.Popen([sys.executable, "-S", str(WORKS), kind, text], stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=folder, env=clean_environment(folder) | place)  # fmt: skip
    try:
        yield one
    finally:
        one.kill()
        one.communicate()


def reported(agent: RunningAgent, pids: dict[str, int]) -> set[str]:
    """Names of those of which there is a report."""
    found = {rank["pid"] for report in agent.reports() for rank in report["ranks"]}
    return {name for name, pid in pids.items() if pid in found}


@pytest.mark.parametrize(
    "part", HANG_PARTS, ids=lambda part: f"{part[0][1]} and {len(part) - 1} more"
)
def test_it_raises_nothing_while_the_job_is_well_and_keeps_no_hang_alive(part: list[tuple[str, str, str]], tmp_path: Path) -> None:  # fmt: skip
    with ExitStack() as stack:
        own = tmp_path / "agent"
        own.mkdir()
        agent = stack.enter_context(watching(own, settings(own)))
        jobs = {
            f"{kind}: {name}": stack.enter_context(working(tmp_path / f"job-{number}", kind, text))
            for number, (kind, name, text) in enumerate(part)
        }
        pids = {name: one.pid for name, one in jobs.items()}
        wait_for("all runs", lambda: set(runs_of(agent)) >= set(pids.values()), 120)
        time.sleep(WELL)
        assert reported(agent, pids) == set()
        for number in range(len(part)):
            (tmp_path / f"job-{number}" / "hang").touch()
        end = time.monotonic() + (TIMEOUT + LATE) * PATIENCE
        while reported(agent, pids) != set(pids) and time.monotonic() < end:
            time.sleep(1.0)
        assert set(pids) - reported(agent, pids) == set()
