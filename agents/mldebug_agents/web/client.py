"""Asks the agent of this node over the Unix socket: for its status, for records of runs and how their figures went. Tells apart: no agent, no answer, not ready, no permission."""

import http.client
import threading
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec

from mldebug.config.schema import SYSTEM_STATE_DIR
from mldebug.core.errors import ToolError, UsageError
from mldebug.core.redact import clean
from mldebug.jobs.run_records.model import RunFigures, RunRecord, RunRecordList, RunSummary
from mldebug.status.snapshot import FoundJobs, Snapshot
from mldebug_agents.web.listeners import SOCKET
from mldebug_agents.web.unix_http import TIMEOUT, UnixConnection

MAX_BYTES = 32 << 20
FIRST = 5.0  # seconds: the first client of an agent waits until what answers it is imported (0.15 s of CPU)
RECORDS, HISTORY, JOBS = "/api/v1/records", "/api/v1/history", "/api/v1/jobs"
T = TypeVar("T")


class AgentAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of asking an agent for its status. `trouble`: a sentence; "" where it answered or no agent runs."""

    outcome: Literal["answered", "none", "denied", "silent", "starting"]
    snapshot: Snapshot | None = None
    trouble: str = ""


def ask_agent(state_dir: Path) -> Snapshot | None:
    """The agent's last snapshot; None where no agent runs here, it does not answer in time, or this user may not ask it."""
    return inquire(state_dir).snapshot


def inquire(state_dir: Path) -> AgentAnswer:
    """Ask the agent for its status, and return within a deadline even if the state dir lies on a mount that hangs."""
    answers: list[AgentAnswer] = []
    thread = threading.Thread(
        target=lambda: answers.append(_inquire(state_dir)), name="mldebug-ask", daemon=True
    )
    thread.start()
    thread.join(TIMEOUT + FIRST)
    return answers[0] if answers else _silent(state_dir)


def _inquire(state_dir: Path) -> AgentAnswer:
    link = UnixConnection(state_dir, timeout=FIRST)
    try:
        link.request("GET", "/api/v1/status")
        answer = link.getresponse()
        body = answer.read(MAX_BYTES)
        if answer.status == 503:
            trouble = "an agent runs here and has not looked yet: ask again in a moment"
            return AgentAnswer(outcome="starting", trouble=trouble)
        snapshot = msgspec.json.decode(body, type=Snapshot)
        return AgentAnswer(outcome="answered", snapshot=snapshot)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        return AgentAnswer(outcome="none")
    except PermissionError:
        trouble = (
            f"an agent may run here, but this user may not ask it: {state_dir / SOCKET} is closed"
        )
        return AgentAnswer(outcome="denied", trouble=trouble)
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        return _silent(state_dir)
    finally:
        link.close()


def _silent(state_dir: Path) -> AgentAnswer:
    trouble = f"an agent does not answer at {state_dir / SOCKET}: see its log"
    return AgentAnswer(outcome="silent", trouble=trouble)


class NearestAgent(NamedTuple):
    """The state dir of the agent that was asked, and its answer."""

    state_dir: Path
    answer: AgentAnswer


def ask_nearest(state_dir: Path, *, here_only: bool = False) -> NearestAgent:
    """Ask the agent of this state dir or, where none runs there, the node's service. `here_only`: never the service."""
    answer = inquire(state_dir)
    if answer.outcome == "none" and not here_only and state_dir != SYSTEM_STATE_DIR:
        return NearestAgent(SYSTEM_STATE_DIR, inquire(SYSTEM_STATE_DIR))
    return NearestAgent(state_dir, answer)


def found_jobs(state_dir: Path) -> FoundJobs | None:
    """The jobs that the agent's last search of this node has found; None where it does not say, or has not searched yet."""
    try:
        found = _ask(state_dir, JOBS, "", FoundJobs)
    except (UsageError, ToolError):  # an older agent
        return None
    return found if found.at else None


def recorded_runs(state_dir: Path) -> tuple[RunSummary, ...]:
    """The recorded runs that this user may see, the newest first. Raises ToolError where the agent does not answer."""
    return _ask(state_dir, RECORDS, "", RunRecordList).runs


def record_of_run(state_dir: Path, run: str) -> RunRecord:
    """The record of one run, by its id. Raises UsageError where there is none, ToolError where the agent does not answer."""
    return _ask(state_dir, RECORDS, run, RunRecord)


def figures_of_run(state_dir: Path, run: str) -> RunFigures | None:
    """The training figures of one run; None where no history is kept of it. Raises ToolError where the agent does not answer."""
    try:
        return _ask(state_dir, HISTORY, run, RunFigures)
    except UsageError:
        return None


def _ask(state_dir: Path, route: str, run: str, kind: type[T]) -> T:
    link = UnixConnection(state_dir)
    try:
        link.request("GET", f"{route}?{urlencode({'run': run})}" if run else route)
        answer = link.getresponse()
        body = answer.read(MAX_BYTES)
        if answer.status == 404:
            raise UsageError(f"nothing is recorded of run {clean(run, 60)!r}", "mldebug why")
        return msgspec.json.decode(body, type=kind)
    except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
        raise ToolError(f"the agent did not answer: {error}", "mldebug status") from None
    finally:
        link.close()
