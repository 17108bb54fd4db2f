"""Which rank wrote a line of a log: finds the mark of a rank, wherever it stands in the line, and removes it.

Pure.

torch marks lines of an uncaught exception with `[rank3]:`, `torchrun --tee` marks lines with
`[default3]:` (the local rank), `srun -l` with `3: ` and `mpirun --tag-output` with `[1,3]<stdout>:`
(the task); Composer shows a rank's output between two lines with its number. A line without a mark is of no rank in particular, unless only one rank writes to the
log.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

import msgspec

from mldebug.jobs.logs.labels import unwrap_json

_MARK = re.compile(
    r"\[(?P<role>rank|(?!\w{0,30}?(?:node|host|pod|server|machine|container|instance)_?\d)[A-Za-z_]\w{0,30}?)(?P<number>\d{1,7})\]: ?"
)
# Behind a time, a progress bar, colours, or what a container writes before each line
_MARK_INSIDE = re.compile(
    r"\[rank=?(?P<number>\d{1,7})\](?::| \|\|) ?"
)  # Determined: `[rank=3] || `
_LOCAL_INSIDE = re.compile(r"\[default(?P<number>\d{1,7})\]: ?")
_COLOUR = re.compile(r"\x1b\[[\d;?]{0,20}[A-Za-z]")
# What no collector writes before its JSON: an exception, whose text a server's answer may be, or a rank's mark
_OWN_JSON = re.compile(r"(?:Error|Exception)\b|\[rank\d{1,7}\]:")
# A bar that has no line of its own: what follows it was written by whoever wrote next
_BAR = re.compile(
    r"\r?[^|\r\n]{0,120}?\d{1,3}%\|[^|\r\n]{0,300}\| ?[^\s\[]{1,40} \[[^\]\r\n]{0,200}\](?=.*\S)"
)
# The watchdog names its rank in the text, also where nothing marks the line (PyTorch 2.1 and older). It is the number in its process
# group: the job's own one only in the default group, whose unique name is 0
_WATCHDOG = re.compile(
    r"(?:ProcessGroupNCCL\.cpp:\d{1,5}\]|what\(\): ) ?\[(?:PG (?:ID \d{1,7} PG GUID )?0 ?(?:\(default_pg\) ?)?)?Rank (?P<number>\d{1,7})\]"
)
# Fluent Bit's output to a terminal: `[0] kube.train: [[1767225600.123, {}], {"log"=>"…", "stream"=>"stderr"}]`
_FLUENT_BIT = re.compile(
    r'\[\d{1,7}\] \S{1,200}: \[\[?\d{9,10}\.\d{1,9}, .{0,400}?"(?:log|message)"=>"(?P<text>.*?)(?:\\n)?"(?:, "[\w.]{1,80}"=>.*|\}\]\s*)$'
)
# A bar that a terminal would draw over the text before it
_OVER = re.compile(
    r"(?<=\S)(?:\r[^|\r\n]{0,120}?\d{1,3}%\|[^|\r\n]{0,300}\| ?[^\s\[]{1,40} \[[^\]\r\n]{0,200}\]\s{0,8})+$"
)
# What Ray writes behind a line that several workers wrote
_REPEATED = re.compile(
    r" ?(?:\x1b\[[\d;]{1,20}m)?\[repeated \d{1,7}x across (?:all nodes|cluster)\].{0,300}$"
)
# A second mark behind a traceback's head or an ended word: two ranks have written at once
_JOINED = re.compile(r"(?<=[\w).:])\[rank(?P<number>\d{1,7})\]:")
# Composer's launcher shows what each rank that failed has written
_SECTION = re.compile(
    r"-{5,40}(?P<edge>Begin|End) global rank (?P<number>\d{1,7}) STD(?:ERR|OUT)-{5,40}$"
)
# Which rank the writer is, in its own words: Lightning, transformers, torch's mark
_SAYS_RANK = re.compile(
    r"\bGLOBAL_RANK: (\d{1,7}), MEMBER|\b[Pp]rocess rank: (\d{1,7}), device|^ ?\[rank(\d{1,7})\]:"
)
_DIGITS = re.compile(r"\d+")
NARROWEST = 60  # columns of a terminal
FULL_LINES = 2  # different lines of its width, where a terminal has broken a log
MARKED_WITHIN = 400  # characters of a line in which a mark may stand
MAX_LINE = (
    4096  # characters of a line, or of the text of one error: to judge each costs up to 30 µs
)
_TAG = re.compile(
    r"\[(?:(?P<prte>[\w.-]{1,80}@)?\d{1,10},(?:mpirank:)?)?(?P<task>\d{1,7})(?:,[\w.-]{1,80})?\]<std(?:out|err|diag)>:(?(prte) ?)"
)  # of Horovod's own launcher without a job before the task: `[3]<stderr>:`
# srun -l, and Intel MPI's and MPICH's -prepend-rank
_LABEL = re.compile(r" *(?:(?=\d{1,7}: ?)|\[(?=\d{1,7}\] ))(?P<task>\d{1,7})(?:\]|:) ?")


class LogWords(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of a log, divided among the ranks."""

    by_rank: dict[int, tuple[str, ...]] = {}
    shared: tuple[str, ...] = ()
    every: tuple[str, ...] = ()  # in order, without marks
    folded: frozenset[str] = frozenset()  # texts that Ray shows once for several processes


