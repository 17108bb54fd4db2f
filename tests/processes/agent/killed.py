"""Writes incidents as the agent does and is killed -9 at random moments, again and again; prints what was found as JSON.

usage: killed.py STATE_DIR ROUNDS SEED. This process forks a life, lets it work for a random while, kills it (alone, or
with its children as a service manager does), looks at every report, and begins anew. The agent's own ledger, incidents
and state keeper do the work; only the job and its captures are made up.
"""

import contextlib
import json
import logging
import os
import random
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import jsonschema
import msgspec

from mldebug.core.errors import MldebugError
from mldebug.core.model import NodeCapture
from mldebug.incidents.report_store import ReportStore
from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import Stage, StallDecision
from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.state import server
from mldebug_agents.state.store import StateStore
from mldebug_agents.system.child.leftovers import children_of
from mldebug_agents.system.spawn import Spawner
from mldebug_agents.watch.runs import Run
from shared.incidents import samples
from shared.incidents.report_schema import report_schema

SHORT_ONES = 2  # per life: more would be pruned
WORDS = 3  # a life is killed after up to so many of its words, however slow the machine is...
LONGEST = 0.2  # ...and up to so many seconds more
CAPTURE = 0.05  # seconds that a capture of a short one takes at most
AT_THE_END = "at the end"
VALIDATOR = jsonschema.Draft202012Validator(report_schema())


class Life:
    """One agent, from its start to its kill."""

    def __init__(self, state_dir: Path, number: int, ack: int) -> None:
        self.number = number
        self.ack = ack
        self.chance = random.Random(number)
        self.ledger = StateStore(state_dir, Spawner({"state": server.serve}), retry=0.01)
        self.ledger.start(10)
        self.incidents = IncidentManager(self.ledger)

    def live(self) -> NoReturn:
        """The same stall all the time, and short ones beside it. It may be killed from its first word on."""
        os.write(self.ack, b"up\n")
        stall = self.run("stall")
        self.incidents.recall(stall)
        self.ledger.writer.release()
        self.incidents.close_orphans({"stall"})
        self.incidents.open(stall, blamed("stall/0/7"))
        self.wait()
        self.tell("stall", stall)
        done = 0
        while True:
            if done < SHORT_ONES:
                done += 1
                self.short(f"short-{self.number}-{done}")
            self.incidents.captured(stall, capture_of("stall"))
            self.wait()
            self.tell("written", stall)

    def short(self, name: str) -> None:
        """A fresh stall: opened, captured unless it is over before its capture comes, over."""
        run = self.run(name)
        self.incidents.open(run, blamed(f"{name}/0/1"))
        self.wait()
        self.tell("blamed", run)
        time.sleep(self.chance.uniform(0, CAPTURE))
        if self.chance.random() < 0.5:
            self.incidents.captured(run, capture_of(name))
            self.wait()
            self.tell("opened", run)
        incident = run.incident
        self.incidents.close(run, "recovered", "moves again")
        self.ledger.forget(name)
        self.wait()
        run.incident = incident
        self.tell("closed", run)

    def run(self, name: str) -> Run:
        """A run with what is known of it."""
        watch = StallWatch(StallSettings(), self.ledger.memory(name))
        return Run(capture_of(name).job, watch)

    def wait(self) -> None:
        """Until all is on disk."""
        while not self.ledger.writer.idle:
            time.sleep(0.001)

    def tell(self, what: str, run: Run) -> None:
        """To the one who kills."""
        assert run.incident is not None
        os.write(self.ack, f"{what} {run.incident.id}\n".encode())


def blamed(key: str) -> StallDecision:
    """The decision that opens an incident."""
    return StallDecision(stage=Stage.BLAMED, sentence="no step", open=True, key=key, timeout=2.0)


def capture_of(name: str) -> NodeCapture:
    """A capture of a made-up job."""
    capture = samples.sleeping().captures[0]
    return msgspec.structs.replace(
        capture, job=msgspec.structs.replace(capture.job, id=name), taken_at=time.time()
    )


