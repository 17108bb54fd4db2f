"""What PyTorch's own analyser printed of Flight Recorder dumps, where people kept that and not the dumps.

Two forms of `torch.distributed.flight_recorder.fr_trace` are read: its findings (`Not all ranks joining collective: sequence number: 7 …`, one block
of `name: value` lines each), and the table of `-j --verbose`, one column for each rank. Both are brought into the shape of
a dump, so that they are judged as dumps are: whom the analyser calls a culprit is not taken over, for it compares all ranks with the
first one. Without `--verbose` a table has no numbers of calls, by which alone ranks can be compared.
"""

import re
from bisect import bisect
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any
from zlib import crc32

from mldebug.core.ranksets import MAX_RANK

Raw = dict[str, Any]
MAX_BYTES = 32 << 20
MAX_BLOCKS = 10_000
MAX_WORLD = 8192  # ranks of one finding
MAX_CALLS = 500_000  # of all ranks together
VERBOSE = "it is a table without the numbers of the calls: print it with --verbose"

_BEGINS = re.compile(
    r"Not all ranks joining collective[:,]? (?:sequence number: )?(?P<missing>\d{1,15})"
    r"|Collective sequence number: (?P<errors>\d{1,15}) has errors"
)
_FIELD = re.compile(
    r"(?P<name>group info|collective|missing ranks|input sizes|output sizes|expected ranks|collective state|error msg): (?P<value>.{1,100000})$"
)
_ERROR = re.compile(r"Culprit rank (?P<rank>\d{1,7}); Error type: (?P<kind>\w{1,60})")
_FOUND = re.compile(
    r"found (?:collective type|input sizes|output sizes|state): '(?P<found>[^']{1,4000})'"
)
_COLUMN = re.compile(r"-{3,}")
_RANK = re.compile(r"Rank (?P<rank>\d{1,7})")
_CELL = re.compile(r"(?P<op>\w{1,60})\((?P<inside>.*?)state=(?P<state>\w{1,20})\)")
_GROUP = re.compile(r"\bpg_name=(?P<name>[^,]{1,200}), pg_description=(?P<about>[^,]{0,200}), ")
_SEQUENCE = re.compile(r"collective_seq_id \| p2p_seq_id=(?P<number>\d{1,15})")
_PAIR = re.compile(r"\bs=(?P<source>\d{1,7}) d=(?P<target>\d{1,7})")
_SIZES = re.compile(r"(?:input|output)_sizes=(\[\]|\[[\[\]\d, ]{0,2000}?\]\])")
_STATES = ("scheduled", "started", "completed")


def is_printout(text: str) -> bool:
    """Whether a text holds what the analyser prints: a finding of it, or its table."""
    return _BEGINS.search(text) is not None or _table(text.splitlines()) is not None


def read_printout(text: str) -> dict[int, Raw]:
    """Return by rank what the printout shows of the rank's dump, with the field names of today's dumps. Raises ValueError
    with the reason where it shows nothing that can be compared.
    """
    lines = text.splitlines()
    found: dict[int, Raw] = {}
    calls_read = 0
    for block in _blocks(lines):
        for rank, call, config in _calls_of(block):
            calls_read += len(call) or 1  # who has made none has a group at least
            if calls_read > MAX_CALLS:
                raise ValueError(f"it tells of more than {MAX_CALLS:,} calls")
            dump = found.setdefault(rank, {"version": "printed", "entries": [], "pg_config": {}})
            dump["entries"] += call
            dump["pg_config"] |= config
    found = found or _calls_of_table(lines)
    if not found:
        raise ValueError("it is no printout of PyTorch's analyser")
    for dump in found.values():
        # from 1 on: earlier calls are not told of
        dump["entries"] = [entry | {"record_id": at} for at, entry in enumerate(dump["entries"], 1)]
    return found


# --- findings ------------------------------------------------------------------------------------------


def _blocks(lines: Iterable[str]) -> list[dict[str, str]]:
    """The fields of each finding, with `number` and whether it is of ranks that are `missing`."""
    found: list[dict[str, str]] = []
    for line in lines:
        if (begins := _BEGINS.search(line)) and len(found) < MAX_BLOCKS:
            found.append({"number": begins["missing"] or begins["errors"]})
        elif found and (field := _FIELD.search(line)):
            found[-1].setdefault(field["name"], field["value"].strip())
    return found


