"""The plugin registry: where each kind of plugin lives, and how one is loaded by its name.

A plugin is one module, or one package where it needs several files, in a folder of its kind. Its file name is its name
everywhere: in the config, in metrics, in documents. Names that begin with `_` are shared code, not plugins. Nobody imports a
plugin by an import statement, so the library never depends on the packages above it, and only what is asked for is imported.

Each plugin has `create(options)`, annotated with the Protocol of its kind, and, where it has settings, a struct `Options`.
"""

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import msgspec

from mldebug.core.errors import UsageError

# By kind: the folders of its plugins, or a single module that is one. A folder inside another one stands here too: else it would
# be a plugin that is a package.
PACKAGES: dict[str, tuple[str, ...]] = {
    "actions": ("mldebug_agents.alerts.actions",),
    "channels": ("mldebug_exporters.channels",),
    "checkpoints": ("mldebug.storage.checkpoints.layouts",),
    "completions": ("mldebug_agents.cli.completion.values",),
    "commands": (
        "mldebug.cli.commands",
        "mldebug_agents.cli.commands",
        "mldebug_agents.cli.commands.agent",
        "mldebug_agents.cli.commands.capture",
        "mldebug_agents.cli.commands.fleet",
        "mldebug_agents.cli.commands.goodput",
        "mldebug_agents.cli.commands.jobs",
        "mldebug_agents.cli.commands.probes",
        "mldebug_agents.cli.commands.status",
        "mldebug_agents.cli.commands.storage",
        "mldebug_agents.cli.commands.support",
    ),
    "detectors": ("mldebug.diagnosis.detectors",),
    "expositions": ("mldebug_exporters.prometheus",),
    "gpus": ("mldebug_agents.hardware.gpu.vendors",),
    "hub_stores": ("mldebug_agents.fleet.hub.stores",),
    "hub_transports": ("mldebug_agents.fleet.hub.transports",),
    "launchers": ("mldebug_agents.jobs.launchers",),
    "logs": ("mldebug.jobs.logs.formats",),
    "metrics": (
        "mldebug_exporters.metrics",
        "mldebug_exporters.metrics.hardware",
        "mldebug_exporters.metrics.storage",
    ),
    "pages": ("mldebug.web.pages",),
    "probes": ("mldebug_agents.probes.verbs",),
    "schedulers": ("mldebug_agents.jobs.schedulers",),
    "transports": ("mldebug_agents.cluster.transports",),
}
_FOLDERS = frozenset(folder for folders in PACKAGES.values() for folder in folders)


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a plugin without settings."""


def names(kind: str) -> list[str]:
    """Return the sorted names of all plugins of a kind; none of them is imported."""
    return sorted(name for package in PACKAGES[kind] for name in _modules(package))


def modules(kind: str) -> dict[str, str]:
    """By name, the dotted modules of all plugins of a kind; of two with one name the first."""
    found: dict[str, str] = {}
    for package in PACKAGES[kind]:
        found = _modules(package) | found
    return found


def load(kind: str, name: str) -> ModuleType:
    """Import one plugin. Raises UsageError, with the names that exist, where there is none of this name."""
    module = modules(kind).get(name)
    if module is not None:
        return import_module(module)
    raise UsageError(
        f"there is no {kind} plugin named {name!r}", f"choose from: {', '.join(names(kind))}"
    )


def options_of(module: ModuleType) -> type[msgspec.Struct]:
    """Return the struct of a plugin's settings: its `Options`, or `NoOptions` where it has none."""
    options: type[msgspec.Struct] = getattr(module, "Options", NoOptions)
    return options


def create(kind: str, name: str, options: msgspec.Struct | None = None) -> Any:
    """Build one plugin, with its default options where none are given. The result implements the Protocol of its kind."""
    module = load(kind, name)
    return module.create(options_of(module)() if options is None else options)


def create_all(kind: str) -> list[Any]:
    """Build every plugin of a kind with its default options, sorted by name."""
    return [create(kind, name) for name in names(kind)]


def summary(kind: str, name: str, found: Mapping[str, str] | None = None) -> str:
    """The first line of a plugin's module docstring, which is its help text and its row in the documents.

    The plugin is not imported: its docstring is the first constant of its compiled code. `found`: the answer of
    `modules(kind)`, where many are read.
    """
    module = (modules(kind) if found is None else found).get(name)
    text = _docstring(module) if module is not None else load(kind, name).__doc__ or ""
    return text.strip().splitlines()[0]


def _docstring(module: str) -> str:
    """The docstring of a module that is not run for it; "" where it has none."""
    spec = find_spec(module)
    compiled = getattr(spec.loader, "get_code", None) if spec else None
    code = compiled(module) if compiled else None
    return str(code.co_consts[0]) if code and "__doc__" in code.co_names else ""


def _modules(package: str) -> dict[str, str]:
    """By name, the dotted modules of the plugins in a folder; `package` itself where it is a single module."""
    spec = find_spec(package)
    if spec is None:
        return {}
    if spec.submodule_search_locations is None:
        return {package.rpartition(".")[2]: package}
    found = pkgutil.iter_modules(spec.submodule_search_locations)
    modules = {
        each.name: f"{package}.{each.name}" for each in found if not each.name.startswith("_")
    }
    return {name: module for name, module in modules.items() if module not in _FOLDERS}
