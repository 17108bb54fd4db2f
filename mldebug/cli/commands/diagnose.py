"""Judge a report's evidence, or stacks that others have dumped."""

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from mldebug.capture.dump_folder import UNREAD, captures_from_dumps
from mldebug.capture.flight_recorder.files.folder import ranks_dumped
from mldebug.cli.console import Console
from mldebug.core.errors import EvidenceError, ExitCode, MldebugError
from mldebug.core.files import unreadable
from mldebug.core.model import Confidence, Gap, Judgement, NodeCapture, ProcessCapture, QueriedNodes
from mldebug.core.plugins import NoOptions
from mldebug.core.progress import progress_line
from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.core.report_model import Report, Stall
from mldebug.core.text import typed
from mldebug.diagnosis.diagnose import diagnose
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.diagnosis.exits.words.last_words import tells_of_fault
from mldebug.incidents.evidence_archive import is_archive, unpacked
from mldebug.incidents.incident import Incident
from mldebug.incidents.judge import judge as judge_incident
from mldebug.incidents.recorded_end import RecordedEnd, end_recorded
from mldebug.incidents.report.build import build_report, make_id, write_report
from mldebug.incidents.report.changes import comparison
from mldebug.incidents.report.html import render_html
from mldebug.incidents.report.text import print_report
from mldebug.incidents.stored_evidence import StoredEvidence, load_evidence

LIST = f"give the folder of a report; this says where they are: {typed('reports list')}"
OURS = ("report.json", "report.html")
ABORTED = "Fatal Python error: Aborted"
FOLDER = "FOLDER"
DUMPS = "Flight Recorder dumps"
WHY = "recorded evidence, judged again"
KINDS = "capture-*.json, ending-*.json, or stacks (of py-spy, faulthandler, gdb, pystack), nor a log that tells of a failure"


class RejudgedReport(NamedTuple):
    """The report that follows from stored evidence with today's rules; `found`: whether it shows a stall or a failure."""

    report: Report
    found: bool


@click.command("diagnose")
@click.argument("directory", type=click.Path(path_type=Path, readable=False))
@click.option("--json", "as_json", is_flag=True, help="Print report.json.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path, readable=False),
    help="Write report.html here.",
)
def command(directory: Path, as_json: bool, html: Path | None) -> None:
    """Judge recorded evidence again.

    DIRECTORY is the folder of a report (of a stall, of an abnormal end or taken by hand), its evidence folder, or
    stacks of all ranks: a file or a folder of what py-spy dump (text, JSON), faulthandler, gdb or pystack printed, one
    file a rank, a node or for all, also behind the prefixes of pdsh, srun, mpirun, docker or kubectl. Ranks are known
    by RANK, --local_rank, a prefix or the file's name (rank0.txt), else numbered in order. Logs of a job that ended will do,
    too: whom its last words show to have failed first. A tar, a zip, a .gz, .bz2 or .xz of any of these will do.
    """
    with progress_line("reading the evidence"):
        judged = judge(read_evidence(directory))
    if html:
        _write(html, render_html(judged.report))
    if as_json:
        click.echo(msgspec.json.encode(judged.report).decode())
    else:
        print_report(judged.report, Console())
    sys.exit(ExitCode.FOUND if judged.found else ExitCode.FINE)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MldebugError(
            f"{path} cannot be written: {error.strerror}", "give --html another place"
        ) from error


def read_evidence(directory: Path) -> StoredEvidence:
    """Read the evidence that an agent or a dump stored in a folder; any other folder or file is read as stacks that other tools
    printed. A tar, a zip or a compressed file stands for its content.

    Raises EvidenceError where nothing can be judged.
    """
    is_file = _check_folder(directory)
    if is_file and is_archive(directory):
        with unpacked(directory) as folder:
            return _read(folder, directory, is_file=False)
    return _read(directory, directory, is_file=is_file)


def _read(directory: Path, given: Path, *, is_file: bool) -> StoredEvidence:
    recorded = StoredEvidence() if is_file else load_evidence(directory)
    if not recorded.captures and recorded.exit is None:
        recorded = _recorded_by_others(directory, given)
    if not recorded.captures and recorded.exit is None:
        raise EvidenceError(
            f"{given} holds nothing to judge: no {KINDS}",
            LIST,
        )
    return recorded


def _recorded_by_others(directory: Path, given: Path) -> StoredEvidence:
    """Stacks that other tools printed; where there are none, the end that logs of a job tell of."""
    refusal = None
    try:
        captures = captures_from_dumps(directory)
    except EvidenceError as error:
        captures, refusal = (), error
    dumped = any(one.pid for one in _processes(captures))
    end, gaps = RecordedEnd(None) if dumped else end_recorded(directory)
    if end is None and (ranks := _flight_recorders(directory, captures)):
        hint = _flight_hint(ranks, given, unpacked=given != directory)
        if not captures:
            raise EvidenceError(f"{given}: {hint.reason}, and there are no stacks, nor a log that tells of a failure", hint.way_out)  # fmt: skip
        captures = (_with_gap(captures[0], hint), *captures[1:])
    if refusal is not None and end is None:
        raise refusal
    if end is not None and captures and not _shows_no_dump(end, captures):
        end = None
    captures = captures if end is None else ()
    return StoredEvidence(captures=captures, exit=end, at=directory.stat().st_mtime, gaps=gaps)


