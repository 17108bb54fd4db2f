"""Ask the hub about jobs, nodes, incidents and GPU hours of all nodes."""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from rich.text import Text

from mldebug.cli.console import Console, print_line
from mldebug.config.schema import load_config
from mldebug.core.errors import UsageError
from mldebug.core.plugins import NoOptions
from mldebug.core.progress import progress_line
from mldebug.core.redact import clean
from mldebug.core.text import rfc3339, seconds_of
from mldebug.core.units import parse_duration
from mldebug.fleet.answers.hours import GROUPS, HoursList, hours_lines
from mldebug.fleet.answers.incidents import (
    IncidentList,
    SimilarIncidents,
    incident_lines,
    similar_lines,
)
from mldebug.fleet.answers.jobs import JobList, job_lines
from mldebug.fleet.answers.node_list import NodeList, node_lines
from mldebug.fleet.answers.nodes import NodeHistory, history_lines
from mldebug_agents.fleet.asking import ask_hub, send_to_hub
from mldebug_agents.fleet.hub.notes import NewNote
from mldebug_agents.fleet.places import HOURS, INCIDENTS, JOBS, NODE, NODES, NOTES, SIMILAR

T = TypeVar("T", bound=msgspec.Struct)
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _common(command: _Command) -> _Command:
    """The options of all verbs below `fleet`."""
    config = click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")  # fmt: skip
    as_json = click.option("--json", "as_json", is_flag=True, help="Print an object with all that is known.")  # fmt: skip
    return as_json(config(command))


@click.group("fleet")
def group() -> None:
    """Ask the hub about jobs, nodes, incidents and GPU hours of all nodes.

    Operators see everything, users their own jobs.
    """


@group.command("jobs")
@click.argument("job", required=False, default="")
@_common
def jobs(job: str, as_json: bool, config: Path | None) -> None:
    """Show all attempts of JOB (a name, or the id of a run) on one time line, and why each ended; without JOB all jobs."""
    _show(_answer_of(config, JOBS, JobList, job=job), job_lines, as_json)


@group.command("nodes")
@_common
def nodes(as_json: bool, config: Path | None) -> None:
    """List all nodes, the worst first: lemons, those that are ill or silent, and the others."""
    _show(_answer_of(config, NODES, NodeList), node_lines, as_json)


@group.command("node")
@click.argument("node")
@_common
def node(node: str, as_json: bool, config: Path | None) -> None:
    """Show the history of NODE: faults, incidents in which it was the culprit, probes that have shifted, GPUs that came and went."""
    _show(_answer_of(config, NODE, NodeHistory, node=node), history_lines, as_json)


@group.command("search")
@click.argument("words", nargs=-1)
@click.option("--verdict", default="", help="Only this verdict.")
@click.option("--node", default="", help="Only told by this node, or blamed on it.")
@click.option("--user", default="", help="Only jobs of this user, a name or a number.")
@click.option("--job", default="", help="Only this job, or this run.")
@click.option("--since", default="", metavar="TIME", help="Not before: `7d`, or 2026-11-28.")
@click.option("--until", default="", metavar="TIME", help="Not after: `1d`, or 2026-11-28.")
@_common
def search(
    words: tuple[str, ...], verdict: str, node: str, user: str, job: str, since: str, until: str, as_json: bool, config: Path | None
) -> None:  # fmt: skip
    """Find incidents with all of WORDS, the newest first."""
    query = {"words": " ".join(words), "verdict": verdict, "node": node, "user": user, "job": job, "since": _time(since), "until": _time(until)}  # fmt: skip
    given = {name: text for name, text in query.items() if text}
    found = _answer_of(config, INCIDENTS, IncidentList, **given)
    _show(found, lambda one: _incidents(one), as_json)


@group.command("similar")
@click.argument("incident")
@_common
def similar(incident: str, as_json: bool, config: Path | None) -> None:
    """Show what was like INCIDENT before and after it, and what people have noted about that."""
    _show(_answer_of(config, SIMILAR, SimilarIncidents, incident=incident), similar_lines, as_json)


@group.command("note")
@click.argument("incident")
@click.argument("text")
@_common
def note(incident: str, text: str, as_json: bool, config: Path | None) -> None:
    """Add TEXT to INCIDENT, for those who meet the like of it: what has helped."""
    found = send_to_hub(load_config(config), NOTES, NewNote(incident=incident, text=text), SimilarIncidents)  # fmt: skip
    _show(found, similar_lines, as_json)


@group.command("goodput")
@click.option("--by", type=click.Choice(GROUPS), default="user", help="Sum by this.")
@click.option("--since", default="30d", metavar="TIME", help="From this week on: `30d`, or 2026-11-28.")  # fmt: skip
@_common
def goodput(by: str, since: str, as_json: bool, config: Path | None) -> None:
    """Show where the GPU hours went, by week."""
    _show(_answer_of(config, HOURS, HoursList, by=by, since=_time(since)), hours_lines, as_json)


def _answer_of(config: Path | None, path: str, kind: type[T], **parameters: str) -> T:
    with progress_line("asking the hub"):
        return ask_hub(load_config(config), path, kind, **parameters)


def _show(found: T, lines: Callable[[T], Iterable[str]], as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    console = Console()
    for line in lines(found):
        print_line(console, Text(clean(line, 600)))


def _incidents(found: IncidentList) -> Iterator[str]:
    yield from incident_lines(found.incidents)
    if (more := found.total - len(found.incidents)) > 0:
        yield f"and {more:,} older ones: ask for fewer"
    if not found.total:
        yield "The hub knows of no such incident."


def _time(text: str) -> str:
    """A time that a person has typed as RFC 3339: how long ago it was, or the moment; "" for none. Raises UsageError for anything else."""
    if not text:
        return ""
    if seconds_of(text) is not None:
        return text
    try:
        return rfc3339(time.time() - parse_duration(text))
    except ValueError as error:
        raise UsageError(f"{clean(text, 40)!r} is no time", "write it like 7d, or like 2026-11-28") from error  # fmt: skip


def create(options: NoOptions) -> click.Command:
    """Build the commands below `mldebug fleet`."""
    return group
