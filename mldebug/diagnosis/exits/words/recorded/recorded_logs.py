"""The end of a job that no agent has watched, from its logs alone. Pure.

Which ranks there were and which of them failed is what the marks of ranks, names of files and launchers say. Nobody has seen the exits: their order is
not known, and a status only where torchrun's table has it.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from mldebug.capture.stacks.tracebacks import OTHERS_WRITE
from mldebug.core.model import Job, LogTail, RankIdentity
from mldebug.core.ranksets import MAX_RANK
from mldebug.core.redact import safe_line
from mldebug.diagnosis.exits.model import (
    AttemptExit,
    LauncherWords,
    RankError,
    RankExit,
    status_of_code,
)
from mldebug.diagnosis.exits.words.last_words import last_error
from mldebug.diagnosis.exits.words.launcher_lines import launcher_words
from mldebug.diagnosis.exits.words.marks import take_apart, tasks_are_nodes
from mldebug.diagnosis.exits.words.output import (
    SHARED,
    TASKED,
    LogOutput,
    own_errors,
    shared_lines,
)
from mldebug.diagnosis.exits.words.recorded.last_attempt import (
    RecordedLog,
    of_last_attempt,
    tells_of_step,
)
from mldebug.diagnosis.exits.words.recorded.local_ranks import (
    LOG_FOLDER,
    OF_TABLE,
    LocalRanks,
    local_ranks,
    of_each_host,
)

RECORDED = "recorded"
LAST_LINES = 40
MOST_RANKS = 4096  # of one log: each has a row in the report
OTHERS_MARKED = (
    2  # ranks whose marks in a log show that no single rank writes to it; one may be quoted
)
FAILED = 1 << 8  # a wait(2) status: what a launcher leaves with whose rank has failed
_LAUNCHERS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("torchrun", re.compile(r"torch[./]distributed[./](?:elastic(?!/multiprocessing/errors)|run|launch)|\[default\d{1,3}\]:|^\s{0,8}rank {1,8}: \d{1,7} \(local_rank:")),
    ("deepspeed", re.compile(r"\[launch\.py:\d{1,5}:\w{1,40}\]")),
    ("slurm", re.compile(r"^(?:srun|slurmstepd\S{0,80}): ")),
    ("openmpi", re.compile(r"^(?:mpirun|mpiexec|prterun|orterun)\S{0,40}[ :]|\[\d{1,10},\d{1,7}\]<std(?:out|err)>")),
)  # fmt: skip
_WORLD = re.compile(
    r"\bnranks (\d{1,7})\b|\b(?:WORLD_SIZE|[Ww]orld[_ ][Ss]ize|num_processes)\b['\"]?\]?[ =:]{1,3}(\d{1,7})\b|\bMEMBER: \d{1,7}/(\d{1,7})\b"
)
# Below a row of torchrun's table: `  exitcode  : 1 (pid: 4711)`; behind a label of srun or pdsh, too
_LABELLED = r"^(?:\x1b\[[\d;]{0,20}m)?(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{0,12} |[\w.-]{1,64}:)?(?:\x1b\[[\d;]{0,20}m)?\s{0,8}"
_OTHERS_OF_TABLE = re.compile(r"(?:^|\s)Failures:\s*$")
_FIRST_OF_TABLE = "Root Cause (first observed failure)"
_CODE = re.compile(
    rf"{_LABELLED}exitcode {{1,8}}: (?P<code>-?\d{{1,9}}) \(pid: (?P<pid>\d{{1,10}})\)"
)


class _FailureRow(NamedTuple):
    """One row of torchrun's table of failures."""

    rank: int
    pid: int
    status: int


def end_of_logs(logs: Sequence[RecordedLog]) -> AttemptExit | None:
    """How the job that wrote these logs ended; None where no line tells of a failure or of an end from outside."""
    logs = of_last_attempt(logs)
    lines = [line for one in logs for line in one.lines]
    table = {one.rank: one for one in _table(lines)}
    parts = [part for one in logs for part in of_each_host(one)]
    locals_ = local_ranks(parts)
    launcher = _launcher(lines)
    of_nodes = launcher in ("torchrun", "deepspeed") or tasks_are_nodes(lines)
    tasked = launcher in (*TASKED, "environment") and not of_nodes
    outputs = _outputs(parts, locals_, range(MAX_RANK) if tasked else ())
    words = _with_ranks(launcher_words(lines), table, locals_.every, ranked=not of_nodes)
    named = {one.rank for one in (*words.failures, *words.followers) if one.rank is not None}
    shown = {*words.errors, *table, *named}
    errors = _errors(outputs, shown)
    shared = _shared(outputs, locals_)
    failed = sorted({*errors, *shown})[:MOST_RANKS]
    own = [*errors.values(), *filter(None, (shared,))]
    lost = len({one.blames_peer for one in errors.values()}) > 1  # one's own, and who lost it
    ended = (
        bool(shown or words.failures or words.cited) or lost or not all(one.caught for one in own)
    )
    if not ended and not words.outside:
        return None
    marked = {rank for one in outputs for rank in one.words.by_rank if rank < MOST_RANKS}
    known = sorted({*failed, *marked})
    accused = (rank for one in own if one.accuses for rank in (*one.accuses.ranks, *one.accuses.calls) if rank < MOST_RANKS)  # fmt: skip
    world = max((_world(lines), *(rank + 1 for rank in (*known, *accused))))
    identities = tuple(
        RankIdentity(rank=rank, world_size=world, pid=table[rank].pid if rank in table else 0)
        for rank in known
    )
    return AttemptExit(
        job=Job(
            id=RECORDED, name=logs[0].name, launcher=launcher, world_size=world, ranks=identities
        ),
        identities=identities,
        exits=tuple(_exit(rank, table.get(rank)) for rank in failed),
        launcher_gone=True,
        launcher_status=FAILED if ended else None,
        words=words,
        errors=errors,
        shared_error=shared,
        log=_tail(logs[-1]),
        log_path=logs[-1].name,
        output_read=True,
    )


