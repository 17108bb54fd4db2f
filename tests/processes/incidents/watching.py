"""A real `mldebug agent` for the tests, asked over its socket and ended by SIGTERM.

It watches the jobs of whoever runs the tests as that user; jobs of somebody else with the rights of the shipped unit: as
a user of its own with three capabilities.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from mldebug.status.snapshot import RunState, Snapshot
from mldebug_agents.web.client import ask_agent
from processes.harness import MLDEBUG, RunningJob, User, clean_environment, wait_for
from shared.system.last_words import keep
from system.lending import UNIT, VISITOR, Column, lent

Report = dict[str, Any]


@dataclass
class RunningAgent:
    """A started agent: its process, its state dir, what it logged."""

    folder: Path
    config: Path
    user: User
    process: "subprocess.Popen[bytes]"
    _parsed: dict[Path, tuple[tuple[int, int], Report]] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        """Its state dir."""
        return self.folder / "state"

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return (self.folder / "agent.log").read_text(errors="replace")

    def snapshot(self) -> Snapshot | None:
        """What it knows now."""
        return ask_agent(self.state)

    def run_of(self, job: RunningJob) -> RunState | None:
        """What it knows of one job."""
        snap = self.snapshot()
        mine = set(job.ranks.values())
        runs = snap.runs if snap else ()
        return next((run for run in runs if mine & set(run.ranks.values())), None)

    def reports(self, job: RunningJob | None = None) -> list[Report]:
        """Reports on its disk, oldest first; of one job, where it is given."""
        files = sorted(self.state.glob("reports/[!.]*/report.json"))
        found = [self._report(file) for file in files]
        return [one for one in found if job is None or _is_of(one, job)]

    def _report(self, file: Path) -> Report:
        """Who waits for a report looks often, and at all of them: each is parsed once, and again when it is written anew."""
        stat = file.stat()
        written = stat.st_ino, stat.st_mtime_ns
        before = self._parsed.get(file)
        if before is None or before[0] != written:
            before = self._parsed[file] = (written, json.loads(file.read_text()))
        return before[1]


def _is_of(report: Report, job: RunningJob) -> bool:
    """By its pids, and not before it began: on a busy machine pids come again within minutes."""
    mine = {rank["pid"] for rank in report["ranks"]} & set(job.ranks.values())
    return bool(mine) and datetime.fromisoformat(report["detected_at"]).timestamp() >= job.began


def settings(folder: Path, *, stall: str = "{timeout: 15s, interval: 1s}", listen: str = "") -> str:
    """A configuration with a state dir of its own, and no port unless asked."""
    agent = f"state_dir: {folder / 'state'}, listen: '{listen}', public_names: true"
    return f"agent: {{{agent}}}\nstall: {stall}\n"


def start(
    folder: Path,
    config: str,
    user: User = User(),  # noqa: B008 - a value
    more: Mapping[str, str] = {},
    program: Sequence[str] = MLDEBUG,
) -> RunningAgent:
    """Start an agent for the jobs of this user, and wait until it has looked once; `more` environment variables.

    A `program` other than mldebug itself runs as that user, without a right of its own.
    """
    file = folder / "mldebug.yaml"
    file.write_text(config)
    rights = _rights(user, folder) if program is MLDEBUG else []
    its_user = {} if program is MLDEBUG else user.popen()
    command = [*rights, *program, "agent", "--config", str(file)]
    with (folder / "agent.log").open("ab") as log:
        process = subprocess.Popen(
            command, stderr=log, stdout=log, cwd=folder, env=clean_environment(folder) | more, **its_user
        )  # fmt: skip
    agent = RunningAgent(folder, file, user, process)
    try:
        wait_for("the agent's first look", lambda: _answers(agent), 60)
    except BaseException:
        process.kill()
        raise
    return agent


def _rights(user: User, folder: Path) -> list[str]:
    if user.name is None:
        return []
    state = folder / "state"
    state.mkdir(exist_ok=True)
    os.chown(state, VISITOR, VISITOR)
    return lent(Column(VISITOR, UNIT))


def _answers(agent: RunningAgent) -> bool:
    assert agent.process.poll() is None, f"the agent ended: {agent.log}"
    return agent.snapshot() is not None


def stop(agent: RunningAgent) -> None:
    """SIGTERM; it has to end by itself, with 0."""
    if agent.process.poll() is None:
        agent.process.terminate()
    try:
        code = agent.process.wait(15)
    except subprocess.TimeoutExpired:
        agent.process.kill()
        agent.process.wait(15)
        raise
    finally:
        keep(f"the agent in {agent.folder.name}", agent.log)
    assert code == 0, f"exit {code}\n{agent.log}"


@contextmanager
def watching(
    folder: Path,
    config: str = "",
    user: User = User(),  # noqa: B008 - a value
    more: Mapping[str, str] = {},
    program: Sequence[str] = MLDEBUG,
) -> Iterator[RunningAgent]:
    """An agent for as long as the context lasts."""
    agent = start(folder, config or settings(folder), user, more, program)
    try:
        yield agent
    finally:
        stop(agent)
