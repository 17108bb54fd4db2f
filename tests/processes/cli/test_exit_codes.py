"""Exit codes on a node without jobs, agent and GPU: 1 is only for a stall or a failed check, so a script that pages at 1 pages nobody."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mldebug.cli.main import GROUPS

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(240)]

# Verbs by what they find: nothing to look at; nothing of what was named, or nothing named; nobody and no tool that could tell
NOTHING = ("status", "status --json", "dump", "slow", "reports", "reports list", "usage", "doctor", "down", "up --status", "top --once", "preflight", "profile", "memory")  # fmt: skip
WRONG = (
    *("dump nosuch", "checkpoints", "checkpoints .", "diagnose", "diagnose .", "flight-recorder .", "share nosuch", "reports show nosuch"),
    *("logs try nosuch", "check-config nosuch", "probe", "switch", "notify", "trace", "completion", "run", "nosuch"),
)  # fmt: skip
MISSING = (
    "goodput",
    "gpus",
    "web",
    "why",
    "status --cluster",
    "gpus list --cluster",
    "top --once --cluster",
    "lemons",
    "fleet nodes",
    "retry-advice nosuch",
)
ELSEWHERE = {
    "agent": "runs until it is ended",
    "demo": "starts a job",
    "mcp": "serves whoever speaks to it",
    "hub": "serves until a signal comes",
    "support-bundle": "writes an archive",
}


def test_every_verb_is_tried_or_left_out_for_a_reason() -> None:
    tried = {words.split()[0] for words in (*NOTHING, *WRONG, *MISSING)}
    assert tried.isdisjoint(ELSEWHERE)
    assert {verb for group in GROUPS.values() for verb in group} <= tried | ELSEWHERE.keys()


def test_an_empty_node_is_no_stall_for_any_verb(tmp_path: Path) -> None:
    """Where there is an agent, a GPU or a job after all, the sentences would be others: CI runs this in a world of its own."""
    expected = dict.fromkeys(NOTHING, 0) | dict.fromkeys(WRONG, 2) | dict.fromkeys(MISSING, 3)
    found, silent = {}, []
    for words in expected:
        done = subprocess.run(
            [sys.executable, "-m", "mldebug", *words.split()],
            env={**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)},
            cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        found[words] = done.returncode
        silent += [words] if not (done.stdout.strip() or done.stderr.strip()) else []
        assert "Traceback" not in done.stderr
    assert found == expected
    assert silent == []
