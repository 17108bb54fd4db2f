"""Which file of a folder is the Flight Recorder dump of which rank, by name, and which of several of one rank counts.

PyTorch ends the name with the rank (`nccl_trace_rank_3`, `host-17.cluster_fr_3.pickle`). People add a time or a count behind it
(`nccl_trace_rank_3_20251113_0213`): where the number behind the word `rank` tells more ranks than the last number of the names, or smaller ones, it counts.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mldebug.core.ranksets import MAX_RANK
from mldebug.core.redact import clean

_LAST = re.compile(
    r"(?P<before>(?:.*\D)?)(?P<rank>\d++)(?P<after>(?:\.(?:pickle|pkl|pt|json|bin|dump|trace))?)",
    re.DOTALL,
)
_WORD = re.compile(
    r"(?P<before>.{0,300}?rank[_-]?)(?P<rank>\d++)(?P<after>.*)", re.DOTALL | re.IGNORECASE
)
TOO_LARGE = "its name ends in no rank: the number is too large"


class NamedDump(NamedTuple):
    """A file that may be a dump: its name, and what stands in it before and behind the rank."""

    name: str
    before: str
    rank: int  # beyond MAX_RANK: no rank
    after: str

    @property
    def series(self) -> tuple[str, str]:
        """What the files of one moment have in common."""
        return self.before, self.after


class ChosenDumps(NamedTuple):
    """One file for each rank, and why the others are not used."""

    chosen: list[NamedDump]
    left_out: list[tuple[NamedDump, str]]


def dump_files(names: Iterable[str]) -> list[NamedDump]:
    """The files whose names tell a rank."""
    known = list(names)
    last = [one for name in known if (one := _read(_LAST, name))]
    word = [_read(_WORD, one.name) or one for one in last]
    return max(last, word, key=_likelihood)  # the first where they are alike


def _likelihood(files: Iterable[NamedDump]) -> tuple[int, int]:
    """How many ranks these are, and how small: a pid or a time is larger."""
    ranks = {one.rank for one in files if one.rank <= MAX_RANK}
    return len(ranks), -max(ranks, default=0)


def _read(pattern: re.Pattern[str], name: str) -> NamedDump | None:
    match = pattern.fullmatch(name)
    if match is None:
        return None
    digits = match["rank"].lstrip("0")[:10] or "0"
    rank = int(digits) if digits.isascii() else MAX_RANK + 1
    return NamedDump(name, match["before"], rank, match["after"])


def choose(files: list[NamedDump], ages: Mapping[str, float]) -> ChosenDumps:
    """One file for each rank. `ages`: by file name, when the newest call of the dump was made; a file that is not in it cannot be read.

    Several series of dumps may lie in one folder, one for each time that the job hung: the newer one counts. A single file beside them does not:
    of several files of one rank it is the one that is named as most others are.
    """
    older = _older(files, ages)
    alike = Counter(one.before for one in files)
    chosen: dict[int, NamedDump] = {}
    left_out: list[tuple[NamedDump, str]] = []
    for one in sorted(files, key=lambda one: (one.name not in ages, -alike[one.before], one.name)):
        if one.rank > MAX_RANK:
            left_out.append((one, TOO_LARGE))
        elif one.series in older:
            left_out.append((one, "left out: newer dumps of these ranks lie beside it"))
        elif one.rank in chosen:
            other = clean(chosen[one.rank].name, 80)
            left_out.append((one, f"left out: {other} is of the same rank"))
        else:
            chosen[one.rank] = one
    return ChosenDumps(sorted(chosen.values(), key=lambda one: one.rank), left_out)


def _older(files: list[NamedDump], ages: Mapping[str, float]) -> set[tuple[str, str]]:
    """The series of which another one has newer dumps of at least half of its ranks."""
    series: dict[tuple[str, str], dict[int, float]] = {}
    of_rank: dict[int, set[tuple[str, str]]] = {}
    for one in files:
        if one.rank <= MAX_RANK and one.name in ages:
            series.setdefault(one.series, {})[one.rank] = ages[one.name]
            of_rank.setdefault(one.rank, set()).add(one.series)
    pairs = {(a, b) for several in of_rank.values() for a in several for b in several if a != b}
    return {a for a, b in pairs if _is_newer(series[b], than=series[a])}


def _is_newer(these: Mapping[int, float], *, than: Mapping[int, float]) -> bool:
    both = these.keys() & than.keys()
    newest, theirs = (max(some[rank] for rank in both) for some in (these, than))
    return 2 * len(both) >= len(than) and newest > theirs
