"""Prints results of collectives as they come, and writes them to files at the end."""

import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import msgspec

from mldebug.core.errors import MldebugError, ToolError, UsageError
from mldebug.core.redact import clean
from mldebug.core.units import format_size
from mldebug.probes.collective_formats import HEADER, UNITS, as_csv, as_textfile, row
from mldebug.probes.collectives import CollectiveResult
from mldebug.probes.curve import CurvePoint, compared
from mldebug_agents.probes.measurement import Callbacks, Measurement
from mldebug_agents.probes.rank_events import MeasuredRanks

Put = Callable[[Path], object]
"""Writes a file at a path."""


class OutputFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Where a probe's results go besides the table that it prints: to stdout as JSON, and into files (CSV, a picture,
    metrics).
    """

    as_json: bool
    csv: Path | None
    plot: Path | None
    textfile: Path | None


def callbacks(output: OutputFiles, kept: dict[str, str]) -> Callbacks:
    """Callbacks that print a table as results come, on stdout; with --json on stderr. `kept`: variables that change results."""

    def say(line: str) -> None:
        click.echo(line, err=output.as_json)

    def joined(about: MeasuredRanks) -> None:
        click.echo(title(about), err=True)
        for name, value in kept.items():
            click.echo(clean(f"  {name}={value}", 200), err=True)
        say(HEADER)
        say(UNITS)

    def result(found: CollectiveResult) -> None:
        say(row(found))

    return Callbacks(result=result, skipped=lambda line: click.echo(line, err=True), joined=joined)


def write(measurement: Measurement, output: OutputFiles) -> None:
    """Print JSON and write the files that `output` names; the table was printed row by row. MldebugError where a file cannot be
    written; the others are written all the same.
    """
    results = measurement.results
    if output.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(results), indent=2).decode())
    write_files(_files(measurement, output))


def write_files(files: Iterable[tuple[Path, Put]]) -> None:
    """Write each file by its function. Raises MldebugError for the first that cannot be written, once the others are."""
    failed = [why for path, put in files if (why := _failure(path, put))]
    if failed:
        raise MldebugError(failed[0], "name another place")


def _files(measurement: Measurement, output: OutputFiles) -> Iterator[tuple[Path, Put]]:
    """Paths of files to write, each with the function that writes it; none where nothing was measured, so that old files stay."""
    results = measurement.results
    if not results:
        return
    if output.csv:
        yield output.csv, lambda path: path.write_text(as_csv(results), encoding="utf-8")
    if output.textfile:
        yield output.textfile, lambda path: _replace(path, as_textfile(results, time.time()))
    if output.plot:
        yield output.plot, lambda path: plot(results, path, title(measurement.about))


def check_places(output: OutputFiles) -> None:
    """Raise UsageError before anything is measured where a file could not be written."""
    for path in filter(None, (output.csv, output.plot, output.textfile)):
        if not _writable(path, replaced=path == output.textfile):
            raise UsageError(
                f"{path} cannot be written", "name a file in a folder that is there, and yours"
            )
    if output.plot:
        check_picture(output.plot)


def _writable(path: Path, replaced: bool) -> bool:
    try:
        there = path.exists() and not (replaced and _is_plain(path))
        return not path.is_dir() and os.access(path if there else path.parent, os.W_OK)
    except OSError:  # a folder that may not be entered, a name that is too long
        return False


def _is_plain(path: Path) -> bool:
    """Is it a file that another may stand in for? Never put one where a device, a pipe or a link is."""
    return stat.S_ISREG(os.lstat(path).st_mode)


def title(about: MeasuredRanks) -> str:
    """A line that says what was measured: ranks, backend, GPU."""
    if not about.ranks:
        return ""
    gpu = f" on {about.gpu}, NCCL {about.nccl}" if about.gpu else ""
    alone = "; nothing travels, so there is no bandwidth" if about.ranks == 1 else ""
    ranks = "1 rank" if about.ranks == 1 else f"{about.ranks} ranks"
    return clean(f"{ranks}, {about.backend}{gpu}{alone}", 200)


def _replace(path: Path, text: str) -> None:
    """Whole or not at all, and readable for a collector of another user, who may read it at any moment."""
    if path.exists() and not _is_plain(path):
        path.write_text(text, encoding="utf-8")
        return
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _failure(path: Path, put: Put) -> str:
    try:
        put(path)
    except (OSError, ValueError) as error:  # matplotlib has its own of what is wrong
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return f"{path} cannot be written: {why}"
    return ""


MOST_NAMED = 12  # payloads below the picture


def check_matplotlib() -> None:
    """Raise ToolError before anything is measured where no picture could be drawn."""
    if find_spec("matplotlib") is None:
        raise ToolError("--plot needs matplotlib", "pip install matplotlib, or take --csv")


def check_picture(path: Path) -> None:
    """Raise UsageError for a kind of picture that cannot be drawn."""
    known = import_module("matplotlib.backend_bases").FigureCanvasBase.get_supported_filetypes()
    if path.suffix and path.suffix[1:].lower() not in known:
        raise UsageError(
            f"{path} cannot be drawn: there is no kind of picture {path.suffix}",
            "name it .png, .svg or .pdf",
        )


def plot(results: Sequence[CollectiveResult], path: Path, title: str) -> None:
    """Draw one line for each op into this file; its suffix selects the format."""
    figures = import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for op in dict.fromkeys(one.op for one in results if one.busbw_bytes_per_second):
        points = sorted(
            (one.bytes, one.busbw_bytes_per_second / 1e9) for one in results if one.op == op
        )
        axes.plot([size for size, _ in points], [speed for _, speed in points], "o-", label=op)
    axes.set(xlabel="payload", ylabel="bus bandwidth, GB/s", title=title)
    axes.grid(visible=True, alpha=0.3)
    if axes.lines:
        _name_payloads(axes, sorted({one.bytes for one in results if one.bytes}))
        axes.set_ylim(bottom=0)
        axes.legend()
    figure.savefig(path)


def plot_curve(points: Sequence[CurvePoint], path: Path, title: str) -> None:
    """Draw bus bandwidth over the number of nodes, one line for each op with the largest payload that all have; the suffix selects the format."""
    figures = import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    results = compared(points)
    for op in dict.fromkeys(op for one in results for op in one):
        found = [
            (point.nodes, one[op]) for point, one in zip(points, results, strict=True) if op in one
        ]
        speeds = [one.busbw_bytes_per_second / 1e9 for _, one in found]
        label = f"{op}, {format_size(found[0][1].bytes)}"
        axes.plot([nodes for nodes, _ in found], speeds, "o-", label=label)
    axes.set(xlabel="nodes", ylabel="bus bandwidth, GB/s", title=f"up to {title}")
    axes.grid(visible=True, alpha=0.3)
    axes.set_xscale("log", base=2)
    numbers = [one.nodes for one in points]
    axes.set_xticks(numbers, [str(one) for one in numbers])
    axes.set_xticks([], minor=True)
    if axes.lines:
        axes.set_ylim(bottom=0)
        axes.legend()
    figure.savefig(path)


def _name_payloads(axes: Any, sizes: Sequence[int]) -> None:
    """Name payloads below the axis as the table does; only some of them where there are many."""
    axes.set_xscale("log", base=2)
    shown = sizes[:: -(-len(sizes) // MOST_NAMED)]
    axes.set_xticks(shown, [format_size(size) for size in shown])
    axes.set_xticks([], minor=True)
