"""What stands before a line where many processes write into one file: pdsh, srun, mpirun, docker, kubectl, clocks, colours.

Prefixes are taken off once, before any form of stacks is tried, and become the label of the line: lines with one label are
one stream. Which prefixes a file has is learned from its lines that are stacks behind them.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from mldebug.core.redact import clean

MAX_DEPTH = 3  # prefixes before one line
MAX_LEARNED = 20_000  # lines from which the prefixes of a file are learned

_CODES = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[@-_]|[\r\ufeff]"
)
_QUOTES = str.maketrans("\u201c\u201d\u201e", '"""')  # of word processors and chats
_LEVEL = r"(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)"
_HOST = r"(?P<host>[A-Za-z0-9][A-Za-z0-9_.-]{0,252})"

PREFIXES: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern)
    for pattern in (
        # a clock: docker -t, kubectl --timestamps, ts, journalctl; with the stream of a container runtime
        r"\[?\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?:?(?:\s|(?=\[))(?:std(?:out|err) [FP] )?",
        r"\[?[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?\s",
        r"\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?\s",
        # loggers, behind their clock: loguru, hydra, Python's logging
        rf"\| {_LEVEL} {{0,8}}\| [\w.<>:-]{{1,200}} - ",
        rf"(?:\[[\w./-]{{1,200}}\]){{0,3}}\[{_LEVEL}\](?: -)?\s",
        rf"(?:- )?[\w.]{{1,200}} - {_LEVEL} - ",
        rf"{_LEVEL}:[\w.]{{1,200}}:",
        r"\[[Rr]ank[ _:=]?(?P<rank>\d{1,6})\]:?\s",
        # mpirun --tag-output, PRRTE, mpiexec -prepend-rank
        r"\[[\w.-]{1,253}@\d{1,9},(?P<rank>\d{1,6})\]<std(?:out|err)>: ?",
        r"\[\d{1,9},(?P<rank>\d{1,6})\]<std(?:out|err)>:",
        r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} [\d:]{8} \d{4})?\[(?P<rank>\d{1,6})\]<std(?:out|err)>:",  # horovodrun
        r"\[\d{1,9},mpirank:(?P<rank>\d{1,6}),[\w.-]{1,100}\]<std(?:out|err)>: ?",  # SageMaker
        r"\[(?:[\w.-]{1,253}@)?\d{1,9},(?P<rank>\d{1,6})\]:?\s",
        r"\[(?P<rank>\d{1,6})\]:?\s",
        # torchrun, DeepSpeed, torchx
        r"\[?rank(?P<rank>\d{1,6})\]?:\s?",
        r"\[default(?P<local>\d{1,6})\]:\s?",
        r"(?P<host>[a-z][\w-]{0,60}/\d{1,6}) (?:\[(?P<local>\d{1,6})\]:)?",
        # srun --label
        r"\s{0,5}(?P<task>\d{1,6}): ?",
        # docker compose, docker service logs, kubectl logs --prefix, Ray, syslog
        r"(?P<host>[A-Za-z0-9][\w.@-]{0,252})\s{1,30}\|\s?",
        r"\[pod/(?P<host>[\w.-]{1,253})(?:/[\w.-]{1,253})?\]\s",
        r"\([\w.:-]{1,100} pid=(?P<pid>\d{1,10})(?:, ip=(?P<host>[\w.:-]{1,253}))?\)\s",
        rf"{_HOST} [\w./-]{{1,100}}(?:\[\d{{1,10}}\])?:\s",
        # pdsh, clush, dsh, and what people write themselves
        rf"(?!(?:[Ee]rror|[Ww]arning|Thread|Process|Python|Traceback|File)\b){_HOST}: ?",
        rf"\[{_HOST}\]:?\s",
        # kubetail, stern (pod and container), logcli (the labels that differ), aws logs tail (the stream)
        r"\[(?P<host>[a-z\d][\w.-]{0,252}) [a-z\d][a-z\d-]{0,62}\]\s",
        r"(?P<host>[a-z\d][a-z\d.]{0,200}-[a-z\d.-]{0,252}) [a-z\d][a-z\d-]{0,62} ",
        r"\{(?:[^{}]{0,1000}, )?(?:pod|pod_name|instance|host|node_name|filename|task)=\"(?P<host>[^\"]{1,253})\"[^{}]{0,1000}\}\s",
        r"(?P<host>[A-Za-z\d][\w.-]{0,200}(?:/[\w.$\[\]-]{1,200}){1,4}) ",
        # a debugger's prompt, and quotes in a mail or an issue
        r"\(gdb\) ",
        r"(?:> ?)",
    )
)

# A command that a shell repeats before its output (`set -x`, a prompt), of what runs on a node, in a pod or in a container
_PROMPT = r"(?:\+{1,4}|[$#%]|[\w.-]{1,64}@[\w.-]{1,253}:\S{0,200}[$#]|\[[\w.-]{1,64}@[^\]]{1,253}\][$#]) *(?:sudo )?"


def _options(valued: str) -> str:
    """A pattern of the options of a tool. `valued`: those that take a word of their own, which is none of a host, such as `-n ml`."""
    return rf"(?: +(?:{valued}) +\S{{1,200}}| +(?!(?:{valued}) )-{{1,2}}[\w-]{{1,40}}(?:=\S{{1,200}})?){{0,8}}"


