"""Time collectives, NCCL on GPUs and gloo on CPUs, and check their values."""

import time
from pathlib import Path
from typing import Any

import click
import msgspec

from mldebug.errors import ExitCode, MldebugError, UsageError
from mldebug.probing.collectives import Collective
from mldebug.probing.csvtext import as_csv
from mldebug.probing.formulas import OPS
from mldebug.probing.rows import HEADER, UNITS, row
from mldebug.probing.settings import nonsense
from mldebug.probing.textfile import as_textfile
from mldebug.redact import clean
from mldebug_agents.probing.child import Ended, Event
from mldebug_agents.probing.measuring import Measurement, Telling, Wish
from mldebug_agents.probing.options import probe_options, size, wanted
from mldebug_agents.probing.plotting import check_matplotlib, plot
from mldebug_agents.probing.session import Session, check_ranks, open_session

DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "uint8")
SIZES = {"cuda": "1KiB,1MiB,16MiB,256MiB,1GiB", "cpu": "1KiB,1MiB,16MiB"}
LARGEST = 16 << 30
CPU_RANKS = 2


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """Where results go besides the table."""

    as_json: bool
    csv: Path | None
    plot: Path | None
    textfile: Path | None


@click.command("collectives")
@click.option(
    "--nproc",
    type=click.IntRange(1, 64),
    help="Ranks on this node. Default: one for each GPU, 2 on CPUs.",
)
@click.option(
    "--sizes", metavar="LIST", help="Payloads: 1KiB,1GiB, or 1KiB-1GiB for each doubling."
)
@click.option(
    "--ops", metavar="LIST", default=",".join(OPS), help="Which collectives. Default: all."
)
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    default="float32",
    show_default=True,
    help="Of the elements.",
)
@click.option(
    "--warmup",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="Untimed repetitions.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="Timed repetitions at most.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(1, 3600),
    default=60.0,
    show_default=True,
    help="Seconds that one operation may take.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    help="Largest memory of each rank. Default: a share of what is free.",
)
@click.option("--interface", default="", help="Network interface that the ranks talk over.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a list with an object for each op and size."
)
@click.option(
    "--csv", type=click.Path(path_type=Path, dir_okay=False), help="Write a table there, too."
)
@click.option(
    "--plot",
    "picture",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw bus bandwidths there (needs matplotlib).",
)
@click.option(
    "--textfile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write metrics for node_exporter there.",
)
@probe_options
def command(
    nproc: int | None,
    sizes: str | None,
    ops: str,
    memory: str | None,
    as_json: bool,
    csv: Path | None,
    picture: Path | None,
    textfile: Path | None,
    python: str | None,
    device: str,
    duration: str,
    beside_jobs: bool,
    **rest: Any,
) -> int:
    """Time collectives, NCCL on GPUs and gloo on CPUs, and check their values.

    Times are those of the slowest rank in each repetition; bandwidths come from their median, by the factors of
    nccl-tests. Ctrl-C prints what was measured so far. Exit code 1: a value was wrong, a rank failed, or the node is
    busy.
    """
    frame = wanted(python, device, duration, beside_jobs)
    chosen, limit = _ops(ops), size(memory, "--memory") if memory else None
    if picture:
        check_matplotlib()
    payloads = {kind: _sizes(sizes or SIZES[kind]) for kind in SIZES}
    output = Output(as_json=as_json, csv=csv, plot=picture, textfile=textfile)
    with open_session(frame) as session:
        _check_variables(session)
        ranks = nproc or (session.facts.gpus if session.device == "cuda" else CPU_RANKS)
        check_ranks(session, ranks)
        sizes_here = payloads[session.device]
        wish = Wish(nproc=ranks, ops=chosen, sizes=sizes_here, memory=limit, **rest)
        return measured(session, wish, output)


def measured(session: Session, wish: Wish, output: Output) -> int:
    """Measure, show and write; whatever ends it, what there is by then comes out."""
    measurement = Measurement(wish, _telling(session, output))
    ended = Ended(outcome="cancelled", reason="it was interrupted")
    try:
        ended = measurement.run(session)
    finally:
        write(measurement, output)
    if ended.outcome != "done":
        raise MldebugError(_sentence(ended, session), _way_out(ended, session))
    if not measurement.results:
        raise MldebugError(f"nothing was measured: {measurement.skipped[0]}", "smaller --sizes")
    wrong = any(one.correct is False for one in measurement.results)
    return int(ExitCode.FOUND if wrong else ExitCode.FINE)


def write(measurement: Measurement, output: Output) -> None:
    """Everything that is asked for but the table, which was printed row by row."""
    results = measurement.results
    if output.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(results), indent=2).decode())
    if output.csv:
        output.csv.write_text(as_csv(results), encoding="utf-8")
    if output.textfile:
        _replace(output.textfile, as_textfile(results, time.time()))
    if output.plot and results:
        plot(results, output.plot, _title(measurement.about))


def _telling(session: Session, output: Output) -> Telling:
    """A table as it grows, on stdout; with --json on stderr, for whoever watches."""

    def say(line: str) -> None:
        click.echo(line, err=output.as_json)

    def joined(event: Event) -> None:
        click.echo(_title(event), err=True)
        for name, value in session.environment.kept.items():
            click.echo(clean(f"  {name}={value}", 200), err=True)
        say(HEADER)
        say(UNITS)

    def result(found: Collective) -> None:
        say(row(found))

    return Telling(result=result, skipped=lambda line: click.echo(line, err=True), joined=joined)


def _title(event: Event) -> str:
    if not event:
        return ""
    gpu = f" on {event['gpu']}, NCCL {event['nccl']}" if event["gpu"] else ""
    return clean(f"{event['ranks']} ranks, {event['backend']}{gpu}", 200)


def _sentence(ended: Ended, session: Session) -> str:
    if ended.outcome == "late":
        return f"the probe has used up its {session.wanted.duration:g} s"
    if ended.outcome == "cancelled":
        return f"the probe was ended: {ended.reason}"
    return f"the probe failed: {ended.reason}"


def _way_out(ended: Ended, session: Session) -> str:
    if ended.outcome == "late":
        return "fewer --ops, smaller --sizes, or a longer --duration"
    if ended.outcome == "cancelled":
        return "measure when the node is idle"
    kept = ", ".join(f"{name}={value}" for name, value in session.environment.kept.items())
    return f"is it one of these variables? {kept}" if kept else ""


def _check_variables(session: Session) -> None:
    """Raise UsageError for what NCCL cannot obey: it would say so in a riddle, or not at all."""
    problems = tuple(nonsense(session.environment.kept))
    if problems:
        raise UsageError("\n".join(problems), "unset it, or correct it")


def _ops(text: str) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(one.strip() for one in text.split(",") if one.strip()))
    unknown = [one for one in chosen if one not in OPS]
    if unknown or not chosen:
        raise UsageError(
            f"--ops {text}: there is no {', '.join(unknown)}", f"choose from: {', '.join(OPS)}"
        )
    return chosen


def _sizes(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        found.append(_payload(low))
        while dash and found[-1] * 2 <= _payload(high):
            found.append(found[-1] * 2)
    return tuple(dict.fromkeys(found))


def _payload(text: str) -> int:
    found = size(text, "--sizes")
    if not 1 <= found <= LARGEST:
        raise UsageError(f"--sizes {text}: a payload is 1B to 16GiB", "write it like 16MiB")
    return found


def _replace(path: Path, text: str) -> None:
    """Whole or not at all: a collector may read it at any moment."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def create(options: Options) -> click.Command:
    """Build the command."""
    return command