def _calls_of(block: dict[str, str]) -> Iterator[tuple[int, list[Raw], Raw]]:
    """(rank, its calls, the group) for each rank that the finding expects: who is missing has ended the call before."""
    expected, missing = _ranks(block.get("expected ranks", "")), _ranks(block.get("missing ranks", ""))  # fmt: skip
    name, _, about = block.get("group info", "").partition(":")
    if not name or not expected or not block.get("collective"):
        return
    number = int(block["number"])
    config = {name: {"name": name, "desc": about, "ranks": str(sorted(expected))}}
    state = block.get("collective state", "")
    usual = _call(name, about, block["collective"], number, state, _sizes(block, "input sizes"), _sizes(block, "output sizes"))  # fmt: skip
    before = usual | {"collective_seq_id": number - 1, "state": "completed", "retired": True}
    odd = dict(_odd(block.get("error msg", ""), usual))
    for rank in sorted(expected):
        calls = [before] if number > 1 else []
        yield rank, calls if rank in missing else [*calls, odd.get(rank, usual)], config


def _odd(errors: str, usual: Raw) -> Iterator[tuple[int, Raw]]:
    """(rank, its call) for each rank whose call differs from that of the first."""
    marks = [*_ERROR.finditer(errors)]
    for mark, following in zip_longest(marks, marks[1:]):
        text = errors[mark.end() : following.start() if following else None]
        found = _FOUND.search(text)
        value, kind = found["found"] if found else "", mark["kind"]
        if kind == "COLLECTIVE_TYPE_MISMATCH" and value:
            backend = usual["profiling_name"].partition(":")[0]
            yield int(mark["rank"]), usual | {"profiling_name": f"{backend}:{value}"}
        elif kind == "SIZE_OR_SYNTAX_MISMATCH" and value.startswith("["):
            side = "output_sizes" if "found output sizes" in text else "input_sizes"
            yield int(mark["rank"]), usual | {side: _lists(value)}
        elif kind == "COLLECTIVE_STATE_MISMATCH" and value in _STATES:
            yield int(mark["rank"]), usual | {"state": value, "retired": value == "completed"}


def _call(group: str, about: str, name: str, number: int, state: str, given: object, taken: object) -> Raw:  # fmt: skip
    return {
        "process_group": [group, about],
        "pg_id": crc32(group.encode()),
        "collective_seq_id": number,
        "profiling_name": name,
        "input_sizes": given,
        "output_sizes": taken,
        "state": state if state in _STATES else "scheduled",
        "retired": state == "completed",
        "is_p2p": False,
    }


def _ranks(text: str) -> set[int]:
    """`{0, 1, 2}`."""
    found = {int(one) for one in re.findall(r"\d{1,7}", text)[:MAX_WORLD]}
    return {one for one in found if one <= MAX_RANK}


def _sizes(block: dict[str, str], name: str) -> list[list[int]]:
    return _lists(block.get(name, ""))


def _lists(text: str) -> list[list[int]]:
    """`[[4, 8], [2]]`."""
    inner = re.findall(r"\[([\d, ]{0,400})\]", text)[:1000]
    return [[int(one) for one in re.findall(r"\d{1,15}", some)] for some in inner]


# --- the table -----------------------------------------------------------------------------------------


def _table(lines: list[str]) -> int | None:
    """Where the table's line of dashes stands."""
    return next((at for at, line in enumerate(lines[1:], 1) if _RANK.match(lines[at - 1].strip()) and _COLUMN.match(line.strip())), None)  # fmt: skip


def _calls_of_table(lines: list[str]) -> dict[int, Raw]:
    at = _table(lines)
    if at is None:
        return {}
    columns = [match.span() for match in _COLUMN.finditer(lines[at])]
    ranks = [int(match["rank"]) for match in _RANK.finditer(lines[at - 1])]
    if len(ranks) != len(columns):
        return {}
    found: dict[int, Raw] = {rank: {"version": "printed", "entries": []} for rank in ranks}
    for line in lines[at + 1 :]:
        # columns behind the line's end are not looked at: a short file may have a thousand of them, and a million empty lines
        reached = bisect(columns, (len(line), 0))
        for rank, (start, end) in zip(ranks[:reached], columns[:reached], strict=True):
            if cell := _CELL.match(line[start:end].strip()):
                found[rank]["entries"].append(_of_cell(cell))
    return found


def _of_cell(cell: re.Match[str]) -> Raw:
    """The call in a cell. Raises ValueError where it has no number."""
    words = cell["inside"]
    group, sequence, pair = _GROUP.search(words), _SEQUENCE.search(words), _PAIR.search(words)
    if group is None or sequence is None:
        raise ValueError(VERBOSE)
    number = int(sequence["number"])
    sizes = [_lists(part) for part in _SIZES.findall(words)]
    given, taken = (*sizes, [], [])[:2]
    call = _call(group["name"], group["about"], f"nccl:{cell['op']}", number, cell["state"], given, taken)  # fmt: skip
    if pair is None:
        return call
    arrow = f"{pair['source']}->{pair['target']}" if cell["op"] == "send" else f"{pair['target']}<-{pair['source']}"  # fmt: skip
    return call | {"is_p2p": True, "p2p_seq_id": number, "collective_seq_id": -1, "profiling_name": f"nccl:{cell['op']} {arrow}"}  # fmt: skip