def take_apart(
    lines: Sequence[str], ranks_of_local: Mapping[int, int], tasks: Collection[int] = ()
) -> LogWords:
    """Divide the lines of a log among the ranks by their marks, which are removed.

    `ranks_of_local`: rank by local rank. `tasks`: ranks that are tasks of their own (of srun,
    mpirun), by whose number lines may be marked.
    """
    folded: set[str] = set()
    lines = _rejoined(lines)
    unwrapped = [(part, _is_folded(line)) for line in lines for whole in _unwrapped(line) for part in _parted(whole)]  # fmt: skip
    lines = [part for part, _ in unwrapped]
    by_rank: dict[int, list[str]] = {}
    shared: list[str] = []
    every: list[str] = []
    label = _LABEL if _labelled(lines) else None
    section: int | None = None
    for line, of_several in unwrapped:
        rank, text = _owner(line, ranks_of_local, tasks, label)
        folded |= {text} if of_several else set()
        if found := _SECTION.search(text, 0, MARKED_WITHIN):
            section = int(found["number"]) if found["edge"] == "Begin" else None
        rank = section if rank is None else rank
        by_rank.setdefault(rank, []).append(text) if rank is not None else shared.append(text)
        every.append(text)
    own = {rank: tuple(some) for rank, some in by_rank.items()}
    return LogWords(by_rank=own, shared=tuple(shared), every=tuple(every), folded=frozenset(folded))


def _rejoined(lines: Sequence[str]) -> Sequence[str]:
    """The lines of a log that a terminal has broken at its width: what stands without a mark below a marked line of that width belongs to it."""
    width = max(map(len, lines), default=0)
    full = {_DIGITS.sub("", line) for line in lines if len(line) == width}
    if width < NARROWEST or len(full) < FULL_LINES:
        return lines
    found: list[str] = []
    goes_on = False
    for line in lines:
        if goes_on and not _MARK.match(line):
            found[-1] += line
        else:
            found.append(line)
        goes_on = len(line) == width and (goes_on or _MARK.match(line) is not None)
    return found


def tasks_are_nodes(lines: Sequence[str]) -> bool:
    """Whether lines behind the number of a task say that another rank wrote them: a task then starts several ranks, and its number is none."""
    label = _LABEL if _labelled(lines) else None
    for line in lines:
        tag = _TAG.search(line, 0, MARKED_WITHIN) or (label.match(line) if label else None)
        writer = _SAYS_RANK.search(line[tag.end() : tag.end() + MARKED_WITHIN]) if tag else None
        if tag and writer and int(next(filter(None, writer.groups()))) != int(tag["task"]):
            return True
    return False


def _parted(line: str) -> Sequence[str]:
    """The lines of two ranks that were written into one, the second right behind what ends the first; else the line."""
    begins = _MARK_INSIDE.search(line, 0, MARKED_WITHIN)
    joined = _JOINED.search(line, begins.end(), MARKED_WITHIN) if begins else None
    if begins is None or joined is None or joined["number"] == begins["number"]:
        return (line,)
    return (line[: joined.start()], line[joined.start() :])


