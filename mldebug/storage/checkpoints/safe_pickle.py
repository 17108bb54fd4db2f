"""The objects that a pickle would make, as plain records: nothing is imported or called, and no number in the file sets a size of memory.

`pickletools` cuts a pickle into operations; the machine below runs those that hold data. A class is
its name, an object its arguments and its state. Dicts are lists of pairs, since hashing a deeply
nested key could exhaust the stack.
"""

import pickletools
from typing import Any

MAX_BYTES = 2 << 20
MAX_STEPS = 600_000
MAX_FIELDS = 64  # of one object

Pairs = list[tuple[Any, Any]]


class PickledObject:
    """A call that unpickling would make, recorded and not made: which callable, with which arguments and state."""

    __slots__ = ("name", "state")

    def __init__(self, name: str) -> None:
        self.name = name  # "torch.distributed.checkpoint.metadata.Metadata"
        self.state: Any = None

    def get(self, key: str) -> Any:
        """The value of a key in the object's state; None where the state is no dict or has no such key."""
        return lookup(self.state, key)


class _Name(str):
    """The name of a class or function."""

    __slots__ = ()


class _Pairs(list[tuple[Any, Any]]):
    """A dict."""


def lookup(pairs: Any, key: str) -> Any:
    """The last value of a key in a dict (a list of pairs); None for a key that its last `MAX_FIELDS` pairs lack, or where `pairs` is no such
    list. A pickle may give one long dict to a hundred thousand objects.
    """
    found = pairs[-MAX_FIELDS:] if isinstance(pairs, _Pairs) else ()
    return next((value for name, value in reversed(found) if isinstance(name, str) and name == key), None)  # fmt: skip


def pickled_objects(data: bytes) -> list[PickledObject]:
    """All objects of a pickle, in the order in which they are made.

    Raises ValueError for data that is not understood.
    """
    if len(data) > MAX_BYTES:
        raise ValueError("too large")
    machine = _Machine()
    try:
        for count, (operation, argument, _) in enumerate(pickletools.genops(data)):
            if count > MAX_STEPS:
                raise ValueError("too many operations")
            machine.step(operation.name, argument)
    except (IndexError, KeyError, TypeError, AttributeError, UnicodeError, MemoryError) as error:
        raise ValueError(f"malformed: {type(error).__name__}") from error
    return machine.made


_MARK = object()
_PUSH = frozenset(
    [
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "UNICODE",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
    ]
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NOTHING = frozenset(("PROTO", "FRAME", "STOP"))


class _Machine:
    """The stack and the memo of one pickle."""

    def __init__(self) -> None:
        self.made: list[PickledObject] = []
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Carry out one operation; ValueError for one that holds no data."""
        if name in _PUSH:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name == "MARK":
            self._stack.append(_MARK)
        elif name in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[len(self._memo) if name == "MEMOIZE" else int(argument)] = self._stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self._stack.append(self._memo[int(argument)])
        elif name not in _NOTHING:
            self._shape(name, argument)

    def _shape(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name == "POP":
            stack.pop()
        elif name == "POP_MARK":
            self._since_mark()
        elif name == "DUP":
            stack.append(stack[-1])
        elif name.startswith("EMPTY_"):
            stack.append({"TUPLE": (), "LIST": [], "DICT": _Pairs(), "SET": []}[name[6:]])
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[5:])
            stack[-count:] = [tuple(stack[-count:])]
        elif name in ("TUPLE", "LIST", "FROZENSET"):
            stack.append(tuple(self._since_mark()) if name == "TUPLE" else self._since_mark())
        elif name == "DICT":
            stack.append(_Pairs(_paired(self._since_mark())))
        else:
            self._grow(name, argument)

    def _grow(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in ("APPEND", "SETITEM"):
            count = 1 if name == "APPEND" else 2
            items = [stack.pop() for _ in range(count)][::-1]
            self._extend(items, pairs=name == "SETITEM")
        elif name in ("APPENDS", "ADDITEMS", "SETITEMS"):
            self._extend(self._since_mark(), pairs=name == "SETITEMS")
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            parts = argument.split(" ") if name == "GLOBAL" else [stack.pop(), stack.pop()][::-1]
            stack.append(_Name(".".join(part[:200] for part in map(_text, parts))))
        elif name in ("REDUCE", "NEWOBJ", "NEWOBJ_EX"):
            for _ in range(2 if name == "NEWOBJ_EX" else 1):
                stack.pop()
            self._make(stack.pop())
        elif name == "BUILD":
            state = stack.pop()
            if isinstance(stack[-1], PickledObject):
                stack[-1].state = state
        else:
            raise ValueError(f"{name} holds no data")

    def _make(self, what: Any) -> None:
        made = PickledObject(str(what) if isinstance(what, _Name) else "")
        self.made.append(made)
        self._stack.append(made)

    def _extend(self, items: list[Any], *, pairs: bool) -> None:
        target = self._stack[-1]
        if isinstance(target, list):  # an object that takes items itself keeps none of them
            target.extend(_paired(items) if pairs else items)

    def _since_mark(self) -> list[Any]:
        items: list[Any] = []
        while (one := self._stack.pop()) is not _MARK:
            items.append(one)
        return items[::-1]


def _text(part: Any) -> str:
    """A name is a text: anything else may hold itself over and over, and its text would have no end."""
    if not isinstance(part, str):
        raise TypeError("a name is no text")
    return part


def _paired(items: list[Any]) -> Pairs:
    return list(zip(items[::2], items[1::2], strict=True))
