"""The map of the house: where each kind of plugin lives, and how it is loaded by name.

A room is one or more packages; an inhabitant is one module in it; its file name is its name everywhere (config key,
metric label, docs row). Nobody imports a plugin by an import statement, so no arrow points from the library to the
packages above it, and only what is asked for gets imported.
"""

import pkgutil
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from mldebug.core.errors import UsageError

ROOMS: dict[str, tuple[str, ...]] = {
    "actions": ("mldebug_agents.alerts.actions",),
    "channels": ("mldebug_exporters.channels",),
    "checkpoints": ("mldebug.storage.checkpoints.layouts",),
    "completions": ("mldebug_agents.cli.completion.values",),
    "commands": ("mldebug.cli.commands", "mldebug_agents.cli.commands"),
    "metrics": ("mldebug_exporters.metrics",),
    "tellers": ("mldebug_exporters",),
    "detectors": ("mldebug.diagnosis.detectors",),
    "launchers": ("mldebug_agents.jobs.launchers",),
    "logs": ("mldebug.jobs.logs.formats",),
    "gpus": ("mldebug_agents.hardware.gpu.vendors",),
    "pages": ("mldebug.web.pages",),
    "probes": ("mldebug_agents.probes.verbs",),
    "schedulers": ("mldebug_agents.jobs.schedulers",),
    "transports": ("mldebug_agents.cluster.transports",),
}


def names(room: str) -> list[str]:
    """Return the sorted names of all inhabitants of a room, importing none of them."""
    return sorted(name for package in ROOMS[room] for name in _modules(package))


def load(room: str, name: str) -> ModuleType:
    """Import one inhabitant; `UsageError` names the legal ones when there is no such file."""
    for package in ROOMS[room]:
        if name in _modules(package):
            return import_module(f"{package}.{name}")
    raise UsageError(
        f"there is no {room} plugin named {name!r}", f"choose from: {', '.join(names(room))}"
    )


def create_all(room: str) -> list[Any]:
    """Build every inhabitant of a room with its default options, in order of name."""
    modules = [load(room, name) for name in names(room)]
    return [module.create(module.Options()) for module in modules]


def summary(room: str, name: str) -> str:
    """Return the first line of the plugin's docstring: its help text and its row in the docs."""
    return (load(room, name).__doc__ or "").strip().splitlines()[0]


def _modules(package: str) -> list[str]:
    spec = find_spec(package)
    places = spec.submodule_search_locations if spec else None
    found = pkgutil.iter_modules(places)
    return [one.name for one in found if not (one.ispkg or one.name.startswith("_"))]
