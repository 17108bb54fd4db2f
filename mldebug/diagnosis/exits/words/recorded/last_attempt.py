"""Which lines of a job's logs are of its last attempt (one start of the job), and may tell how it ended. Pure.

| what the logs hold | what counts |
|---|---|
| a launcher's words about a failed rank, and steps below them | what stands below those words: the job was started again |
| an exception, below it the words with which torchrun begins, and steps | what stands below those words: a pod or a script started it again |
| the same with torchrun's table | the same, where a later table is of the same host: else those steps may be another node's |
| words that the training finished, and no failure below them | nothing: what failed before was caught, or tried again |
| `attempt_0`, `attempt_1` of torchrun's log folder | the folder of the highest number |
| what pytest repeats of a test's output in its report | nothing: it is quoted |
| `job.log.1`, `job.log-20261128` beside `job.log`; stdout beside stderr | all, the older first; stderr last, for the two have no common order |
"""

import re
from collections.abc import Sequence

import msgspec

from mldebug.capture.stacks.tracebacks import OTHERS_WRITE, STEP

WITHIN = 400  # characters of a line that are looked at
_ENDED = re.compile(
    r"failed \(exitcode: -?\d|srun: error: \S{1,80}: tasks? \d|noticed that process rank \d|^ *Process name: (?:\[|\d)|exits with return code = -?\d"
)
_STARTS = re.compile(r"torch[./]distributed[./]run\b.{0,24}Setting OMP_NUM_THREADS")
_HOST = re.compile(r"^(?:[\w.-]{1,64}:)?\s{0,8}host {1,8}: (\S{1,253})")
_FINISHED = re.compile(
    r"\b(?:training|fine-?tuning|pre-?training)(?: (?:is|has|was|run|job|loop|successfully|been|now)){0,3} (?:finished|completed?|done|ended)\b"
    r"|\b(?:finished|completed|done(?: with)?) (?:the )?(?:training|fine-?tuning|pre-?training)\b"
    r"|\bworker group successfully finished|`Trainer\.fit` stopped: `max_\w{1,20}=\S{1,20} reached|'train_runtime': '?\d",
    re.IGNORECASE,
)
# What makes them words about a part of the training, or about how it did not finish
_OF_A_PART = re.compile(
    r"\b(?:epoch|step|iter(?:ation)?|stage|phase|round|fold|trial|chunk)s?\W{0,3}\d|\b(?:not|never|before|until|when|once|if|after which|will|should)\b",
    re.IGNORECASE,
)
_OTHERWISE = re.compile(r"fail|error|abort|exception|interrupt|unsuccess|\bfalse\b", re.IGNORECASE)
_FAILURE = re.compile(
    r"Traceback \(most recent call last\)|Fatal Python error|terminate called after|Caught signal \d|^\W{0,8}[\w.]{0,80}(?:Error|Exception): |CANCELLED AT|death signal|Watchdog caught|MPI_A(?:BORT|bort)\b|core dumped|oom[_-]kill"
)
_IGNORED = re.compile(r"Exception ignored (?:in|on)\b")
_PYTEST = re.compile(r"={3,80} (?:test session starts|FAILURES|ERRORS) ={3,80}$")
_CAPTURED = re.compile(r"-{3,80} ?Captured (?:stdout|stderr|log) (?:call|setup|teardown) ?-{3,80}$")
_RULED = re.compile(
    r"(?:={3,80} .{1,200} ={3,80}|_{3,80} .{1,200} _{3,80}|-{3,80} ?[A-Z].{1,200} ?-{3,80})$"
)
_ATTEMPT = re.compile(r"^(?P<run>(?:.*/)?)attempt_(?P<number>\d{1,5})/")
_ROTATED = re.compile(r"\.(?P<age>\d{1,3})$|[.-](?P<day>20\d{6})$")
_FAR_DAY = 10**9  # more than any day as logrotate writes it, 20261128
_STREAM = re.compile(r"(?<![a-z])(?:std)?(?P<stream>out|err)(?:put|or)?(?![a-z])", re.IGNORECASE)


class RecordedLog(msgspec.Struct, frozen=True, kw_only=True):
    """One log. `rank`: the only one that writes to it, None where that is not known."""

    name: str
    lines: Sequence[str]
    rank: int | None = None


def of_last_attempt(logs: Sequence[RecordedLog]) -> list[RecordedLog]:
    """The logs of the last attempt, in the order in which they were written where their names tell it, each with its lines of that attempt."""
    logs = [_with(one, _since_start(_without_captured(one.lines))) for one in logs]
    kept = [_with(one, _since_restart(one.lines)) for one in sorted(_newest(logs), key=_order)]
    finished = {both_streams(one.name) for one in kept if is_finished(one.lines)}
    return [
        one if both_streams(one.name) not in finished or _tells_of_end(one.lines) else _with(one, ())
        for one in kept
    ]  # fmt: skip


