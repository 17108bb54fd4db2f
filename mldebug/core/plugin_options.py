"""A section of plugins: entries named by their key, each with its `kind` and that kind's own settings beside it."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec


class Plugin(msgspec.Struct, frozen=True):
    """One entry: which plugin, and its `Options`."""

    kind: str
    options: Any


class PluginModule(Protocol):
    """The part of a plugin file that reading its settings needs.

    It may also have `problems(options)`, which yields (field, what is wrong with its value) for what no type can say.
    """

    Options: type[msgspec.Struct]


class PluginKind(msgspec.Struct, frozen=True):
    """Annotates a `dict[str, Plugin]`: the plugins that may stand there."""

    kinds: Callable[[], list[str]]
    load: Callable[[str], Any]  # a PluginModule


def problems(module: PluginModule, options: msgspec.Struct) -> Iterator[tuple[str, str]]:
    """What the plugin itself finds wrong in its options."""
    check = getattr(module, "problems", None)
    if check is not None:
        yield from check(options)