def _flight_recorders(directory: Path, captures: Sequence[NodeCapture]) -> tuple[int, ...]:
    """The ranks of Flight Recorder dumps among what was not read as stacks; () without any."""
    unread = not captures or any(one.what == UNREAD for capture in captures for one in capture.gaps)
    return ranks_dumped(directory) if unread else ()


def _flight_hint(ranks: Sequence[int], given: Path, *, unpacked: bool) -> Gap:
    """What is said of Flight Recorder dumps, which have a command of their own."""
    where = FOLDER if unpacked else shlex.quote(str(given))
    first = "unpack it, then type" if unpacked else "type"
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {shorten_ranks(fold_ranks(ranks))}"
    return Gap(what=DUMPS, reason=f"{DUMPS} of {who} are not judged here", way_out=f"{first} {typed(f'flight-recorder {where}')}")  # fmt: skip


def _with_gap(capture: NodeCapture, gap: Gap) -> NodeCapture:
    return msgspec.structs.replace(capture, gaps=(*capture.gaps, gap))


def _processes(captures: Iterable[NodeCapture]) -> Iterator[ProcessCapture]:
    return (rank.process for capture in captures for rank in capture.ranks)


def _shows_no_dump(end: AttemptExit, captures: Iterable[NodeCapture]) -> bool:
    """Whether stacks that stand in a log are no dump of ranks that wait: without a thread's number, as who warns of something prints them, or
    those that Python writes as it crashes.
    """
    errors = [*end.errors.values(), *filter(None, (end.shared_error,))]
    if errors and all(one.error.startswith(ABORTED) for one in errors):
        return False  # who waits in vain is ended so, and these stacks show in what
    threads = any(stack.tid for one in _processes(captures) for stack in one.stacks)
    return not threads or any(map(tells_of_fault, errors))


def _check_folder(directory: Path) -> bool:
    """Is it a file that may hold stacks? EvidenceError where it is neither that nor a folder."""
    try:
        if directory.is_dir():
            return False
        if directory.is_file() and directory.name not in OURS:
            return True
        exists = directory.exists()
    except OSError as error:
        raise unreadable(directory, error) from error
    if not exists:
        raise EvidenceError(
            f"{directory} does not exist",
            LIST,
        )
    inside = directory.suffix in (".json", ".html")
    raise EvidenceError(
        f"{directory} is not a folder",
        f"give the folder that it lies in: {directory.parent}" if inside else LIST,
    )


def judge(recorded: StoredEvidence) -> RejudgedReport:
    """Judge stored evidence in the way an incident is judged. All times in the report are those of the evidence."""
    if recorded.exit is not None:
        return _judge_end(recorded.exit, recorded)
    captures = recorded.captures
    judgement, moment = _judge_stall(captures, recorded.queried)
    taken = min(capture.taken_at for capture in captures)
    report = build_report(
        judgement,
        moment,
        kind="manual",
        trigger="manual",
        detected_at=taken,
        reported_at=taken,
        stall=Stall(timeout_seconds=None, why=WHY),
        versions=moment[0].versions,
        taken=captures,
        queried=recorded.queried,
    )
    return RejudgedReport(_with_changes(report, captures), judgement.stalled)


def _with_changes(report: Report, captures: tuple[NodeCapture, ...]) -> Report:
    """What moved, where one node took two moments."""
    in_order = sorted(captures, key=lambda capture: capture.taken_at)
    if len(in_order) < 2 or len({capture.node for capture in in_order}) > 1:
        return report
    return msgspec.structs.replace(report, comparison=comparison(in_order[0], in_order[-1]))


def _judge_stall(
    captures: tuple[NodeCapture, ...], queried: QueriedNodes | None
) -> tuple[Judgement, tuple[NodeCapture, ...]]:
    """The first moment, or the last one where the first names nobody, as the agent does; with its captures."""
    in_order = sorted(captures, key=lambda capture: capture.taken_at)
    first = tuple({capture.node: capture for capture in reversed(in_order)}.values())
    last = tuple({capture.node: capture for capture in in_order}.values())
    judgement = diagnose(first, queried)
    if judgement.diagnosis.culprits or len(first) == len(in_order):
        return judgement, first
    later = diagnose(last, queried)
    return (later, last) if later.diagnosis.culprits else (judgement, first)


def _judge_end(attempt_exit: AttemptExit, recorded: StoredEvidence) -> RejudgedReport:
    """An end, with the capture of the ranks that lived on where there is one."""
    captures = recorded.captures
    times = [one.at for one in attempt_exit.exits] + [capture.taken_at for capture in captures]
    at = max(times, default=0.0) or recorded.at
    incident = Incident(
        id=make_id(at, attempt_exit.job.id),
        key=attempt_exit.job.id,
        job_id=attempt_exit.job.id,
        detected_at=at,
        why=WHY,
        state="open" if attempt_exit.living else "ended",
        kind="abnormal_end",
        exit=attempt_exit,
        captures=(*captures[:1], *captures[1:][-1:]),
        gaps=recorded.gaps,
    )
    judgement = judge_incident(incident)
    report = write_report(incident, judgement, at)
    if recorded.gaps:  # what stood there nobody knows: nobody is named for more than one sign
        sure = msgspec.structs.replace(report.diagnosis, confidence=Confidence.LOW)
        report = msgspec.structs.replace(report, diagnosis=sure)
    return RejudgedReport(report, judgement.stalled)


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug diagnose`: judge a report's evidence, or stacks that others have dumped."""
    return command