class Killer:
    """Starts lives, ends them, and keeps the books of what had been promised."""

    def __init__(self, state_dir: Path, seed: int) -> None:
        self.state_dir = state_dir
        self.chance = random.Random(seed)
        self.promised: dict[str, str] = {}  # report id -> the last that was told of it
        self.stalls: set[str] = set()
        self.wrong: list[str] = []

    def round(self, number: int) -> None:
        """One life and one death."""
        result, ack = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                os.close(result)
                Life(self.state_dir, number, ack).live()
            finally:
                os._exit(1)
        os.close(ack)
        words = self._listen(result, pid)
        self._kill(pid)
        for line in (words + _rest(result)).decode().splitlines():
            what, _, report_id = line.partition(" ")
            if what == "stall":
                self.stalls.add(report_id)
            elif report_id:
                self.promised[report_id] = what
        os.close(result)
        self.look(f"round {number}")

    def _listen(self, number: int, pid: int) -> bytes:
        """Until it has said some words, and then a random while."""
        words, wanted, last = b"", 1 + self.chance.randrange(WORDS), time.monotonic() + 30
        while words.count(b"\n") < wanted and (left := last - time.monotonic()) > 0:
            if select.select([number], [], [], left)[0]:
                words += os.read(number, 65536)
        if not words:
            self.wrong.append(f"life {pid} did not begin: {os.waitpid(pid, os.WNOHANG)}")
        time.sleep(self.chance.uniform(0, LONGEST))
        return words

    def _kill(self, pid: int) -> None:
        family = [pid]
        if self.chance.random() < 0.5:
            helpers = [one.pid for one in children_of(pid)]
            family += helpers + [one.pid for helper in helpers for one in children_of(helper)]
        for one in family:
            with contextlib.suppress(ProcessLookupError):  # it went with the first
                os.kill(one, signal.SIGKILL)
        os.waitpid(pid, 0)

    def look(self, when: str) -> None:
        """Every report that is there is whole, and every one that was promised is there.

        Of an incident that had no capture yet, the next life writes the report: it has to be there at the end.
        """
        archive = ReportStore(self.state_dir)
        found = {entry.id: entry for entry in archive.list()}
        for name, entry in found.items():
            if entry.broken:
                self.wrong.append(f"{when}: {name} is broken: {entry.broken}")
                continue
            try:
                self._check(archive, name)
            except (MldebugError, jsonschema.ValidationError, OSError, ValueError) as error:
                self.wrong.append(f"{when}: {name}: {type(error).__name__}: {str(error)[:200]}")
        for name, what in self.promised.items():
            if name not in found and what == "blamed" and when != AT_THE_END:
                continue
            if name not in found:
                self.wrong.append(f"{when}: {name} ({what}) is lost")
            elif what == "closed" and found[name].state != "recovered":
                self.wrong.append(f"{when}: {name} was closed and is {found[name].state}")

    def _check(self, archive: ReportStore, name: str) -> None:
        folder = archive.folder / name
        document = json.loads((folder / "report.json").read_bytes())
        VALIDATOR.validate(document)
        if document["captures"]:
            archive.evidence(name)
        elif document["diagnosis"]["verdict"] != "unknown" or not document["gaps"]:
            raise ValueError("it judges what nobody saw")
        if document["id"] != name:
            raise ValueError("it is not what its name says")
        if not (folder / "report.html").read_text().rstrip().endswith("</html>"):
            raise ValueError("its page is cut")

    def result(self) -> dict[str, Any]:
        """What came of it all."""
        entries = ReportStore(self.state_dir).list()
        still_open = [
            one.id for one in entries if one.state == "open" and one.id not in self.stalls
        ]
        return {
            "wrong": self.wrong,
            "stalls": sorted(self.stalls),
            "reports": len(entries),
            "promised": len(self.promised),
            "open": still_open,
            "unseen": sum(self._unseen(one.id) for one in entries),
            "litter": len(list((self.state_dir / "reports").glob(".tmp-*"))),
        }

    def _unseen(self, name: str) -> bool:
        """Had it no capture?"""
        report = ReportStore(self.state_dir).folder / name / "report.json"
        return not json.loads(report.read_bytes())["captures"]


def _rest(number: int) -> bytes:
    parts = b""
    while part := os.read(number, 65536):
        parts += part
    return parts


def main() -> None:
    """Kill, look, repeat; the last life settles what the others left."""
    state_dir, rounds, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    logging.disable(logging.WARNING)
    killer = Killer(state_dir, seed)
    for number in range(rounds):
        killer.round(number)
    last = StateStore(state_dir, Spawner({"state": server.serve}), retry=0.01)
    last.start(10)
    last.writer.release()
    IncidentManager(last).close_orphans({"stall"})
    last.close(10)
    killer.look(AT_THE_END)
    print(json.dumps(killer.result()))


if __name__ == "__main__":
    main()
