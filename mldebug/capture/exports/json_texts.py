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

_RANK_KEYS = ("rank", "global_rank", "globalrank", "process_index")
_HOST_KEYS = ("host", "hostname", "node", "node_name", "pod", "pod_name")
_OF_RANK = re.compile(r"(?:global_?)?rank[ _:=-]?(\d{1,7})|(\d{1,7})", re.IGNORECASE)
# A name of a host as a key, and no `second`, `attempt_2`, `12:05`: other looks at the same ranks
_HOST_NAME = re.compile(
    r"(?:[a-z\d-]{0,40}[-_])?(?:node|host|gpu|pod|worker|server|ip|dgx|hgx|compute|trainer)[\w.-]{0,200}\d[\w.-]{0,50}|\d{1,3}(?:[.-]\d{1,3}){3}|[a-z][\w-]{0,62}(?:\.[\w-]{1,62}){2,8}",
    re.IGNORECASE,
)
_PID = re.compile(r"(?:process|pid)[ :=#]{1,3}(\d+)\b", re.IGNORECASE)
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
        ranks = _ranks_by_key(value, bare=not here.rank)
        by_host = _is_by_host(value)
        for name, one in value.items():
            own = here._replace(rank=ranks.get(name, here.rank))
            own = own._replace(host=_NO_NAME.sub("-", name)) if by_host else own
            yield from _texts(one, own, depth + 1)


def _ranks_by_key(value: Mapping[str, Any], bare: bool) -> dict[str, str]:
    """Keys that are ranks: `rank_3`; with `bare` also numbers alone that are no pids, since they are about as many as the largest
    says, and no text below them calls them that.
    """
    found = {name: match for name in value if (match := _OF_RANK.fullmatch(name))}
    numbers = [int(match[2]) for match in found.values() if match[2]]
    dense = bare and len(numbers) == len(value) and max(numbers, default=0) < 2 * len(numbers) + 8
    dense = dense and not any(_has_pid(one, name) for name, one in value.items())
    return {name: match[1] or match[2] for name, match in found.items() if match[1] or dense}


def _is_by_host(value: Mapping[str, Any]) -> bool:
    """Whether the keys are hosts: they have such names, and below two of them stand the same local ranks."""
    if not all(map(_HOST_NAME.fullmatch, value)):
        return False
    below = [_ranks_by_key(one, bare=True) for one in value.values() if isinstance(one, dict)]
    every = [rank for ranks in below for rank in ranks.values()]
    return len(below) == len(value) and len(set(every)) < len(every)


def _has_pid(value: Any, pid: str) -> bool:
    """Whether a text right here, or one in a mapping, begins with this number of a process."""
    texts = value.values() if isinstance(value, dict) else (value,)
    return any(
        isinstance(one, str) and any(found[1] == pid for found in _PID.finditer(one, 0, 200))
        for one in texts
    )


def _number(value: Mapping[str, Any]) -> str:
    found = (str(one) for name, one in value.items() if name.lower() in _RANK_KEYS and isinstance(one, int | str))  # fmt: skip
    return next((one for one in found if re.fullmatch(r"\d{1,7}", one)), "")


def _host(value: Mapping[str, Any]) -> str:
    found = (one for name, one in value.items() if name.lower() in _HOST_KEYS and isinstance(one, str))  # fmt: skip
    return _NO_NAME.sub("-", next(found, "")).strip("-._")[:200]
