"""Config sections of plugins: entries by name, each with its `kind` and that plugin's own options."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec


class Plugin(msgspec.Struct, frozen=True):
    """An entry of the config: a plugin's name and its options."""

    kind: str
    options: Any


class PluginModule(Protocol):
    """The part of a plugin file that reading its settings needs.

    It may also have `problems(options)`, which yields (field, what is wrong with its value) for what no type can say.
    """

    Options: type[msgspec.Struct]


class PluginKind(msgspec.Struct, frozen=True):
    """Annotates a config field `dict[str, Plugin]`: lists and loads the plugins that it may name."""

    kinds: Callable[[], list[str]]
    load: Callable[[str], Any]  # a PluginModule


def problems(module: PluginModule, options: msgspec.Struct) -> Iterator[tuple[str, str]]:
    """Problems of a plugin's options that its `problems` function finds, as (field, what is wrong)."""
    check = getattr(module, "problems", None)
    if check is not None:
        yield from check(options)
