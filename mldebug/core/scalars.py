"""Single values in the configuration: says in words what a type allows, and converts text to it."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from mldebug.core.redact import clean
from mldebug.core.units import (
    SECONDS,
    SIZE,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class OutOfBoundsError(ValueError):
    """The value has the right type, but is too small or too large for the setting."""


def describe(kind: Any, meta: list[Any]) -> str:
    """The values that a setting may have, as a phrase for the end of an error: `'auto' or a duration such as 15s`."""
    return " or ".join(_describe_one(member, tags) for member, tags in members(kind, meta))


def _written(bound: float, meta: list[Any]) -> str:
    if SECONDS in meta:
        return format_duration(bound)
    return format_size(int(bound)) if SIZE in meta else f"{bound:g}"


def _describe_one(kind: Any, meta: list[Any]) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(repr(choice) for choice in get_args(kind))
    if SECONDS in meta:
        return "a duration such as 15s, 4m or 1h30m"
    if SIZE in meta:
        return "a size such as 20GiB"
    words = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        Path: "an absolute path",
        NoneType: "null",
    }
    return words.get(kind, "a text")


def convert(text: str, kind: Any, meta: list[Any]) -> Any:
    """The value of type `kind` that `text` stands for. Raises ValueError that says what is wrong. `meta`: the annotations of the
    type.
    """
    if not text.isprintable():
        raise ValueError(f"{clean(text, 40)!r} has control characters in it")
    value = _convert_text(text, kind, meta)
    _check_bounds(text, value, meta)
    return value


def _convert_text(text: str, kind: Any, meta: list[Any]) -> Any:
    shown = repr(clean(text, 40))
    if SECONDS in meta:
        return parse_duration(text)
    if SIZE in meta:
        return parse_size(text)
    if get_origin(kind) is Literal and text in get_args(kind):
        return text
    if kind is bool and text.lower() in TRUTH:
        return TRUTH[text.lower()]
    if kind is int and re.fullmatch(r"[-+]?[0-9]{1,18}", text):
        return int(text)
    if kind is float and re.fullmatch(
        r"[-+]?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][-+]?[0-9]{1,2})?", text
    ):
        return float(text)
    if kind is Path and text.startswith("/"):
        return Path(text)
    if kind is str:
        return text
    raise ValueError(f"{shown} is not {_describe_one(kind, meta)}")


def _check_bounds(text: str, value: Any, meta: list[Any]) -> None:
    for bound in (item for item in meta if isinstance(item, msgspec.Meta)):
        if bound.gt is not None and value <= bound.gt:
            raise OutOfBoundsError(
                f"{text} is too small; it must be more than {_written(bound.gt, meta)}"
            )
        if bound.ge is not None and value < bound.ge:
            raise OutOfBoundsError(
                f"{text} is too small; the smallest is {_written(bound.ge, meta)}"
            )
        if bound.le is not None and value > bound.le:
            raise OutOfBoundsError(
                f"{text} is too large; the largest is {_written(bound.le, meta)}"
            )
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{text} is not a number")


def unwrap(kind: Any) -> tuple[Any, list[Any]]:
    """Split `Annotated[X, ...]` into X and its annotations."""
    if get_origin(kind) is Annotated:
        plain, *meta = get_args(kind)
        return plain, meta
    return kind, []


def members(kind: Any, meta: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Each type that a union allows, with its annotations; for other types the type itself."""
    if get_origin(kind) not in (Union, UnionType):
        yield kind, meta
        return
    for member in get_args(kind):
        plain, own = unwrap(member)
        yield plain, own + meta
