"""What is written down of an incident: its report, and the evidence from which the same report can be made again."""

import platform
from collections.abc import Sequence

import msgspec

from mldebug import __version__
from mldebug.core.model import Judgement, NodeCapture
from mldebug.incidents.incident import Incident, write_report
from mldebug.incidents.report.html import render_html
from mldebug.incidents.stored_evidence import ASKED
from mldebug_agents.state.store import StateStore


def write(
    ledger: StateStore, incident: Incident, judgement: Judgement, reported_at: float, uid: int
) -> None:
    """Hand it to the writer as work: a full or hung state dir costs reports, never the loop."""

    def work() -> None:
        report = write_report(incident, judgement, reported_at)
        evidence = evidence_files(incident)
        if incident.ending is not None:
            evidence[f"ending-{report.node}.json"] = msgspec.json.encode(incident.ending)
        ledger.archive.save(report, render_html(report), evidence, owner_uid=uid)
        ledger.archive.prune()

    ledger.report(incident.id, work)


def evidence_files(incident: Incident) -> dict[str, bytes]:
    """The captures from which the same report can be made again; beside those of all nodes, what was seen here alone."""
    beside = "own" if incident.across else "capture"
    files = {
        f"{beside}-{number}-{capture.node}.json": msgspec.json.encode(capture)
        for number, capture in enumerate(incident.captures, 1)
    }
    files |= {f"capture-{one.node}.json": msgspec.json.encode(one) for one in incident.across}
    if incident.asked is not None:
        files[ASKED] = msgspec.json.encode(incident.asked)
    return files


def owner_of(captures: Sequence[NodeCapture]) -> int:
    """Whose job it is; root's where they do not agree."""
    owners = {one.job.uid for one in captures}
    return owners.pop() if len(owners) == 1 else 0


def owner(incident: Incident) -> int:
    """Whose job it was."""
    if incident.captures:
        return incident.captures[0].job.uid
    job = incident.ending.job if incident.ending else incident.job
    return job.uid if job else 0


def versions() -> dict[str, str]:
    """Of what looked."""
    return {
        "mldebug": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
