"""Everybody whom the agent asks or tells is sick at once: it says so, tells whoever listens, and still names the culprit."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mldebug.status.snapshot import Snapshot
from processes.alerts.test_notices import QUICK, Arrived, sink
from processes.harness import (
    MLDEBUG,
    PACE,
    Plan,
    User,
    clean_environment,
    folder_for,
    running,
    wait_for,
)
from processes.incidents.watching import RunningAgent, settings, watching
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
need_torch("the scenarios train with PyTorch")
FRESH = 10.0  # seconds


@contextlib.contextmanager
def mute() -> Iterator[int]:
    """The port of a mail server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]


def program(folder: Path, name: str, words: str) -> Path:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{words}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return file


def others(folder: Path, url: str, port: int) -> str:
    """A squeue that hangs, one that prints without end, a mail server that is mute, and a webhook that works."""
    hangs = program(folder, "squeue-hangs", "exec sleep 30")
    floods = program(folder, "squeue-floods", "exec yes flood")
    common = "kind: slurm, only_on: ['*'], interval: 5s"
    return (
        "schedulers:\n"
        f"  hangs: {{{common}, timeout: 4s, squeue: {hangs}}}\n"
        f"  floods: {{{common}, timeout: 60s, squeue: {floods}}}\n"
        "channels:\n"
        f"  ops: {{kind: webhook, url: '{url}/hook'}}\n"
        f"  mail: {{kind: email, server: 127.0.0.1, port: {port}, security: none, timeout: 2s,"
        " sender: m@x.org, to: [ops@x.org]}\n"
    )


def looked(agent: RunningAgent) -> Snapshot:
    found = agent.snapshot()
    assert found is not None
    return found


def troubles(agent: RunningAgent) -> dict[str, str]:
    """By scheduler, and of the mail."""
    now = looked(agent)
    by_name = {
        one.name: one.trouble for some in (now.schedulers, now.events.channels) for one in some
    }
    return {name: words for name, words in by_name.items() if words}


def status(agent: RunningAgent) -> str:
    done = subprocess.run(
        [*MLDEBUG, "status", "--config", str(agent.config)],
        check=False, capture_output=True, text=True, timeout=60, env=clean_environment(agent.folder),
    )  # fmt: skip
    return done.stdout


def test_a_stall_is_told_while_everybody_else_is_sick(user: User) -> None:
    with (
        sink() as (url, posts),
        mute() as port,
        folder_for(user) as folder,
        watching(folder, settings(folder, stall=QUICK) + others(folder, url, port), user) as agent,
        running(Plan(struck=(), options=PACE, user=user)) as job,
    ):
        wait_for(
            "both schedulers' troubles", lambda: {"hangs", "floods"} <= set(troubles(agent)), 60
        )
        job.wait_for_step(60)
        wait_for("the agent sees steps", lambda: (run := agent.run_of(job)) and run.step, 60)
        os.kill(job.ranks[2], signal.SIGSTOP)
        try:
            wait_for("the webhook", lambda: Arrived(posts, []).hooks, 60)
            wait_for("the mail's trouble", lambda: "mail" in troubles(agent), 60)
        finally:
            os.kill(job.ranks[2], signal.SIGCONT)
        result, text, age = troubles(agent), status(agent), time.time() - looked(agent).at

    assert Arrived(posts, []).hooks[0]["sentence"].startswith("Rank 2 is stopped"), posts
    assert result["hangs"].endswith("had not answered after 4 s")
    assert result["floods"].endswith("printed more than 16 MiB")
    assert "gave no answer" in result["mail"]
    assert all(words.rpartition(": ")[2] in text for words in result.values()), text
    assert age < FRESH
