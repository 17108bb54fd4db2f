"""A real stall gets its chain of actions: what is allowed runs once, also where the agent is killed in the middle."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from processes.harness import PACE, Plan, User, folder_for, running, wait_for
from processes.incidents.watching import settings, start, watching
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
need_torch("the scenarios train with PyTorch")

PAGE = """#!/bin/sh
cat > "$0.facts"
echo "$MLDEBUG_EVENT_KIND" >> "$0.count"
while ! test -e "$0.go"; do sleep 0.1; done
"""
ACTIONS = """
actions:
  steps:
    save: {{kind: capture}}
    page: {{kind: command, argv: [{page}]}}
    stop: {{kind: signal}}
  chains: {{stall: [save, page, stop]}}
  allow: [command]
"""


def decisions(state: Path) -> list[Any]:
    """The audit log."""
    file = state / "actions.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_stall_has_its_chain_and_kill_9_doubles_nothing() -> None:
    user = User()
    with folder_for(user) as folder, running(Plan(struck=(), options=PACE, user=user)) as job:
        page = folder / "page"
        page.write_text(PAGE)
        page.chmod(0o755)
        config = settings(folder, stall="{timeout: 6s, interval: 1s}") + ACTIONS.format(page=page)
        job.wait_for_step(60)
        first = start(folder, config, user)
        try:
            wait_for(
                "the agent sees steps", lambda: (result := first.run_of(job)) and result.step, 60
            )
            os.kill(job.ranks[2], signal.SIGSTOP)
            count = folder / "page.count"
            wait_for("the program runs", lambda: count.exists() and count.read_text(), 90)
        finally:
            first.process.kill()  # in the middle of it
            first.process.wait(30)
        page.with_name("page.go").touch()
        try:
            with watching(folder, config, user) as agent:
                wait_for("all is decided", lambda: len(decisions(agent.state)) >= 3, 60)
                lines, ran = decisions(agent.state), count.read_text().split()
                reports = [one["trigger"] for one in agent.reports(job)]
                snap = agent.snapshot()
                facts = json.loads(page.with_name("page.facts").read_text())
        finally:
            os.kill(job.ranks[2], signal.SIGCONT)

    stalls = [one for one in lines if one["event_kind"] == "stall"]
    assert [(one["action"], one["outcome"]) for one in stalls] == [
        ("save", "ran"),
        ("page", "interrupted"),
        ("stop", "refused"),
    ]
    assert ran == ["stall"]
    assert "alert" in reports
    assert "rank 2" in facts["sentence"].lower()
    assert snap is not None
    assert {one.name: one.last for one in snap.events.actions}["page"] == "interrupted"
