"""Every field of a message between agents with the worst of its kind, one after the other, the rest as it should be.

The fields are those that the message's type has: a new one is tried by itself.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import inspect

from shared.jobs.hostile import WORST

HERE = "@@here@@"
TEXTS = tuple(json.dumps(value[:20_000]) for value in WORST.values())
NUMBERS = ("-1", "0", str(1 << 53), str(1 << 63), "9" * 400, "1e308", "-1e308", "1e-320", "0.5")
DEEP = 6  # levels down to which fields that may be left out are there
ODD = ("null", "true", "{}", "[]", "[" * 2000 + "]" * 2000, '{"a":' * 2000 + "1" + "}" * 2000)


def worst_of(kind: type[msgspec.Struct], right: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Each place of a message of this type, and the message with something bad there. `right`: what other fields must hold, by
    place (`runs.0.key`), for the message to be looked at at all.
    """
    whole = _filled(inspect.type_info(kind), 0)
    for place, value in right.items():
        *above, last = place.split(".")
        _within(whole, above)[_step(_within(whole, above), last)] = value
    for place in list(_places(whole, ())):
        holder, last = _within(whole, place[:-1]), place[-1]
        before = holder[last]
        holder[last] = HERE
        text = json.dumps(whole)
        holder[last] = before
        for bad in (*(TEXTS if isinstance(before, str) else NUMBERS), *ODD):
            yield ".".join(map(str, place)), text.replace(json.dumps(HERE), bad, 1).encode(errors="replace")  # fmt: skip


def _filled(kind: inspect.Type, depth: int) -> Any:
    """A value of this type in which nothing is left out, as JSON has it."""
    match kind:
        case inspect.StructType(fields=fields):
            wanted = (one for one in fields if one.required or depth <= DEEP)
            return {one.encode_name: _filled(one.type, depth + 1) for one in wanted}
        case inspect.UnionType(types=types):
            return _filled(next(one for one in types if not isinstance(one, inspect.NoneType)), depth)  # fmt: skip
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item) | inspect.FrozenSetType(item_type=item):  # fmt: skip
            return [_filled(item, depth + 1)]
        case inspect.TupleType(item_types=items):
            return [_filled(item, depth + 1) for item in items]
        case inspect.DictType(key_type=key, value_type=value):
            return {str(_filled(key, depth + 1)): _filled(value, depth + 1)}
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.EnumType(cls=cls):
            return next(iter(cls)).value
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.BoolType():
            return False
    return "x"


def _places(value: Any, above: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The ways to all values in it, those that hold others too."""
    if above:
        yield above
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()  # fmt: skip
    for name, one in inside:
        yield from _places(one, (*above, name))


def _within(value: Any, place: Any) -> Any:
    for name in place:
        value = value[_step(value, name)]
    return value


def _step(holder: Any, name: Any) -> Any:
    return int(name) if isinstance(holder, list) else name
