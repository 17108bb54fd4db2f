"""The rank table as compact columns: what JavaScript sorts, filters and shows; some 40 bytes a rank."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from mldebug.core.report_model import RankView
from mldebug.incidents.report.rank_map import NODE_GAP, PITCH, Kind, kind_indices
from mldebug.incidents.report.steps import step_words


def data(ranks: Sequence[RankView], legend: Sequence[Kind]) -> dict[str, Any]:
    """Return plain data; words are stored once and columns of them as `[index, times, …]`."""
    words: dict[str, int] = {}
    return {
        "pitch": PITCH,
        "gap": NODE_GAP,
        "kinds": [[kind.name, kind.role, kind.letter, kind.css] for kind in legend],
        "rank": _or_range([one.rank for one in ranks]),
        "count": len(ranks),
        "pid": [one.pid or 0 for one in ranks],
        "cpu": [-1 if one.cpu_ratio is None else round(one.cpu_ratio * 100) for one in ranks],
        "kind": _runs(kind_indices(ranks, legend)),
        "group": _runs(-1 if one.group is None else one.group for one in ranks),
        "culprits": [index for index, one in enumerate(ranks) if one.culprit],
        "node": _words((one.node for one in ranks), words),
        "state": _words((one.state for one in ranks), words),
        "step": _words((step_words(one) for one in ranks), words),
        "collective": _words((one.last_collective for one in ranks), words),
        "doing": _words((one.doing for one in ranks), words),
        "words": list(words),
    }


def _or_range(numbers: list[int]) -> list[int] | None:
    """None stands for 0, 1, 2 …"""
    return None if numbers == list(range(len(numbers))) else numbers


def _words(column: Iterable[str], words: dict[str, int]) -> list[int]:
    return _runs(words.setdefault(text, len(words)) for text in column)


def _runs(column: Iterable[int]) -> list[int]:
    return [number for value, run in groupby(column) for number in (value, sum(1 for _ in run))]
