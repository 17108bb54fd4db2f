"""What all types of the model share."""

from functools import cache
from typing import Any

import msgspec


class Noun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of measured data: compact as JSON (default values are left out), unknown fields are ignored when it is read."""


class Spoken(msgspec.Struct, frozen=True, kw_only=True):
    """Base of report data: every field is always written."""


def shared_fields(source: msgspec.Struct, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields of `source` that `kind` has with the same name and type, by name, to make one of it."""
    return {name: getattr(source, name) for name in _common(type(source), kind)}


@cache
def _common(source: type[msgspec.Struct], kind: type[msgspec.Struct]) -> tuple[str, ...]:
    wanted = {field.name: field.type for field in msgspec.structs.fields(kind)}
    own = msgspec.structs.fields(source)
    return tuple(field.name for field in own if wanted.get(field.name) == field.type)
