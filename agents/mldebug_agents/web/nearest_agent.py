"""Which agent a command asks: this user's own, or else the service of this node."""

from pathlib import Path
from typing import NamedTuple

from mldebug.config.schema import SYSTEM_STATE_DIR
from mldebug_agents.web.client import Inquiry, inquire


class Nearest(NamedTuple):
    """The agent's state dir, and what came of asking it."""

    state_dir: Path
    asked: Inquiry


def ask_nearest(state_dir: Path, *, here_only: bool = False) -> Nearest:
    """Ask in that state dir, and in the service's where nobody runs there; `here_only`: a config file said which one."""
    asked = inquire(state_dir)
    if asked.outcome == "none" and not here_only and state_dir != SYSTEM_STATE_DIR:
        return Nearest(SYSTEM_STATE_DIR, inquire(SYSTEM_STATE_DIR))
    return Nearest(state_dir, asked)