_KUBECTL = _options(
    "-n|-c|-s|--namespace|--container|--context|--kubeconfig|--cluster|--user|--server|--token|--as"
)
_DOCKER = _options("-u|-e|-w|--user|--env|--workdir|--env-file|--detach-keys")
_SSH = _options("(?-i:-[BbcDEeFIiJLlmOopQRSWw])")  # `-q` is another option than `-Q`
_DUMPS = r" .{0,400}?\b(?:py-spy|pystack|austin|gdb|eu-stack|pstack|lldb)\b.{0,1000}"
SHELL_LINES: tuple[str, ...] = (
    rf"^{_PROMPT}(?:kubectl|oc){_KUBECTL} +exec{_KUBECTL} +(?:pods?/)?(?P<host>[a-z\d][\w.-]{{0,252}}){_DUMPS}$",
    rf"^{_PROMPT}(?:docker|podman|nerdctl)(?: container)? +exec{_DOCKER} +(?P<host>[\w][\w.-]{{0,252}}){_DUMPS}$",
    rf"^{_PROMPT}ssh{_SSH} +(?:[\w.-]{{1,64}}@)?(?P<host>[\w][\w.-]{{0,252}}){_DUMPS}$",
    rf"^{_PROMPT}srun .{{0,200}}?(?:-w +|--nodelist[= ])(?P<host>[\w][\w.-]{{0,252}}){_DUMPS}$",
    r"^(?:[\w.-]{1,64}@(?P<host>[\w.-]{1,253}):\S{0,200}[$#]|\[[\w.-]{1,64}@(?P<node>[\w.-]{1,253}) [^\]]{1,200}\][$#]) *(?:sudo )?(?:\S{0,200}/)?(?:py-spy|pystack|austin|gdb|eu-stack|pstack)\b.{0,1000}$",
    rf"^{_PROMPT}(?:\S{{0,200}}/)?(?:py-spy|pystack|gdb|eu-stack|pstack)\b.{{0,400}}?(?:--pid[= ]|-p[= ]?|remote )(?P<pid>\d{{1,10}})\b.{{0,400}}$",
)
"""Patterns of such a command that dumps stacks: they begin what that node, pod or process prints."""


class Label(NamedTuple):
    """Which process wrote a line, as the prefixes before it say; -1 and "" for what they do not."""

    host: str = ""
    rank: int = -1
    task: int = -1
    local: int = -1
    pid: int = -1


class LabelledLine(NamedTuple):
    """One line without its prefixes. `number` counts lines of the file from 1."""

    label: Label
    text: str
    number: int


Sequence = tuple[int, ...]


def plain(text: str) -> list[str]:
    """The lines of a text without colours and control codes; NUL, which separates variables in /proc, ends a line."""
    text = text.replace("\0", "\n").translate(_QUOTES)
    return _CODES.sub("", text).expandtabs(8).split("\n")


def unprefixed(lines: list[str], known: Callable[[str], bool]) -> Iterable[LabelledLine]:
    """The lines without their prefixes, each with the label that those made. `known` decides whether a text is a line of stacks."""
    common = _learned(lines, known)
    for number, line in enumerate(lines, 1):
        label, text = _strip(line, common) if common else (Label(), line)
        if text is None:
            sequence = () if known(line) else _search(line, known, 0)
            label, text = _strip(line, sequence or ())
        yield LabelledLine(label, line if text is None else text, number)


def _learned(lines: list[str], known: Callable[[str], bool]) -> Sequence:
    """The prefixes that most stack lines of a file have; none where most have none."""
    votes: Counter[Sequence] = Counter()
    for line in filter(None, lines[:MAX_LEARNED]):
        if known(line):
            votes[()] += 1
        elif (found := _search(line, known, 0)) is not None:
            votes[found] += 1
    return max(votes, key=lambda one: (votes[one], -len(one)), default=())


def _search(line: str, known: Callable[[str], bool], depth: int) -> Sequence | None:
    """The prefixes behind which the line is one of stacks."""
    if depth == MAX_DEPTH:
        return None
    for index, prefix in enumerate(PREFIXES):
        match = prefix.match(line)
        if match is None or match.end() == 0:
            continue
        rest = line[match.end() :]
        if known(rest):
            return (index,)
        if (below := _search(rest, known, depth + 1)) is not None:
            return (index, *below)
    return None


def _strip(line: str, sequence: Sequence) -> tuple[Label, str | None]:
    """The label and the rest of a line with these prefixes; None for the rest where it does not have them."""
    label = Label()
    for index in sequence:
        match = PREFIXES[index].match(f"{line} ")  # the blank behind a prefix may be cut off
        if match is None:
            return Label(), None
        label = _joined(label, match.groupdict())
        line = line[match.end() :]
    return label, line


def _joined(label: Label, groups: dict[str, str | None]) -> Label:
    """Add what one prefix says; the first host that is named counts."""
    numbers = {key: int(value) for key, value in groups.items() if value and key != "host"}
    host = label.host or clean(groups.get("host") or "", 200)
    return label._replace(host=host, **numbers)
