"""The commands that keys of `mldebug top` start: each is `mldebug VERB …` as a person would type it, and its output is shown."""

import os
import shlex
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from mldebug.core.plugins import names
from mldebug.core.redact import clean
from mldebug.status.merged_runs import RunOnNodes
from mldebug.status.top.keys import Action, Pane
from mldebug_agents.system.spawn import ProgramStarter

TIMEOUT = 300.0  # seconds: a capture of many nodes, a few steps of a profile
MAX_OUTPUT = 1 << 20
MAX_LINES = 2000
COLUMNS = 78


class KeyCommands:
    """Runs one command at a time in a thread of its own. `elsewhere`: the options that name other nodes, "" for this one alone."""

    def __init__(
        self,
        starter: ProgramStarter,
        config: Path | None,
        elsewhere: Sequence[str],
        tell: Callable[[], None],
    ) -> None:
        self._starter, self._tell = starter, tell
        self._config = ("--config", str(config)) if config else ()
        self._elsewhere = tuple(elsewhere)
        self._pane: Pane | None = None
        self.busy = ""  # the command that runs now

    def words(self, action: Action, run: RunOnNodes) -> tuple[str, ...]:
        """The words behind `mldebug` for a key and the chosen run; none where this mldebug has no such command."""
        if action == "profile" and self._by_agents:
            words: tuple[str, ...] = ("profile", "--job", run.first.name, "--cluster")
        elif action == "dump" and self._elsewhere:
            ssh = ("--ssh",) if "--hosts" in self._elsewhere else ()
            words = ("dump", "--job", run.first.name, *self._elsewhere, *ssh)
        else:
            words = _words_on_its_node(action, run)
        return (*words, *self._config) if words and words[0] in names("commands") else ()

    def only_there(self, action: Action, run: RunOnNodes) -> str:
        """Where and what to type, for a key that works on one node alone while others are looked at; "" where the key works here."""
        if not self._elsewhere or action == "dump" or (action == "profile" and self._by_agents):
            return ""
        typed = shlex.join(("mldebug", *_words_on_its_node(action, run, by_name=self._by_agents)))
        return f"on {clean(run.worst, 60)}: {clean(typed, 200)}"

    @property
    def _by_agents(self) -> bool:
        """Whether other nodes are looked at by their agents, whose ids of runs are those of no node."""
        return "--cluster" in self._elsewhere

    def start(self, words: Sequence[str]) -> None:
        """Run `mldebug WORDS…`; `taken` gives the output once it has ended."""
        self.busy = f"mldebug {' '.join(words[:3])}"
        threading.Thread(target=self._run, args=(tuple(words),), name="mldebug-top-command", daemon=True).start()  # fmt: skip

    def taken(self) -> Pane | None:
        """Return the output of the command that has ended since the last call, and forget it; None where none has."""
        pane, self._pane = self._pane, None
        return pane

    def _run(self, words: tuple[str, ...]) -> None:
        environ = os.environ | {"COLUMNS": str(COLUMNS), "NO_COLOR": "1", "TERM": "dumb"}
        argv = (sys.executable, "-m", "mldebug", *words)
        done = self._starter.run(argv, timeout=TIMEOUT, max_output=MAX_OUTPUT, env=environ)
        text = (done.stdout + done.stderr).decode(errors="replace")
        lines = [clean(line, 1000) for line in text.splitlines()][:MAX_LINES]
        if done.error or done.timed_out:
            lines.append(done.error or f"it was not done in {TIMEOUT:g} s, and was ended")
        self._pane = Pane(f"mldebug {' '.join(words)}", tuple(lines) or ("(no output)",))
        self.busy = ""
        self._tell()


def _words_on_its_node(
    action: Action, run: RunOnNodes, *, by_name: bool = False
) -> tuple[str, ...]:
    job = run.first.name if by_name else run.first.id
    if action == "report":
        which = (run.first.incident,) if run.first.incident else ("--job", job)
        return ("reports", "show", *which)
    return (action, "--job", job)
