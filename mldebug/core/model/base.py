"""What all types of the model share."""

import msgspec


class Noun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of measured data: compact as JSON (default values are left out), unknown fields are ignored when it is read."""


class Spoken(msgspec.Struct, frozen=True, kw_only=True):
    """Base of report data: every field is always written."""