def _is_folded(line: str) -> bool:
    return "x across " in line and _REPEATED.search(line) is not None


def _unwrapped(line: str) -> Sequence[str]:
    """The lines in a line of a collector's JSON, wherever it begins, else the line; without bars that stand before other text."""
    if (fluent := _FLUENT_BIT.match(line)) is not None:
        return [fluent["text"].replace('\\"', '"')]
    at = line.find('{"', 0, MARKED_WITHIN) if line.endswith("}") else -1
    at = -1 if at > 0 and _OWN_JSON.search(line[:at]) else at
    unwrapped = unwrap_json(line[at:]) if at >= 0 else [line]
    lines = [line] if unwrapped == [line[at:]] else unwrapped
    lines = [_REPEATED.sub("", one) if "x across " in one else one for one in lines]
    lines = [_OVER.sub("", one) if "%|" in one else one for one in lines]
    return [shortened(_BAR.sub("", one) if "%|" in one else one) for one in lines]


_TELLING = (
    *("peer", "remote", "timed out", "timeout", "connect", "barrier", "watchdog", "heartbeat", "abort", "unreachable"),
    *("cuda error", "out of memory", "error:", "fault", "assert"),
)  # fmt: skip
AROUND = 80  # characters before such a word, and twice as many behind it


def shortened(text: str, most: int = MAX_LINE) -> str:
    """The text, of a long one its beginning, its end, and what of the middle may be about others or say what is wrong: an error
    that only its middle blames on a peer is not its speaker's own.
    """
    if len(text) <= most:
        return text
    begin, end = most // 2, len(text) - most // 4
    pieces = [text[:begin], *_telling(text, begin, end, most // 4 - 60), text[end:]]
    return " … ".join(pieces)


def _telling(text: str, begin: int, end: int, room: int) -> list[str]:
    """Pieces of the text between two places, `room` characters together, around the first place of each telling word."""
    begin, beyond = begin - 2 * AROUND, end + 2 * AROUND  # a sentence may be cut in two
    folded = text.lower()  # in some languages of another length: a place is then near
    found: list[tuple[int, int]] = []
    for word in _TELLING:
        at = folded.find(word, begin, end)
        if at >= 0 and not any(low <= at < high for low, high in found):
            low, high = max(begin, at - AROUND), min(beyond, at + 2 * AROUND)
            room -= high - low + 3
            if room < 0:
                break
            found.append((low, high))
    return [text[low:high] for low, high in sorted(found)]


def _labelled(lines: Sequence[str]) -> bool:
    """Whether nearly each line begins with a task's number, of several tasks: a single task may be a whole node. Numbers that only
    grow are those of lines.
    """
    written = [
        line for line in lines if line.strip() and not line.startswith(("srun:", "slurmstepd:"))
    ]
    marks = [match["task"] for line in written if (match := _LABEL.match(line))]
    numbers = [int(one) for one in marks]
    of_lines = all(one < after for one, after in pairwise(numbers))
    return len(set(marks)) > 1 and len(marks) >= 0.9 * len(written) and not of_lines


def _owner(
    line: str,
    ranks_of_local: Mapping[int, int],
    tasks: Collection[int],
    label: re.Pattern[str] | None,
) -> tuple[int | None, str]:
    line = _COLOUR.sub("", line) if "\x1b" in line else line
    tag = _TAG.search(line, 0, MARKED_WITHIN) or (label.match(line) if label else None)
    line = line[tag.end() :] if tag else line
    mark = _MARK.match(line)
    inside = _MARK_INSIDE.search(line, 0, MARKED_WITHIN)
    if inside and (mark is None or mark["role"] != "rank"):
        return int(inside["number"]), line[inside.end() :]
    mark = mark or _LOCAL_INSIDE.search(line, 0, MARKED_WITHIN)
    if mark is None:
        task = int(tag["task"]) if tag and int(tag["task"]) in tasks else None
        watchdog = _WATCHDOG.search(line, 0, MARKED_WITHIN) if task is None else None
        return (int(watchdog["number"]) if watchdog else task), line
    rest = line[mark.end() :]
    number = int(mark["number"])
    if mark.re is _MARK and mark["role"] == "rank":
        return number, rest
    return ranks_of_local.get(number), rest
