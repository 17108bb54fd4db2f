"""The two base classes of the types for measured data and for report data, and the fields that two types share."""

from functools import cache
from typing import Any

import msgspec


class MeasuredData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the types for measured data: as JSON fields with default values are left out, and unknown fields are ignored on
    reading.
    """


class ReportData(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the types for report data: as JSON every field is written."""


def shared_fields(source: msgspec.Struct, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The values of the fields that `source` and the type `kind` share by name and type: {name: value}, to make a `kind` of."""
    return {name: getattr(source, name) for name in _common(type(source), kind)}


@cache
def _common(source: type[msgspec.Struct], kind: type[msgspec.Struct]) -> tuple[str, ...]:
    wanted = {field.name: field.type for field in msgspec.structs.fields(kind)}
    own = msgspec.structs.fields(source)
    return tuple(field.name for field in own if wanted.get(field.name) == field.type)