def _without_captured(lines: Sequence[str]) -> Sequence[str]:
    """The lines of a log without what pytest's report repeats of a test's output, from `--- Captured stdout call ---` to its next heading."""
    if not any(map(_PYTEST.match, lines)):
        return lines
    kept: list[str] = []
    captured = False
    for line in lines:
        captured = bool(_CAPTURED.match(line)) or (captured and not _RULED.match(line))
        kept += () if captured else (line,)
    return kept


def tells_of_step(line: str) -> bool:
    """Whether the line tells of a step, an epoch, a loss or a bar that moves on."""
    return STEP.search(line, 0, WITHIN) is not None


def is_finished(lines: Sequence[str]) -> bool:
    """Whether the log says that the training finished, and tells of no failure after it."""
    for at in range(len(lines) - 1, -1, -1):
        if _says_finished(lines[at][:WITHIN]):
            return True
        if _is_failure(lines, at):
            return False
    return False


def _says_finished(line: str) -> bool:
    found = _FINISHED.search(line)
    return (
        found is not None
        and not _OF_A_PART.search(line[: found.start()])
        and not _OTHERWISE.search(line)
    )


def _is_failure(lines: Sequence[str], at: int) -> bool:
    line = lines[at][:WITHIN]
    if _ENDED.search(line):
        return True
    if not _FAILURE.search(line):
        return False
    return not any(map(_IGNORED.search, lines[max(0, at - 20) : at + 1]))


def _tells_of_end(lines: Sequence[str]) -> bool:
    return any(_ENDED.search(line, 0, WITHIN) for line in lines)


def _since_restart(lines: Sequence[str]) -> Sequence[str]:
    """The lines from the first step on below the last words about an end after which the same launcher's job went on."""
    last_table = {host[1]: at for at, line in enumerate(lines) if (host := _HOST.match(line))}
    begin = 0
    ended = False
    steps: list[int] = []  # their lines, since those words
    hosts: set[str] = set()  # whose table stands there
    for at, line in enumerate(lines):
        host = _HOST.match(line)
        if _ENDED.search(line, 0, WITHIN) or (host and ended):
            hosts = set() if steps else hosts
            hosts |= {host[1]} if host else set()
            ended, steps = True, []
        elif ended and tells_of_step(line):
            steps.append(at)
            if len(steps) > OTHERS_WRITE and (
                not hosts or any(last_table[one] > at for one in hosts)
            ):
                begin, ended, steps, hosts = steps[0], False, [], set()
    return lines[begin:] if begin else lines


def _since_start(lines: Sequence[str]) -> Sequence[str]:
    """The lines from the last words with which torchrun begins, where a failure stands above them and steps below."""
    starts = [at for at, line in enumerate(lines) if _STARTS.search(line, 0, WITHIN)]
    if not starts or not any(map(tells_of_step, lines[starts[-1] :])):
        return lines
    failed = any(_is_failure(lines, at) for at, _ in enumerate(lines[: starts[-1]]))
    return lines[starts[-1] :] if failed else lines


def _newest(logs: Sequence[RecordedLog]) -> list[RecordedLog]:
    """All but those in folders of earlier attempts."""
    found = [(_ATTEMPT.match(one.name), one) for one in logs]
    last: dict[str, int] = {}
    for folder, _ in found:
        if folder:
            last[folder["run"]] = max(int(folder["number"]), last.get(folder["run"], 0))
    return [
        one
        for folder, one in found
        if folder is None or int(folder["number"]) == last[folder["run"]]
    ]


def _order(log: RecordedLog) -> tuple[str, bool, int]:
    """By name; what was rotated away is older, and stderr comes last."""
    old = _ROTATED.search(log.name)
    *folders, file = log.name.split("/")
    streams = [found for one in folders if (found := _STREAM.fullmatch(one))] + [_STREAM.search(file)]  # fmt: skip
    is_stderr = any(one is not None and one["stream"].lower() == "err" for one in streams)
    age = -int(old["age"]) if old and old["age"] else int(old["day"]) - _FAR_DAY if old else 0
    return both_streams(log.name), is_stderr, age


def both_streams(name: str) -> str:
    """What a log of stdout and that of stderr have in common: `slurm-7.*`, `*/rank0.log`; also what was rotated away and what was not."""
    folder, slash, file = _ROTATED.sub("", name).rpartition("/")
    folder = "/".join("*" if _STREAM.fullmatch(part) else part for part in folder.split("/"))
    return f"{folder}{slash}{_STREAM.sub('*', file)}"


def _with(log: RecordedLog, lines: Sequence[str]) -> RecordedLog:
    return log if lines is log.lines else msgspec.structs.replace(log, lines=lines)
