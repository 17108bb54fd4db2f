"""Asks the agent of this node for its status over the Unix socket. Tells apart: no agent, no answer, not ready, no permission."""

import http.client
import threading
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from mldebug.config.schema import SYSTEM_STATE_DIR
from mldebug.status.snapshot import Snapshot
from mldebug_agents.web.listeners import SOCKET
from mldebug_agents.web.unix_http import TIMEOUT, UnixConnection

MAX_BYTES = 32 << 20


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
    thread.join(2 * TIMEOUT)
    return answers[0] if answers else _silent(state_dir)


def _inquire(state_dir: Path) -> AgentAnswer:
    link = UnixConnection(state_dir)
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
