"""Checks what comes from elsewhere: a capture for impossible numbers (from a damaged file, or a node that sends false ones), and the JSON
files that a rank's hook writes beside its record.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import inspect

from mldebug.core.model import NodeCapture
from mldebug.core.redact import clean

MAX_WORLD = 1_000_000
MAX_TIME = 4e9  # unix seconds
MAX_NUMBER = 1e15  # of seconds, ratios, degrees: what is counted exactly is a whole number


class HookFile(Protocol):
    """A JSON file that the hook in a training process writes for the agent."""

    @property
    def layout(self) -> int:
        """Number of the layout; 1 today."""


FileType = TypeVar("FileType", bound=HookFile)


def wrong_ranks(ranks: Sequence[int], world: int) -> str:
    """What is wrong with these ranks of a job of `world` ranks, as words that follow a name; "" where nothing is."""
    lowest, highest = min(ranks, default=0), max(ranks, default=0)
    if 0 <= lowest <= highest < world <= MAX_WORLD:
        return ""
    return f"says {world} ranks and shows rank {highest if lowest >= 0 else lowest}"


def wrong_time(at: float) -> str:
    """What is wrong with the time of a capture (unix seconds); "" where nothing is."""
    return "" if 0 <= at < MAX_TIME else f"was taken at {at:g}, which is no time"


def wrong_numbers(capture: NodeCapture) -> str:
    """What is wrong with the times and measures of a capture, as words that follow a name; "" where nothing is."""
    began = (capture.job.started_at, *(rank.started_at for rank in capture.job.ranks))
    times = (capture.taken_at, *began, *(fault.at for fault in capture.faults))
    if wrong := next(filter(None, map(wrong_time, times)), ""):
        return wrong
    if any(abs(one) > MAX_NUMBER for one in floats_of(capture)):
        return "holds a number that cannot be"
    return ""


def floats_of(value: Any) -> Iterator[float]:
    """All floats in a value, at any depth of its structs, tuples and dicts.

    Fields of a struct whose types cannot contain a float are passed over: stacks, which are most of a capture, have none.
    """
    if isinstance(value, float):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in _measuring_fields(type(value)):
            yield from floats_of(getattr(value, name))
    elif isinstance(value, dict):
        for each in value.values():
            yield from floats_of(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from floats_of(each)


@cache
def _measuring_fields(struct: type[msgspec.Struct]) -> tuple[str, ...]:
    """Names of the fields whose type can lead to a float."""
    found = inspect.type_info(struct)
    fields = found.fields if isinstance(found, inspect.StructType) else ()
    return tuple(field.name for field in fields if _measures(field.type))


def _measures(kind: inspect.Type) -> bool:
    """Whether a value of this type may be a float or hold one. What is not known to be without may hold one."""
    left, visited = [kind], {id(kind)}
    while left:
        one = left.pop()
        if not isinstance(one, (*_EXACT, inspect.Metadata, *_HOLDERS)):
            return True
        for part in _parts(one):
            if id(part) not in visited:
                visited.add(id(part))
                left.append(part)
    return False


def _parts(kind: inspect.Type) -> Iterator[inspect.Type]:
    match kind:
        case inspect.Metadata(type=inner):
            yield inner
        case inspect.UnionType(types=several):
            yield from several
        case inspect.StructType(fields=fields):
            yield from (field.type for field in fields)
        case inspect.TupleType(item_types=several):
            yield from several
        case inspect.VarTupleType(item_type=inner) | inspect.ListType(item_type=inner):
            yield inner
        case inspect.SetType(item_type=inner) | inspect.FrozenSetType(item_type=inner):
            yield inner
        case inspect.DictType(key_type=_, value_type=inner):
            yield inner


_EXACT = (
    *(inspect.StrType, inspect.IntType, inspect.BoolType, inspect.NoneType, inspect.BytesType),
    *(inspect.EnumType, inspect.LiteralType),
)
_HOLDERS = (
    *(inspect.UnionType, inspect.StructType, inspect.TupleType, inspect.VarTupleType),
    *(inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.DictType),
)


def decode_hook_file(data: bytes, kind: type[FileType], max_bytes: int) -> FileType:
    """Decode a file of layout 1. Raises ValueError with the reason where it is too large or not what it should be."""
    if len(data) > max_bytes:
        raise ValueError(f"it has {len(data)} bytes, more than {max_bytes}")
    try:
        file = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"it is not what it should be ({clean(str(error))[:200]})") from None
    if file.layout != 1:
        raise ValueError(f"it has layout {file.layout} and not 1")
    return file
