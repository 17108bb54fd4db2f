"""Captures harm nothing and never hang: hundreds of them against processes in every delicate state.

After each capture every target must be in the state it was in, untraced, without a pending signal; at the end all are
released, and each must come to its own end: a stop signal that a killed dump left behind would freeze it there.
MLDEBUG_SAFETY_ROUNDS sets the number of captures (30; `.ci/run` has 50, `make nightly` 300).
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from processes.harness import (
    JOBS,
    MARK,
    User,
    clean_environment,
    folder_for,
    fuse_mount,
    marked,
    send_signal,
    state_of,
    wait_for,
    wchan_of,
)

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("MLDEBUG_SAFETY_ROUNDS", "30"))
DEADLINE = 60.0  # seconds; a capture that takes longer hangs
NATIVE = ("never", "auto", "always")
KINDS = ("spawn", "stopped", "read", "forking", "exiting", "healthy")
MOVING = ("forking", "exiting", "healthy")
STILL = {"spawn": "D", "stopped": "T", "read": "DS"}


class Targets:
    """Six ranks of one job, and a seventh that ends in the middle of every capture."""

    def __init__(self, folder: Path, user: User, shard: Path, server: int) -> None:
        self.folder, self.user, self.shard, self.server = folder, user, shard, server
        self.mark = uuid.uuid4().hex
        self.processes = {kind: self.start(rank, kind) for rank, kind in enumerate(KINDS)}

    def start(self, rank: int, kind: str) -> subprocess.Popen[bytes]:
        """Start one target as a rank of the job."""
        argv = [sys.executable, str(JOBS / "target.py"), kind, str(self.folder), str(self.shard)]
        return self.spawn(rank, argv)

    def brief(self) -> subprocess.Popen[bytes]:
        """A rank that lives about as long as a capture takes."""
        return self.spawn(len(KINDS), [sys.executable, "-c", "import time; time.sleep(0.3)"])

    def spawn(self, rank: int, argv: list[str]) -> subprocess.Popen[bytes]:
        """Start a program with the environment of a rank."""
        size = str(len(KINDS) + 1)
        job = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
        sizes = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": "29999"}
        environment = clean_environment(self.folder) | job | sizes | {MARK: self.mark}
        return subprocess.Popen(argv, env=environment, cwd=self.folder, **self.user.popen())

    def settle(self) -> None:
        """Wait until every target is where it should be."""
        wait_for("the file to be opened", (self.folder / "opened").exists, 30)
        os.kill(self.server, signal.SIGSTOP)
        wait_for("a stopped file system", lambda: state_of(self.server) == "T", 30)
        (self.folder / "hang").touch()
        for kind in KINDS:
            wait_for(f"{kind} to be ready", (self.folder / f"ready.{kind}").exists, 30)
        wait_for("a blocked read", lambda: "wait" in wchan_of(self.processes["read"].pid), 30)
        for kind in MOVING:
            wait_for(f"{kind} to work", (self.folder / f"work.{kind}").exists, 30)
        for kind in ("spawn", "stopped"):
            pid = self.processes[kind].pid
            wait_for(f"{kind}", lambda k=kind, p=pid: state_of(p) in STILL[k], 30)

    def work(self, kind: str) -> int:
        """How much a moving target has done."""
        return int((self.folder / f"work.{kind}").read_text())

    def harmed(self) -> list[str]:
        """Say of each target what is not as it should be."""
        found = []
        for kind, process in self.processes.items():
            status = Path(f"/proc/{process.pid}/status").read_text()
            facts = dict(re.findall(r"^(\w+):\t(.*)$", status, re.MULTILINE))
            pending = int(facts["SigPnd"], 16) | int(facts["ShdPnd"], 16)
            pending &= ~(1 << signal.SIGCHLD - 1)  # its own children end all the time
            wrong = [
                facts["State"] if facts["State"][0] not in STILL.get(kind, "RSD") else "",
                f"traced by {facts['TracerPid']}" if facts["TracerPid"] != "0" else "",
                f"pending signals {pending:#x}" if pending else "",
            ]
            found += [f"{kind}: {text}" for text in wrong if text]
        return found

    def release(self) -> None:
        """Let every target go on to its end."""
        (self.folder / "release").touch()
        os.kill(self.server, signal.SIGCONT)
        os.kill(self.processes["stopped"].pid, signal.SIGCONT)
        os.close(os.open(self.folder / "fifo", os.O_WRONLY))

    def end(self) -> None:
        """Kill what is left; a reader of a stopped file system dies only when its server goes on."""
        os.kill(self.server, signal.SIGCONT)
        for pid in marked(self.mark):
            for number in (signal.SIGCONT, signal.SIGKILL):
                send_signal(pid, number)
        for process in self.processes.values():
            process.wait(30)


class CaptureLoop:
    """The process that captures, as the user of the job."""

    def __init__(self, targets: Targets) -> None:
        script = Path(__file__).with_name("capture_loop.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(targets.processes["healthy"].pid)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=targets.folder,
            env=clean_environment(targets.folder), **targets.user.popen(),
        )  # fmt: skip

    def capture(self, native: str) -> dict[str, Any]:
        """Ask for one capture; fails when it does not come in time."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{native}\n".encode())
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE)
        assert ready, f"a capture ({native}) hung for {DEADLINE:.0f} s"
        line = self.process.stdout.readline()
        assert line, f"the capturing process ended: {self.process.wait(10)}"
        return dict(json.loads(line))

    def end(self) -> None:
        """Close it; it must leave by itself."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.stdout.close()


@contextmanager
def started(user: User) -> Iterator[tuple[Targets, CaptureLoop]]:
    """All targets in place, and the loop that captures them."""
    with folder_for(user) as folder, fuse_mount(folder, user) as (shard, server):
        targets = Targets(folder, user, shard, server)
        try:
            targets.settle()
            loop = CaptureLoop(targets)
            try:
                yield targets, loop
            finally:
                loop.end()
        finally:
            targets.end()


def test_captures_harm_nothing_and_never_hang(user: User) -> None:
    with started(user) as (targets, loop):
        slowest, count, held_still = 0.0, 0, 0
        for number in range(ROUNDS):
            before = {kind: targets.work(kind) for kind in MOVING}
            brief = targets.brief()
            native = NATIVE[number % len(NATIVE)]
            result = loop.capture(native)
            brief.wait(10)
            slowest = max(slowest, result["seconds"])
            wait_for(f"round {number}: {targets.harmed()}", lambda: not targets.harmed(), 5)
            count += bool(result["stacks"]["5"])
            held_still += bool(result["native"]["5"])
            for kind, work in before.items():
                wait_for(f"{kind} to go on", lambda k=kind, w=work: targets.work(k) > w, 20)
        assert count >= 0.95 * ROUNDS  # the healthy one: a look without stopping it may miss,
        assert (
            held_still >= ROUNDS // len(NATIVE) // 2
        )  # and one that stops it is not tried in state D
        targets.release()
        for kind, process in targets.processes.items():
            assert process.wait(30) == 0, kind
            assert (targets.folder / f"done.{kind}").exists(), kind
        print(f"{ROUNDS} captures, the slowest took {slowest:.2f} s")


def test_the_watcher_sees_harm(user: User) -> None:
    """The test above is worth something only if a stopped or traced target would fail it."""
    with started(user) as (targets, _):
        wait_for("everything in place", lambda: not targets.harmed(), 5)
        healthy = targets.processes["healthy"]
        os.kill(healthy.pid, signal.SIGSTOP)
        wait_for("harm", lambda: any("healthy: T" in text for text in targets.harmed()), 5)
        os.kill(healthy.pid, signal.SIGCONT)
        targets.processes["spawn"].send_signal(signal.SIGSTOP)
        wait_for("harm", lambda: any("spawn: pending" in text for text in targets.harmed()), 5)
