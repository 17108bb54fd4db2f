"""Reads protocol buffers field by field, without their definitions: enough for a few numbers and names of a message. Pure."""

import struct
from collections.abc import Iterator

Value = int | bytes  # fixed-size fields as their bytes
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}
MAX_FIELDS = 10_000  # of one message


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yield (number, value) of each field of a protocol buffer message, in order; stops where the bytes are no such message."""
    at = 0
    for _ in range(MAX_FIELDS):
        if at >= len(message):
            return
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        value: Value
        if kind == _VARINT:
            value, at = _varint(message, at)
        elif kind == _BYTES:
            size, at = _varint(message, at)
            value, at = message[at : at + size], at + size
        elif kind in _SIZES:
            value, at = message[at : at + _SIZES[kind]], at + _SIZES[kind]
        else:
            return
        if at > len(message) or number == 0:
            return
        yield number, value


def signed(value: Value) -> int | None:
    """The value of an int64 field as a number; None for another kind of field."""
    if not isinstance(value, int):
        return None
    return value - (1 << 64) if value >> 63 else value


def text(value: Value) -> str:
    """The value of a string field of a protocol buffer message, cut to 200 characters; "" for another kind of field."""
    return value[:800].decode(errors="replace")[:200] if isinstance(value, bytes) else ""


def float32(value: Value) -> float | None:
    """The value of a float field as a number; None for another kind of field."""
    if not isinstance(value, bytes) or len(value) != 4:
        return None
    return float(struct.unpack("<f", value)[0])


def float64(value: Value) -> float | None:
    """The value of a double field as a number; None for another kind of field."""
    if not isinstance(value, bytes) or len(value) != 8:
        return None
    return float(struct.unpack("<d", value)[0])


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A varint and the place behind it; a place behind the end where it is cut or too long."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
    return 0, len(message) + 1
