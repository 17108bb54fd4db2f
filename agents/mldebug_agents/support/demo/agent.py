"""The agent of `mldebug demo`: the ordinary agent, without any knowledge of the demo's job."""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mldebug.core.errors import ToolError
from mldebug.core.report_model import Report
from mldebug.incidents.report_store import ReportStore
from mldebug.stall.sentences import stage_words
from mldebug.status.snapshot import RunState
from mldebug_agents.support.demo.job import job_environment
from mldebug_agents.system.spawn import Completed, ProgramStarter
from mldebug_agents.web.client import ask_agent

LIFETIME = 600.0  # seconds after which the agent is killed whatever happens
START_TIMEOUT, REPORT_TIMEOUT, CLOSING = 60.0, 120.0, 5.0
LOOK = 0.2
TIMEOUTS = "{timeout: 11s, busy_timeout: 14s, init_timeout: 2m, interval: 1s}"  # a demo is short


def stage_line(stage: str, sentence: str) -> Table:
    """A line of the demo, `    stalled: no step for 11 s …`; a long sentence is wrapped below its start."""
    line = Table.grid()
    line.add_row(f"  {stage_words(stage):>9}: ", Text(sentence))
    return line


class DemoAgent:
    """A context manager that runs an agent with its own state dir, no port, and short timeouts. Raises ToolError where it does
    not start.
    """

    def __init__(self, starter: ProgramStarter, folder: Path) -> None:
        self.state_dir = folder / "agent"
        self.completed: Completed | None = None
        self._config = folder / "mldebug.yaml"
        self._starter = starter
        self._thread = threading.Thread(target=self._run, name="demo-agent", daemon=True)
        self._pid = 0

    def __enter__(self) -> Self:
        where = f"agent: {{state_dir: {self.state_dir}, listen: ''}}\n"
        self._config.write_text(f"{where}stall: {TIMEOUTS}\n", encoding="utf-8")
        self._thread.start()
        deadline = time.monotonic() + START_TIMEOUT
        while not self._pid:
            self._check(deadline, "the agent did not start in time")
            snapshot = ask_agent(self.state_dir)
            self._pid = snapshot.pid if snapshot else 0
            time.sleep(LOOK)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pid and self._thread.is_alive():
            os.kill(self._pid, signal.SIGTERM)
            self._thread.join(CLOSING)

    def run_of(self, pid: int) -> RunState | None:
        """Return the agent's state of the run to which this process belongs; None where it has none."""
        snapshot = ask_agent(self.state_dir)
        return (
            next((run for run in snapshot.runs if pid in run.ranks.values()), None)
            if snapshot
            else None
        )

    def follow(self, pid: int, console: Console) -> Report:
        """Print each stage of a run until its report is written, and return the report. ToolError where the agent ends or
        writes none in time.
        """
        deadline = time.monotonic() + REPORT_TIMEOUT
        stage = ""
        while (report := self._report_on(pid)) is None:
            self._check(deadline, "the agent wrote no report")
            run = self.run_of(pid)
            if run is not None and run.stage != stage:
                stage = run.stage
                console.print(stage_line(run.stage, run.sentence))
            time.sleep(LOOK)
        return report

    def _report_on(self, pid: int) -> Report | None:
        """The agent sees every job of this node; only ours is of interest."""
        archive = ReportStore(self.state_dir)
        reports = (archive.load(entry.id) for entry in archive.list() if not entry.broken)
        return next((one for one in reports if any(rank.pid == pid for rank in one.ranks)), None)

    def html(self, report: Report) -> str:
        """The HTML page of this report."""
        return (ReportStore(self.state_dir).path(report.id) / "report.html").read_text(
            encoding="utf-8"
        )

    def _check(self, deadline: float, sentence: str) -> None:
        if self.completed is not None:
            last = self.completed.stderr.decode(errors="replace").strip().splitlines()
            reason = last[-1] if last else f"exit {self.completed.returncode}"
            raise ToolError(
                f"the demo's agent ended: {reason}", "type `mldebug agent` here: does it start?"
            )
        if time.monotonic() > deadline:
            raise ToolError(sentence, "is this machine very busy? try again")

    def _run(self) -> None:
        self.completed = self._starter.run(
            [sys.executable, "-m", "mldebug", "agent", "--config", str(self._config)],
            timeout=LIFETIME,
            env=job_environment(os.environ),
        )
