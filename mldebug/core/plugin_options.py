"""The part of the configuration that names plugins: entries by name, each with its `kind` (which plugin) and that plugin's own
options.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec


class Plugin(msgspec.Struct, frozen=True):
    """An entry of the configuration that uses a plugin: the plugin's name (`kind`) and its options."""

    kind: str
    options: Any


class PluginModule(Protocol):
    """What a plugin file must have for its options to be read: a struct `Options`.

    It may also have `problems(options)`, which yields (field, what is wrong with its value) for rules that types cannot express.
    """

    Options: type[msgspec.Struct]


class PluginKind(msgspec.Struct, frozen=True):
    """Annotation for a config field `dict[str, Plugin]`: how the plugins that it may name are listed (`kinds`) and imported
    (`load`).
    """

    kinds: Callable[[], list[str]]
    load: Callable[[str], Any]  # a PluginModule


def problems(module: PluginModule, options: msgspec.Struct) -> Iterator[tuple[str, str]]:
    """What is wrong with a plugin's options, as (field, what is wrong): what the function `problems` in the plugin's own module finds;
    nothing where it has none.
    """
    check = getattr(module, "problems", None)
    if check is not None:
        yield from check(options)
