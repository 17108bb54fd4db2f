"""docs/settings.md, made from the structs that are the configuration: keys, defaults, what is allowed, and the words beside them in the code."""

import inspect
import re
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import msgspec

from fieldvalues import allowed, default
from fieldwords import comments
from mldebug.config.schema import Config
from mldebug.core.plugin_options import PluginKind
from mldebug.core.plugins import options_of, summary
from mldebug.core.scalars import unwrap
from mldebug.hardware.health.thresholds import FILE, Thresholds

HEAD = """# Settings

<!-- Made from mldebug/config/schema.py and the plugins' own settings by
     pytest tests/docs/test_site_pages.py --update-golden
     Do not edit. -->

One YAML file, `mldebug agent --config FILE`; the [example](../deploy/mldebug.yaml) names what is usually changed, and an empty file is a good
one. A key that does not exist is refused, with its line and the legal ones: `mldebug check-config FILE`; `--print` shows what is in force.
`systemctl reload mldebug` (SIGHUP) reads it again.

Durations are written `15s`, `4m`, `1h30m`, sizes `64KiB`, `20GiB`, lists `[a, b]`, maps `{key: value}`. An absolute path begins with `/`.
"""
ENTRIES = (
    "Entries `NAME: {kind: …}`; the name is yours. Beside `kind` stand the settings of that kind:"
)
PLUGIN_KINDS = {"steps": "actions"}  # by key, where the key is not the name of the kind
LIMIT = re.compile(r"(\w+): .*?\S +# (.+)")
HEADING = re.compile(r"# --- ([^:;\n]+).*")


def page() -> str:
    """The whole page."""
    sections = ["\n".join(_section(field)) for field in msgspec.structs.fields(Config)]
    return "\n".join([HEAD, *sections]).rstrip() + "\n"


def _section(field: msgspec.structs.FieldInfo) -> Iterator[str]:
    kind, _ = unwrap(field.type)
    yield f"## {field.name}\n"
    if is_room(field.type):
        yield f"{_sentence(comments(Config)[field.name])} {ENTRIES}\n"
        yield from _plugins(field.name, field.type)
        return
    yield f"{inspect.getdoc(kind)}\n"
    yield from _table(kind)
    for inner in msgspec.structs.fields(kind):
        if is_room(inner.type):
            yield f"`{field.name}.{inner.name}`: {comments(kind)[inner.name]}. {ENTRIES}\n"
            yield from _plugins(inner.name, inner.type)


def _plugins(key: str, kind: Any) -> Iterator[str]:
    room = next(one for one in unwrap(kind)[1] if isinstance(one, PluginKind))
    singular = key.removesuffix("s")
    for name in room.kinds():
        options = options_of(room.load(name))
        yield f"### {singular} {name}\n\n{summary(PLUGIN_KINDS.get(key, key), name)}\n"
        if msgspec.structs.fields(options):
            yield from _table(options)
        else:
            yield "No settings.\n"


def _table(kind: type[msgspec.Struct]) -> Iterator[str]:
    yield "| key | default | value | meaning |\n|---|---|---|---|"
    for cells in rows(kind):
        yield f"| `{cells[0]}` | {' | '.join(_plain(one) for one in cells[1:])} |"
    yield ""


def rows(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """(key, default, value, meaning) of each setting of a struct, those of structs inside it included; rooms are left out."""
    words = _limits() if kind is Thresholds else comments(kind)
    for field in msgspec.structs.fields(kind):
        inner, key = unwrap(field.type)[0], f"{prefix}{field.name}"
        entry = _entry(inner)
        if is_room(field.type):
            continue
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            yield from rows(inner, f"{key}.")
        elif entry is not None:
            yield key, "`{}`", "map: see below", words[field.name]
            yield from rows(entry, f"{key}.NAME.")
        else:
            yield key, default(field), allowed(field.type), words[field.name]


def is_room(kind: Any) -> bool:
    """Do plugins stand there?"""
    return any(isinstance(one, PluginKind) for one in unwrap(kind)[1])


def _entry(kind: Any) -> type[msgspec.Struct] | None:
    """What a map holds, where that is a struct."""
    value = get_args(kind)[1] if get_origin(kind) is dict else None
    return value if isinstance(value, type) and issubclass(value, msgspec.Struct) else None


def _limits() -> dict[str, str]:
    """The words of thresholds.yaml, each with the heading of its part."""
    found: dict[str, str] = {}
    heading = ""
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if title := HEADING.fullmatch(line):
            heading = title[1]
        elif limit := LIMIT.fullmatch(line):
            found[limit[1]] = f"{heading}: {limit[2]}"
    return found


def _plain(words: str) -> str:
    """As a cell: what is no code means no Markdown."""
    parts = words.replace("|", "\\|").split("`")
    parts[::2] = [re.sub(r"[*\[\]]", r"\\\g<0>", part).replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}." if words else ""
