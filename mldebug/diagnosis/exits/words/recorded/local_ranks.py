"""Which rank a local rank is, as the logs of a job tell: a local rank, the number of a rank on its node, comes again on each node. Pure.

| what the logs show | what is known |
|---|---|
| torchrun's table, or `[default1]:[rank5]` before a line | the rank of that local rank, on the node that the log is of |
| as many ranks in the whole job as there are local ranks, and no word of a second node | one node: the numbers are the same |
| signs of two nodes in several logs: torchrun's folders, or marks with the same local rank | of each log what it says itself |
| labels of two hosts before the marks of one log | of the lines behind each label what they say themselves |
| other signs of two nodes in one log: ranks that one node cannot have | nothing |
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mldebug.core.ranksets import MAX_RANK
from mldebug.diagnosis.exits.words.recorded.last_attempt import RecordedLog, both_streams

MOST_LOCAL = 64  # ranks of a node
_LABELLED = r"^(?:\x1b\[[\d;]{0,20}m)?(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{0,12} |[\w.-]{1,64}:)?(?:\x1b\[[\d;]{0,20}m)?\s{0,8}"
# A row of torchrun's table, behind a label of srun or pdsh, too
OF_TABLE = re.compile(rf"{_LABELLED}rank {{1,8}}: (?P<rank>\d{{1,7}}) \(local_rank: (?P<local>\d{{1,3}})\)")  # fmt: skip
LOG_FOLDER = re.compile(r"^(?P<run>(?:.*/)?)attempt_\d{1,5}/(?P<local>\d{1,3})/std(?:out|err)\.log$")  # fmt: skip
_TWO_MARKS = re.compile(r"\[default(?P<local>\d{1,3})\]: ?\[rank(?P<rank>\d{1,7})\]")
_LOCAL = re.compile(r"\[default(\d{1,3})\]:|\blocal_rank: (\d{1,3})\b")
# What pdsh, srun, kubectl and docker write before the lines of a node
_LABELLED_BY = (
    r"^(?:(?P<host>[\w.-]{1,80}): ?|\[(?P<pod>pod/\S{1,200})\] |(?P<container>[\w.-]{1,80}) +\| ?)"
)
_ANY_LABEL = re.compile(_LABELLED_BY)
_LABEL = re.compile(rf"{_LABELLED_BY}\[default\d")
_HOST = re.compile(rf"{_LABELLED}host {{1,8}}: (\S{{1,253}})")
_SAYS_WORLD = re.compile(r"\b[Ww]orld[_ ][Ss]ize\b['\"]?\]?[ =:]{1,3}(\d{1,7})\b|\bMEMBER: \d{1,7}/(\d{1,7})\b")  # fmt: skip
# The size of a part: of one communicator, of one node, of the nodes
_OF_A_PART = re.compile(r"(?:parallel|data|tensor|pipe\w{0,4}|model|expert|context|sequence|local|group|node|replica\w{0,3}|shard\w{0,3}|mesh|[dtpecsm]p)[ _-]{1,3}$", re.IGNORECASE)  # fmt: skip
_NODES = re.compile(r"(?:\bnnodes|\bnum[_-]nodes|\bnum[_-]machines|\bmax_nodes|\bSLURM_(?:JOB_)?(?:NNODES|NUM_NODES))['\"]?,?[ =:]{1,4}['\"]?(?:\d{1,5}:)?(\d{1,5})\b|\b(?:node[_-]rank|machine[_-]rank)['\"]?,?[ =:]{1,4}['\"]?([1-9]\d{0,4})\b")  # fmt: skip


class LocalRanks(NamedTuple):
    """The rank of each local rank. `by_log`: of the lines and the name of each log; `every`: what holds in all logs. `nodes`: whether the
    logs, or the lines of one, are surely of several nodes.
    """

    by_log: Mapping[str, Mapping[int, int]]
    every: Mapping[int, int]
    nodes: bool


def of_each_host(log: RecordedLog) -> Sequence[RecordedLog]:
    """The log, or where labels of two hosts stand before its marks, the lines behind each label as a log of its own."""
    labels = _labels(log.lines)
    if len(labels) < 2:
        return (log,)
    parts: dict[str, list[str]] = {}
    for line in log.lines:
        found = _ANY_LABEL.match(line)
        label = found[found.lastgroup or 0] if found else ""
        parts.setdefault(label if label in labels else "", []).append(line)
    return tuple(
        RecordedLog(
            name=f"{log.name} of {label}" if label else log.name, lines=lines, rank=log.rank
        )
        for label, lines in parts.items()
    )


def local_ranks(logs: Sequence[RecordedLog]) -> LocalRanks:
    """Which rank each local rank is, in each of these logs."""
    if not _of_several_nodes(logs):
        lines = [line for one in logs for line in one.lines]
        known = _ranks_of_local(lines)
        return LocalRanks({one.name: known for one in logs}, known, nodes=len(_labels(lines)) > 1)
    return LocalRanks({one.name: _as_said(one.lines) for one in logs}, {}, nodes=True)


def _of_several_nodes(logs: Sequence[RecordedLog]) -> bool:
    """Whether the same local rank stands in logs that two nodes must have written; both streams of one are no two logs."""
    folders = {(found["run"], found["local"]) for one in logs if (found := LOG_FOLDER.match(one.name))}  # fmt: skip
    marks = {
        (both_streams(one.name), local)
        for one in logs
        if not LOG_FOLDER.match(one.name)
        for line in one.lines
        if "[default" in line
        for local, _ in _LOCAL.findall(line)
        if local
    }
    return any(
        count > 1
        for some in (folders, marks)
        for count in Counter(local for _, local in some).values()
    )


def _ranks_of_local(lines: Sequence[str]) -> Mapping[int, int]:
    """As the lines say, else the same number where all ranks are surely on one node."""
    found = _as_said(lines)
    most = max((int(a or b) for line in lines if "rank" in line or "[default" in line for a, b in _LOCAL.findall(line)), default=-1)  # fmt: skip
    world = _world(lines)
    alone = world == 1 or not (any(map(_tells_of_nodes, lines)) or len(_labels(lines)) > 1)
    if not found and alone and most + 1 == world:
        return {local: local for local in range(min(most + 1, MOST_LOCAL))}
    return found


def _as_said(lines: Sequence[str]) -> Mapping[int, int]:
    """As torchrun's table or two marks before a line say; empty where they are of two nodes."""
    found = {
        (int(one["local"]), int(one["rank"]))
        for line in lines
        if (one := _TWO_MARKS.search(line) or OF_TABLE.match(line))
    }
    firsts = {rank - local for local, rank in found}  # the first rank of a node
    hosts = {host[1] for line in lines if (host := _HOST.match(line))}
    one_node = len(firsts) == 1 and len(hosts) < 2 and len(_labels(lines)) < 2
    return dict(found) if one_node else {}


def _labels(lines: Iterable[str]) -> set[str]:
    """What stands before marks of local ranks: names of hosts, tasks or pods."""
    return {found[found.lastgroup or 0] for line in lines if (found := _LABEL.match(line))}


def _tells_of_nodes(line: str) -> bool:
    """Whether the line tells of more than one node."""
    return "n" in line and any(int(nodes or 1) > 1 or bool(rank) for nodes, rank in _NODES.findall(line))  # fmt: skip


def _world(lines: Iterable[str]) -> int:
    """The size of the whole job as its log says; 0 where it does not."""
    sizes = (
        int(size)
        for line in lines
        for found in _SAYS_WORLD.finditer(line)
        if not _OF_A_PART.search(line[max(0, found.start() - 40) : found.start()])
        for size in found.groups()
        if size
    )
    return max((size for size in sizes if size <= MAX_RANK), default=0)
