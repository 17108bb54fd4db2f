"""What may stand as the value of a setting, and what stands there by default, as a cell of a table."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from mldebug.config.schema import SYSTEM_STATE_DIR
from mldebug.core.scalars import members, unwrap
from mldebug.core.units import SECONDS, SIZE, format_duration, format_size

SCALARS = {
    bool: "true, false",
    int: "whole number",
    float: "number",
    Path: "absolute path",
    str: "text",
}


def allowed(kind: Any) -> str:
    """`auto` or a duration over 0s; a list, each a text; a map of texts."""
    plain, meta = unwrap(kind)
    inner = get_args(plain)
    if get_origin(plain) is tuple:
        return f"list: {allowed(inner[0])}"
    if get_origin(plain) is dict:
        return f"map: {allowed(inner[1])}"
    return " or ".join(_one(member, tags) for member, tags in members(plain, meta))


def default(field: msgspec.structs.FieldInfo) -> str:
    """The default as it would be written in the file."""
    if field.required:
        return "must be set"
    if field.default_factory is msgspec.NODEFAULT:
        return f"`{_written(field.default, field.type)}`"
    made = field.default_factory()
    # the one that depends on who asks; root's is told
    return f"`{SYSTEM_STATE_DIR if isinstance(made, Path) else _written(made, field.type)}`"


def _one(kind: Any, meta: list[Any]) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    if kind is type(None):
        return "`null`"
    name = "duration" if SECONDS in meta else "size" if SIZE in meta else SCALARS[kind]
    return " ".join([name, *_bounds(meta)])


def _bounds(meta: list[Any]) -> Iterator[str]:
    for bound in (one for one in meta if isinstance(one, msgspec.Meta)):
        if bound.ge is not None and bound.le is not None:
            yield f"{_number(bound.ge, meta)} to {_number(bound.le, meta)}"
            continue
        for word, limit in (("over", bound.gt), ("from", bound.ge), ("up to", bound.le)):
            if limit is not None:
                yield f"{word} {_number(limit, meta)}"


def _number(value: float, meta: list[Any]) -> str:
    if SECONDS in meta:
        return format_duration(value)
    return (
        format_size(int(value)) if SIZE in meta else f"{value:,g}" if value < 1e6 else f"{value:,}"
    )


def _written(value: Any, kind: Any) -> str:
    marks = [mark for _, meta in members(*unwrap(kind)) for mark in meta]
    if isinstance(value, float) and SECONDS in marks:
        return format_duration(value)
    if isinstance(value, int) and SIZE in marks:
        return format_size(value)
    if isinstance(value, (str, Path)) and str(value):
        return str(value)
    return json.dumps(msgspec.to_builtins(value, enc_hook=str), ensure_ascii=False)
