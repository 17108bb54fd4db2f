"""Texts of stacks inside JSON, as tools of clusters keep them: `[{"rank": 3, "stack": "Process 17: …\\n…"}]`, `{"rank_3": "…"}`. Pure.

Unlike an export of a collector (`mldebug.capture.exports.log_exports`) a value is a whole dump, and not a line.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from mldebug.capture.exports.log_exports import decoded

MAX_DEPTH = 6
MAX_TEXTS = 100_000
MIN_LINES = 2  # of stacks in a text

_RANK_KEYS = ("rank", "global_rank", "globalrank", "process_index", "process_id")
_HOST_KEYS = ("host", "hostname", "node", "node_name", "pod", "pod_name")
_OF_RANK = re.compile(r"(?:global_?)?rank[ _:=-]?(\d{1,7})|(\d{1,7})", re.IGNORECASE)
_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


class _Whose(NamedTuple):
    """Of whom the values here are: what the keys above and beside them say."""

    rank: str = ""
    host: str = ""


def texts_inside(text: str, known: Callable[[str], bool]) -> str:
    """The texts of stacks in JSON or JSON lines, one after the other, each below headings with its host and rank; the text itself where there are none.

    `known` decides whether a line is one of stacks.
    """
    if text.lstrip("\ufeff \t\r\n")[:1] not in ("{", "["):
        return text
    whole = decoded(text)
    values = [whole] if whole is not None else [decoded(line) for line in text.split("\n")]
    found: list[str] = []
    for value in values:
        for whose, inner in _texts(value, _Whose(), 0):
            if sum(map(known, inner.split("\n", 200)[:200])) >= MIN_LINES:
                found.append(_below_headings(whose, inner))
    return "\n".join(found[:MAX_TEXTS]) if found else text


def _below_headings(whose: _Whose, text: str) -> str:
    host = f"== host {whose.host} ==\n" if whose.host else ""
    rank = f"== rank {whose.rank} ==\n" if whose.rank else ""
    return f"{host}{rank}{text}\n"


def _texts(value: Any, whose: _Whose, depth: int) -> Iterator[tuple[_Whose, str]]:
    """All texts of several lines below a value, with whom they are of."""
    if isinstance(value, str) and value.count("\n") >= MIN_LINES:
        yield whose, value
    elif depth < MAX_DEPTH and isinstance(value, list):
        for one in value:
            yield from _texts(one, whose, depth + 1)
    elif depth < MAX_DEPTH and isinstance(value, dict):
        here = _Whose(_number(value) or whose.rank, _host(value) or whose.host)
        ranks = _ranks_by_key(value)
        for name, one in value.items():
            own = here._replace(rank=ranks[name]) if name in ranks else here
            yield from _texts(one, own, depth + 1)


def _ranks_by_key(value: Mapping[str, Any]) -> dict[str, str]:
    """Keys that are ranks: `rank_3`, or bare numbers that are no pids, since they are about as many as the largest says."""
    bare = [int(name) for name in value if name.isascii() and name.isdigit() and len(name) < 8]
    dense = len(bare) == len(value) and max(bare, default=0) < 2 * len(bare) + 8
    found = {name: _OF_RANK.fullmatch(name) for name in value}
    return {name: match[1] or match[2] for name, match in found.items() if match and (match[1] or dense)}  # fmt: skip


def _number(value: Mapping[str, Any]) -> str:
    found = (str(one) for name, one in value.items() if name.lower() in _RANK_KEYS and isinstance(one, int | str))  # fmt: skip
    return next((one for one in found if re.fullmatch(r"\d{1,7}", one)), "")


def _host(value: Mapping[str, Any]) -> str:
    found = (one for name, one in value.items() if name.lower() in _HOST_KEYS and isinstance(one, str))  # fmt: skip
    return _NO_NAME.sub("-", next(found, "")).strip("-._")[:200]
