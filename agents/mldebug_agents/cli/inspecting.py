"""What `mldebug profile` and `mldebug memory` share: ranks are inspected on this node, or by the agents on all nodes, and a report keeps it."""

import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
from rich.text import Text

from mldebug.capture.inspection import InspectedRank, InspectedRanks, InspectionOptions
from mldebug.cli.console import Console, print_line
from mldebug.cluster.inspection import (
    INSPECT_PATH,
    MAX_INSPECTION,
    ON_THE_WAY,
    Inspection,
    read_passed_on,
)
from mldebug.cluster.merge import NodeReplies, merge, placed
from mldebug.cluster.messages import CLUSTER_PATH, MAX_VIEW, ClusterView
from mldebug.cluster.wire import unpack
from mldebug.config.schema import Config
from mldebug.core.errors import AccessError, EvidenceError, UsageError
from mldebug.core.model import QueriedNode
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.capture.inspection import inspect_ranks
from mldebug_agents.cluster.fanout.abandonment import ended_by_signals
from mldebug_agents.cluster.peers.reach import run_elsewhere
from mldebug_agents.incidents.manual import look, write_case
from mldebug_agents.incidents.step_orders import chosen_ranks, one_job, refuse_if_stalled
from mldebug_agents.web.client import ask_nearest
from mldebug_agents.web.control_requests import post_to_agent

PATHS = ("file: ", "stored in ")  # what a line says that begins so stays in one piece
CLUSTER = click.option(
    "--cluster",
    "everywhere",
    is_flag=True,
    help="Ask the agents, which know ranks on all nodes; else only where a rank is not on this one.",
)

Files = Callable[[InspectedRanks], Mapping[str, bytes]]


class RanksWanted(NamedTuple):
    """Whom a command is to inspect, and for what. `job`: its name, or how its id begins; `ranks`: folded; None: the only one, the lowest."""

    job: str | None
    ranks: str | None
    options: InspectionOptions
    everywhere: bool
    here_only: bool  # ask only the agent of the configuration, and not the node's service


class StoredInspection(NamedTuple):
    """What ranks were found to do. `folder`: the evidence folder of the report, "" where `trouble` says why there is none."""

    job: str
    found: InspectedRanks
    folder: str = ""
    trouble: str = ""


def inspected(config: Config, wanted: RanksWanted, files: Files) -> StoredInspection:
    """Inspect the ranks, here or by the agents where they are elsewhere, and store a report. `files`: what the report keeps besides.

    Raises MldebugError where none can be inspected. A signal that asks to end (Ctrl-C, SIGTERM, a closed terminal) ends the work, here
    and on all nodes.
    """
    with ended_by_signals():
        if wanted.everywhere:
            return _by_agents(config, wanted, wanted.job, files)
        with open_tools(config) as tools:
            try:
                return _here(tools, wanted, files)
            except (UsageError, AccessError):  # not here, or not to be seen
                run = _elsewhere(config, wanted)
                if run is None:
                    raise
        return _by_agents(config, wanted, run, files)


def _here(tools: NodeTools, wanted: RanksWanted, files: Files) -> StoredInspection:
    capture = tools.capture
    state_dir = capture.context.config.agent.state_dir
    found = capture.finder.find()
    job = one_job(found, wanted.job)
    refuse_if_stalled(state_dir, job, here_only=wanted.here_only)
    ranks = chosen_ranks(job, wanted.ranks, capture.requests)
    answers = inspect_ranks(capture, ranks, wanted.options)
    if not answers.files:
        return StoredInspection(job.id, answers)
    detected = time.time()
    taken = write_case(
        state_dir, (look(capture, job, found),), detected, more={**answers.files, **files(answers)}
    )
    return StoredInspection(job.id, answers, _folder(taken.html_path), taken.trouble)


def _elsewhere(config: Config, wanted: RanksWanted) -> str | None:
    """The run of that name, where the agents know ranks of it on other nodes."""
    if wanted.job is None:
        return None
    state_dir, answer = ask_nearest(config.agent.state_dir, here_only=wanted.here_only)
    if answer.snapshot is None or not answer.snapshot.cluster:
        return None
    view = post_to_agent(state_dir, CLUSTER_PATH, ClusterView, most=MAX_VIEW)
    return run_elsewhere(wanted.job, answer.snapshot, view)


def _by_agents(
    config: Config, wanted: RanksWanted, job: str | None, files: Files
) -> StoredInspection:
    if job is None:
        raise UsageError(
            "--cluster needs to know which job", "add --job NAME; see `mldebug status --cluster`"
        )
    detected, options = time.time(), wanted.options
    passed: msgspec.Raw = post_to_agent(
        ask_nearest(config.agent.state_dir, here_only=wanted.here_only).state_dir,
        INSPECT_PATH,
        msgspec.Raw,
        timeout=options.deadline + 3 * ON_THE_WAY,
        most=MAX_INSPECTION,
        job=job,
        ranks=wanted.ranks or "",
        **msgspec.to_builtins(options),
    )
    answer = read_passed_on(bytes(passed))
    del passed  # it may have a hundred MiB
    folder, trouble = _stored(config, answer, detected, files) if answer.found.files else ("", "")
    return StoredInspection(answer.job, answer.found, folder, trouble)


def _stored(config: Config, answer: Inspection, detected: float, files: Files) -> tuple[str, str]:
    """Store a report with the captures of the nodes that were asked. Returns its folder and "", or "" and why there is none."""
    replies, failed = {}, []
    for node, packed in answer.replies.items():
        try:
            replies[node] = unpack(packed)
        except EvidenceError as error:
            failed.append(QueriedNode(name=node, state="refused", reason=error.message))
    runs = merge(NodeReplies(replies, failed)).runs
    run = next((one for one in runs if one.captures[0].job.id == answer.job), None)
    if run is None:
        return "", "the report was not stored: no node has sent a capture of the run"
    taken = write_case(
        config.agent.state_dir,
        run.captures,
        detected,
        placed(run.queried, config.cluster.topology),
        socket.gethostname(),
        more={**answer.found.files, **files(answer.found)},
    )
    return _folder(taken.html_path), taken.trouble


def _folder(page: Path | None) -> str:
    return str(page.parent / "evidence") if page else ""


def show(
    answer: msgspec.Struct, done: StoredInspection, lines: list[str], *, as_json: bool
) -> None:
    """Print the answer, as JSON or as these lines; then what became of the report."""
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
    else:
        console = Console()
        for line in lines:
            print_line(console, Text(line, no_wrap=line.lstrip().startswith(PATHS)))
    if done.trouble:
        click.echo(f"mldebug: {done.trouble}", err=True)


def file_lines(one: InspectedRank, folder: str) -> list[str]:
    """Where the evidence of one rank lies, as text."""
    if one.left_out:
        return [f"  its file was not fetched: {one.left_out}"]
    return [f"  file: {folder}/{one.file}"] if one.file and folder else []
