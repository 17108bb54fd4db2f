"""Judge the Flight Recorder dumps that PyTorch has written."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from rich.text import Text

from mldebug.capture.flight_recorder.analysis import Conclusion, analyse
from mldebug.capture.flight_recorder.files.folder import WAY_OUT, FolderRecords, read_folder
from mldebug.cli.console import Console, print_line
from mldebug.core.errors import EvidenceError, ExitCode
from mldebug.core.files import unreadable, without_collector
from mldebug.core.plugins import NoOptions
from mldebug.core.progress import progress_line
from mldebug.core.redact import clean

MAX_PROBLEMS = 10


@click.command("flight-recorder")
@click.argument("directory", type=click.Path(path_type=Path, readable=False))
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(directory: Path, as_json: bool) -> None:
    """Judge the Flight Recorder dumps that PyTorch has written.

    It names the rank that the others wait for. DIRECTORY holds one dump for each rank, pickle or JSON, whose names end in the rank: nccl_trace_rank_3,
    trace_node-17_3.json. Dumps that are missing or broken are told and do no harm. In its place a file may stand that PyTorch's own analyser has printed
    (fr_trace, also with -j --verbose).

    Exit code 0: nobody waits; 1: somebody does; 2: there is no dump that can be read.
    """
    with progress_line("reading the dumps"):
        with without_collector():
            folder = read_folder(_checked(directory))
        answer = analyse(folder.records, folder.unreadable)
    if as_json:
        click.echo(msgspec.json.encode(_object(folder, answer)).decode())
    else:
        console = Console()
        for line in lines(folder, answer):
            print_line(console, line)
    sys.exit(ExitCode.FINE if answer.kind == "healthy" else ExitCode.FOUND)


def _checked(directory: Path) -> Path:
    """The folder itself: what the user names may be a link, what lies in it may not."""
    try:
        place = directory.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        reason = error if isinstance(error, OSError) else OSError(str(error))
        raise unreadable(directory, reason) from error
    if not (place.is_dir() or place.is_file()):
        raise EvidenceError(f"{directory} is not a folder", WAY_OUT)
    return place


def _object(folder: FolderRecords, answer: Conclusion) -> dict[str, object]:
    return {
        **msgspec.structs.asdict(answer),
        "dumps": len(folder.records),
        "problems": folder.problems,
        "ignored_files": folder.ignored,
    }


def lines(folder: FolderRecords, answer: Conclusion) -> Iterator[Text]:
    """The answer of the analysis as lines for people."""
    colour = "green" if answer.kind == "healthy" else "red"
    named = f": rank{'s' if len(answer.culprits) > 1 else ''} " if answer.culprits else ""
    who = named + ", ".join(map(str, answer.culprits[:16]))
    yield Text.assemble((f"{answer.kind}{who}", f"bold {colour}"))
    yield Text(f"  {answer.explanation}")
    if len(answer.evidence) > 1:
        yield Text("\nWho waits")
        yield from (Text(f"  {one}") for one in answer.evidence)
    yield from _problems(folder)


def _problems(folder: FolderRecords) -> Iterator[Text]:
    count = len(folder.problems)
    if count:
        yield Text(f"\n{count} {'file tells' if count == 1 else 'files tell'} nothing")
    for problem in folder.problems[:MAX_PROBLEMS]:
        yield Text(f"  {clean(problem.file, 120)}: {problem.reason}", style="dim")
    if count > MAX_PROBLEMS:
        yield Text(f"  and {count - MAX_PROBLEMS} more", style="dim")


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug flight-recorder`: judge the Flight Recorder dumps that PyTorch has written."""
    return command
