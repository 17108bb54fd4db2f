"""Strict YAML: text in, a frozen struct out, or every problem at once with its line.

The struct is the schema: field names are the keys, defaults are the defaults. Understood field types: `bool`, `int`,
`float`, `str`, `Path` (absolute), `Literal[...]`, `Duration`, `Size`, `None`, unions of these, `tuple[X, ...]`,
`dict[str, X]`, plugins (`mldebug.core.plugin_options`) and nested structs; bounds come from `Annotated[X, msgspec.Meta(ge=…, gt=…, le=…)]`.
A string field takes a scalar as it is written, so `no` and `3.10` need no quotes. Aliases, tags and merge keys are
refused, and so is a document deeper than `MAX_DEPTH`: nothing here can grow beyond the file itself.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, ClassVar, TypeVar, cast, get_args, get_origin

import msgspec
import yaml

from mldebug.core.errors import ConfigError
from mldebug.core.plugin_options import Plugin, PluginKind, problems
from mldebug.core.plugins import options_of
from mldebug.core.redact import clean
from mldebug.core.scalars import OutOfBoundsError, convert, describe, members, unwrap

MAX_DEPTH = 20
YAML_TAG = "tag:yaml.org,2002:"
EMPTY = YAML_TAG + "null"
SEE_KEYS = "see every key and its default with: mldebug check-config --print"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
NO_VALUE = "has no value; remove the line to get the default"
PLAIN_TAGS = frozenset(
    YAML_TAG + name for name in ("str", "int", "float", "bool", "null", "timestamp", "value")
)

T = TypeVar("T", bound=msgspec.Struct)


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every section of the configuration. `RENAMED`: old keys with their new names, for error messages."""

    RENAMED: ClassVar[Mapping[str, str]] = {}

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, what is wrong with its value) for rules that the types of the fields cannot express."""
        yield from ()


def parse(text: str, file: str, kind: type[T]) -> T:
    """The configuration in the YAML `text`, as a struct of type `kind`. Raises ConfigError with every problem as `file:line:
    section.key: what`.
    """
    try:
        node = _LineLoader(text).get_single_node()
    except yaml.YAMLError as error:
        raise ConfigError([_syntax_problem(error, file, text)]) from None
    reader = _SectionReader(file)
    value = kind() if node is None else reader.section(node, kind, "")
    if reader.problems:
        raise ConfigError([sentence for _, sentence in sorted(reader.problems)], SEE_KEYS)
    return value


class _LineLoader(yaml.SafeLoader):
    """Composes nodes with their line numbers; refuses aliases and deep nesting."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = cast(Any, self).peek_event()  # its stub has no types
        mark = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            raise yaml.MarkedYAMLError(None, None, "aliases (*name) are not allowed", mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(None, None, f"more than {MAX_DEPTH} levels deep", mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _SectionReader:
    """Turns nodes into values and collects what is wrong with them, as (line, sentence)."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[tuple[int, str]] = []

    def section(self, node: yaml.Node, kind: type[T], path: str, beside: tuple[str, ...] = ()) -> T:
        """Read one mapping into a struct; an empty one means its defaults. `beside`: keys read by the caller."""
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        values: dict[str, Any] = {}
        for key, key_node, value_node in self._entries(node, path):
            if key not in fields:
                self._refuse(key_node, _join(path, key), _unknown(key, [*beside, *fields], kind))
                continue
            problems_before = len(self.problems)
            value = self.value(value_node, fields[key].type, _join(path, key))
            if len(self.problems) == problems_before:
                values[key] = value
        made = kind(**values)
        if isinstance(made, Section):
            for field, problem in made.problems():
                self._refuse(_place(node, field), _join(path, field), problem)
        return made

    def value(self, node: yaml.Node, kind: Any, path: str) -> Any:
        """Read one value of any understood type; None after a refusal."""
        plain, meta = unwrap(kind)
        if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
            return self.section(node, plain, path)
        if get_origin(plain) is tuple:
            return self._sequence(node, get_args(plain)[0], path)
        if get_origin(plain) is dict:
            item = get_args(plain)[1]
            plugin_kind = next((mark for mark in meta if isinstance(mark, PluginKind)), None)
            if plugin_kind is not None:
                return self._plugins(node, plugin_kind, path)
            return {
                key: self.value(value, item, _join(path, key))
                for key, _, value in self._entries(node, path)
            }
        return self._scalar(node, plain, meta, path)

    def _plugins(self, node: yaml.Node, plugin_kind: PluginKind, path: str) -> dict[str, Plugin]:
        found: dict[str, Plugin] = {}
        for name, key_node, value_node in self._entries(node, path):
            if not NAME.fullmatch(name):
                problem = "a name has letters, digits, - and _, and at most 40 of them"
                self._refuse(key_node, _join(path, name), problem)
            elif plugin := self._plugin(value_node, plugin_kind, _join(path, name)):
                found[name] = plugin
        return found

    def _plugin(self, node: yaml.Node, plugin_kind: PluginKind, path: str) -> Plugin | None:
        kinds = ", ".join(plugin_kind.kinds())
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        own = [pair for pair in pairs if pair[0].value == "kind"]
        if not own:
            self._refuse(node, path, f"has no kind; write kind: with one of: {kinds}")
            return None
        if len(own) > 1:
            self._refuse(own[1][0], f"{path}.kind", "stands here twice")
            return None
        kind = own[0][1]
        if kind.value not in plugin_kind.kinds():
            self._refuse(kind, f"{path}.kind", f"{_show(kind)} is no kind; choose from: {kinds}")
            return None
        module = plugin_kind.load(kind.value)
        rest = [pair for pair in pairs if pair is not own[0]]
        settings = yaml.MappingNode(node.tag, rest, node.start_mark, node.end_mark)
        before = len(self.problems)
        options = self.section(settings, options_of(module), path, ("kind",))
        if len(self.problems) == before:
            for field, problem in problems(module, options):
                where = _join(path, field) if field else path
                self._refuse(_place(node, field), where, problem)
        return Plugin(kind.value, options)

    def _sequence(self, node: yaml.Node, item: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(node, yaml.SequenceNode):
            self._refuse(node, path, "must be a list")
            return ()
        return tuple(
            self.value(child, item, f"{path}[{index}]") for index, child in enumerate(node.value)
        )

    def _scalar(self, node: yaml.Node, kind: Any, meta: list[Any], path: str) -> Any:
        if not isinstance(node, yaml.ScalarNode) or node.tag not in PLAIN_TAGS:
            return self._refuse(node, path, f"must be {describe(kind, meta)}")
        if node.tag == EMPTY:
            may_be_null = NoneType in [member for member, _ in members(kind, meta)]
            return None if may_be_null else self._refuse(node, path, NO_VALUE)
        problems: list[ValueError] = []
        for member, member_meta in members(kind, meta):
            try:
                return convert(node.value, member, member_meta)
            except ValueError as error:
                problems.append(error)
        return self._refuse(
            node, path, _best(problems, f"{_show(node)} is not {describe(kind, meta)}")
        )

    def _entries(self, node: yaml.Node, path: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        if isinstance(node, yaml.ScalarNode) and node.tag == EMPTY:
            return
        if not isinstance(node, yaml.MappingNode) or node.tag != YAML_TAG + "map":
            self._refuse(node, path, "must hold `key: value` lines")
            return
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None or key_node.tag not in PLAIN_TAGS:
                self._refuse(key_node, path, f"{_show(key_node)} cannot be a key")
            elif key in lines:
                self._refuse(
                    key_node, _join(path, key), f"stands here twice, first in line {lines[key]}"
                )
            else:
                lines[key] = _line(key_node)
                yield key, key_node, value_node

    def _refuse(self, node: yaml.Node, path: str, problem: str) -> None:
        where = f"{self.file}:{_line(node)}: "
        self.problems.append(
            (_line(node), where + (f"{clean(path, 80)}: " if path else "") + problem)
        )


def _place(node: yaml.Node, field: str) -> yaml.Node:
    """Where a field (`pattern`, `patterns[1]`) of a mapping stands; the mapping itself where it does not."""
    name, _, index = field.rstrip("]").partition("[")
    for key, value in node.value:
        if key.value == name:
            return value.value[int(index)] if index else value  # type: ignore[no-any-return]
    return node


def _best(problems: list[ValueError], otherwise: str) -> str:
    near = [problem for problem in problems if isinstance(problem, OutOfBoundsError)]
    return str(problems[0]) if len(problems) == 1 else str(near[0]) if near else otherwise


def _unknown(key: str, legal: list[str], kind: type[msgspec.Struct]) -> str:
    renamed = kind.RENAMED.get(key) if issubclass(kind, Section) else None
    if renamed:
        return f"is now called {renamed!r}; write that"
    near = difflib.get_close_matches(key.replace("-", "_").lower(), legal, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"there is no such key; {hint}legal here: {', '.join(legal)}"


def _syntax_problem(error: yaml.YAMLError, file: str, text: str) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return f"{file}:{line}: this is not YAML: there is a control character in it"
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "cannot be read"
    if "escape character" in problem:
        problem += "; in \"…\" write each backslash twice, or use '…'"
    if "'\\t'" in problem:
        problem = "a tab stands where YAML allows only spaces"
    if "expected a single document" in str(error):
        problem = "only one document is allowed, and here a second one starts"
    return f"{file}:{mark.line + 1 if mark else 1}: this is not YAML: {clean(problem)}"


def _join(path: str, key: str) -> str:
    return f"{path}.{clean(key, 40)}" if path else clean(key, 40)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _show(node: yaml.Node) -> str:
    return (
        repr(clean(node.value, 40)) if isinstance(node, yaml.ScalarNode) else "a list or a mapping"
    )