def _errors(outputs: Sequence[LogOutput], shown: Collection[int]) -> dict[int, RankError]:
    """The last error of each rank. With many steps below it, by whomever, it was caught or is of an earlier start of the job, unless the
    rank is one of those `shown` to have failed.
    """
    found = {rank: one for rank, one in own_errors(outputs).items() if rank < MOST_RANKS}
    for output in outputs:
        ends = {one.lines[-1:] for one in found.values()}
        over = _above_steps(output.words.every, ends)
        for rank, error in found.items():
            if error.lines[-1:] in over and rank not in shown and output.owner in (None, rank):
                found[rank] = msgspec.structs.replace(error, caught=True)
    return found


def _shared(outputs: Sequence[LogOutput], locals_: LocalRanks) -> RankError | None:
    """The last error in logs that several ranks write to, without a mark. That of one node's log is not the error of whoever failed on another."""
    lines = shared_lines(outputs)
    error = last_error(lines, SHARED, shared=True)
    if error is not None and locals_.nodes and not error.blames_peer:
        error = msgspec.structs.replace(error, alone=False, unclear=True)
    if error is not None and _above_steps(lines, {error.lines[-1:]}):
        return msgspec.structs.replace(error, caught=True)
    return error


def _above_steps(lines: Sequence[str], ends: Collection[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Those last lines of errors, of `ends`, below which more lines about steps follow than others write before they notice a failure."""
    found: set[tuple[str, ...]] = set()
    met: set[tuple[str, ...]] = set()
    steps = 0
    for line in reversed(lines):
        steps += tells_of_step(line)
        end = (safe_line(line, 400),) if len(met) < len(ends) else ()
        if end in ends and end not in met:
            met.add(end)
            found |= {end} if steps > OTHERS_WRITE else set()
    return found


def _exit(rank: int, row: _FailureRow | None) -> RankExit:
    if row is None:
        return RankExit(rank=rank, pid=0)
    return RankExit(rank=rank, pid=row.pid, status=row.status, source="torchrun's table")


def _launcher(lines: Sequence[str]) -> str:
    """The first launcher of `_LAUNCHERS` whose words stand in the log: a task of srun may start torchrun."""
    return next((name for name, sign in _LAUNCHERS if any(map(sign.search, lines))), "environment")


def _outputs(
    logs: Sequence[RecordedLog], locals_: LocalRanks, tasks: Collection[int]
) -> list[LogOutput]:
    taken = [(one, take_apart(one.lines, locals_.by_log[one.name], tasks)) for one in logs]
    return [
        LogOutput(
            path=one.name, owner=_owner(one, locals_.by_log[one.name], words.by_rank), words=words
        )
        for one, words in taken
    ]


def _owner(log: RecordedLog, locals_: Mapping[int, int], marked: Collection[int]) -> int | None:
    """The only rank that writes to the log, by its name; not where lines in it are marked by several others, as the name may be that of a node or of a run."""
    folder = LOG_FOLDER.match(log.name)
    owner = locals_.get(int(folder["local"])) if log.rank is None and folder else log.rank
    return owner if len(set(marked) - {owner}) < OTHERS_MARKED else None


def _table(lines: Iterable[str]) -> list[_FailureRow]:
    """The rows of torchrun's table; none where the log ends before the row of the first failure, which stands below all others."""
    found: list[_FailureRow] = []
    rank: int | None = None
    cut = False
    for line in lines:
        if row := OF_TABLE.match(line):
            rank = int(row["rank"])
        elif rank is not None and (code := _CODE.match(line)):
            found.append(_FailureRow(rank, int(code["pid"]), status_of_code(int(code["code"]))))
            rank = None
        elif _OTHERS_OF_TABLE.search(line):
            cut = True
        elif _FIRST_OF_TABLE in line:
            cut = False
    return [] if cut else found


def _world(lines: Iterable[str]) -> int:
    """The job's number of ranks as its log says; 1 where it does not."""
    sizes = (int(size) for line in lines for one in _WORLD.findall(line) for size in one if size)
    return max((size for size in sizes if size <= MAX_RANK), default=1)


def _with_ranks(
    words: LauncherWords,
    table: Mapping[int, _FailureRow],
    locals_: Mapping[int, int],
    *,
    ranked: bool,
) -> LauncherWords:
    """The launcher's words, with the rank of each failure where its pid or its local rank tells it. `ranked`: what srun and mpirun count
    are ranks; not where each of their tasks starts several.
    """
    by_pid = {row.pid: rank for rank, row in table.items()}
    failures = []
    for one in words.failures:
        rank = by_pid.get(one.pid or 0, one.rank if ranked else None)
        if rank is None and one.local_rank is not None:
            rank = locals_.get(one.local_rank)
        pid = one.pid if one.pid in by_pid else None
        failures.append(msgspec.structs.replace(one, rank=rank, pid=pid))
    followers = words.followers if ranked else ()
    return msgspec.structs.replace(words, failures=tuple(failures), followers=followers)


def _tail(log: RecordedLog) -> LogTail:
    last = [line for line in log.lines if line.strip()][-LAST_LINES:]
    return LogTail(path=log.name, lines=tuple(safe_line(line, 400) for line in last))
